# trl 0.9.6 commands/run_sft.sh (the command without its eval)
OUTPUT_DIR="test_sft/"
MODEL_NAME="trl-internal-testing/tiny-random-LlamaForCausalLM"
DATASET_NAME="imdb"
MAX_STEPS=5
BATCH_SIZE=2
SEQ_LEN=128
NUM_GPUS=2
accelerate launch \
    --num_processes $NUM_GPUS \
    --mixed_precision 'fp16' \
    examples/scripts/sft.py \
    --model_name $MODEL_NAME \
    --dataset_name $DATASET_NAME \
    --output_dir $OUTPUT_DIR \
    --max_steps $MAX_STEPS \
    --dataset_text_field 'text' \
    --per_device_train_batch_size $BATCH_SIZE \
    --max_seq_length $SEQ_LEN \
    --use_peft \
    --load_in_4bit
