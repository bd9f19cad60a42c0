# verl 0.4.1 examples/sft/gsm8k/run_qwen_05_sp2_liger.sh
torchrun --nnodes=1 --nproc_per_node=8 -m verl.trainer.fsdp_sft_trainer \
    data.train_files=$HOME/data/train.parquet \
    data.val_files=$HOME/data/test.parquet \
    data.prompt_key=extra_info \
    data.response_key=extra_info \
    optim.lr=1e-4 \
    'data.prompt_dict_keys=[question]' \
    '+data.response_dict_keys=[answer]' \
    data.micro_batch_size=4 \
    model.partial_pretrain=Qwen/Qwen2.5-0.5B-Instruct \
    model.use_liger=True \
    ulysses_sequence_parallel_size=2 \
    use_remove_padding=true
