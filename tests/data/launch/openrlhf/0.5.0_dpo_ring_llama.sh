# openrlhf 0.5.0 examples/scripts/train_dpo_ring_llama.sh
read -r -d '' TRAIN <<EOF
openrlhf.cli.train_dpo \
  --save_path ./checkpoint/llama3-8b-ring-dpo \
  --save_steps -1 \
  --logging_steps 1 \
  --eval_steps -1 \
  --train_batch_size 256 \
  --micro_train_batch_size 1 \
  --pretrain OpenRLHF/Llama-3-8b-sft-mixture \
  --bf16 \
  --max_epochs 1 \
  --max_len 8192 \
  --zero_stage 3 \
  --learning_rate 5e-7 \
  --beta 0.1 \
  --dataset OpenRLHF/preference_dataset_mixture2_and_safe_pku \
  --apply_chat_template \
  --chosen_key chosen \
  --rejected_key rejected \
  --ring_attn_size 2 \
  --ring_head_stride 2 \
  --packing_samples \
  --flash_attn \
  --load_checkpoint \
  --gradient_checkpointing
EOF
deepspeed --module $TRAIN
