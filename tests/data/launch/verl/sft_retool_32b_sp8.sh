# verl 0.4.1 recipe/retool/run_qwen2.5_32b_sp8.sh
torchrun --nnodes=1 --nproc_per_node=8 -m verl.trainer.fsdp_sft_trainer \
    data.max_length=16384 \
    data.train_batch_size=128 \
    data.micro_batch_size_per_gpu=4 \
    data.train_files=$HOME/data/train.parquet \
    data.val_files=$HOME/data/test.parquet \
    data.multiturn.enable=true \
    data.multiturn.messages_key=messages \
    data.multiturn.tools_key=tools \
    model.partial_pretrain=Qwen/Qwen2.5-32B-Instruct \
    model.trust_remote_code=true \
    model.fsdp_config.cpu_offload=true \
    model.fsdp_config.offload_params=true \
    optim.lr=1e-6 \
    ulysses_sequence_parallel_size=8 \
    use_remove_padding=true
