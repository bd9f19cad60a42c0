# after Megatron-LM core_v0.12.0 examples/gpt3/train_gpt3_175b_distributed.sh
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
DISTRIBUTED_ARGS=(--nproc_per_node $GPUS_PER_NODE --nnodes 2 --master_addr $MASTER_ADDR --master_port 6000)
MODEL_ARGS=(
    --num-layers 32 --hidden-size 4096 --num-attention-heads 32
    --group-query-attention --num-query-groups 8
    --seq-length 32768 --max-position-embeddings 32768
    --attention-backend flash
)
PARALLEL_ARGS=(--tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 --context-parallel-size 2)
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \
    ${MODEL_ARGS[@]} \
    ${PARALLEL_ARGS[@]} \
    --micro-batch-size 1 --global-batch-size 128 --bf16 --train-iters 1000 \
    --data-path $DATA_PATH
