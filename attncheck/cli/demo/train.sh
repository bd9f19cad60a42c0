#!/bin/bash
trl sft --model_name_or_path Qwen/Qwen2.5-7B --dataset_name ./chats \
    --packing true --packing_strategy wrapped --max_length 4096 \
    --per_device_train_batch_size 4 --gradient_accumulation_steps 8 \
    --learning_rate 2e-5 --output_dir out
