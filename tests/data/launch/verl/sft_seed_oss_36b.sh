# verl 0.10.0.dev examples/sft/gsm8k/run_seed_oss_36b_fsdp.sh
torchrun --nnodes=1 --nproc_per_node=8 -m verl.trainer.sft_trainer \
    data.train_files=$HOME/data/train.parquet \
    data.val_files=$HOME/data/test.parquet \
    data.micro_batch_size_per_gpu=4 \
    optim.lr=1e-4 \
    engine=fsdp \
    engine.ulysses_sequence_parallel_size=2 \
    model.path=ByteDance-Seed/Seed-OSS-36B-Base \
    model.use_remove_padding=true
