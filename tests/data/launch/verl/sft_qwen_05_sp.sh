# verl 0.10.0.dev examples/sft/gsm8k/run_qwen2_5_0_5b_fsdp.sh
torchrun --nnodes=1 --nproc_per_node=8 -m verl.trainer.sft_trainer \
    data.train_files=$HOME/data/train.parquet \
    data.val_files=$HOME/data/test.parquet \
    data.messages_key=messages \
    data.micro_batch_size_per_gpu=4 \
    optim.lr=1e-4 \
    engine=fsdp \
    engine.ulysses_sequence_parallel_size=1 \
    model.path=Qwen/Qwen2.5-0.5B-Instruct \
    model.use_remove_padding=true
