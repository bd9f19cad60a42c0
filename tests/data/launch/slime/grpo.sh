# slime 0.3.1
PERF_ARGS=(
  --tensor-model-parallel-size 2
  --sequence-parallel
  --context-parallel-size 2
  --use-dynamic-batch-size
  --max-tokens-per-gpu 9216
  --micro-batch-size 1
)
ray job submit --address=http://127.0.0.1:8265 -- python3 train.py \
  --actor-num-nodes 1 --actor-num-gpus-per-node 8 --colocate \
  --hf-checkpoint /models/Qwen3-4B --prompt-data /data/math.jsonl \
  --num-rollout 100 --rollout-batch-size 32 --n-samples-per-prompt 8 --global-batch-size 256 \
  --advantage-estimator grpo --save-interval 20 \
  ${PERF_ARGS[@]}
