# after Megatron-LM core_v0.9.0 README, "Reproducibility"
export NCCL_ALGO=Ring NVTE_ALLOW_NONDETERMINISTIC_ALGO=0 CUBLAS_WORKSPACE_CONFIG=:4096:8
torchrun --nproc_per_node 8 pretrain_gpt.py \
    --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 4096 --max-position-embeddings 4096 \
    --tensor-model-parallel-size 2 --micro-batch-size 2 --global-batch-size 64 --bf16 --train-iters 100 \
    --deterministic-mode
