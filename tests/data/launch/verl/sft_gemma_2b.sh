# verl 0.5.0 examples/sft/gsm8k/run_gemma_2b.sh
torchrun --nnodes=1 --nproc_per_node=8 -m verl.trainer.fsdp_sft_trainer \
    data.train_files=$HOME/data/train.parquet \
    data.val_files=$HOME/data/test.parquet \
    data.prompt_key=extra_info \
    data.response_key=extra_info \
    'data.prompt_dict_keys=[question]' \
    '+data.response_dict_keys=[answer]' \
    data.micro_batch_size_per_gpu=4 \
    model.partial_pretrain=google/gemma-2b-it
