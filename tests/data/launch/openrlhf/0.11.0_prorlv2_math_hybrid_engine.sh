# openrlhf 0.11.0 examples/scripts/train_prorlv2_math_hybrid_engine.sh
WORK_DIR=/workspace
DATASET_PATH="OpenRLHF/dapo-math-17k"
MODEL_PATH="deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"
REWARD_FUNC_PATH="${WORK_DIR}/examples/python/math_reward_func.py"
SAVE_PATH="${WORK_DIR}/exp/DeepSeek-R1-Qwen-1.5B-PRORLV2"
python3 -m openrlhf.cli.train_ppo_ray \
  --ref.num_nodes 1 \
  --ref.num_gpus_per_node 8 \
  --actor.num_nodes 1 \
  --actor.num_gpus_per_node 8 \
  --vllm.num_engines 8 \
  --vllm.tensor_parallel_size 1 \
  --train.colocate_all \
  --vllm.gpu_memory_utilization 0.75 \
  --algo.kl.init_coef 1e-4 \
  --algo.advantage.gamma 1.0 \
  --algo.kl.use_loss \
  --algo.kl.estimator k2 \
  --algo.advantage.estimator reinforce_baseline \
  --algo.dynamic_filtering_enable \
  --algo.dynamic_filtering_range 0 1 \
  --actor.eps_clip_low_high 0.2 0.27 \
  --actor.model_name_or_path ${MODEL_PATH} \
  --reward.remote_url ${REWARD_FUNC_PATH} \
  --ckpt.output_dir ${SAVE_PATH} \
  --ckpt.path "${SAVE_PATH}/ckpt" \
  --ckpt.save_steps 5 \
  --ckpt.save_hf \
  --train.batch_size 1024 \
  --rollout.batch_size 512 \
  --rollout.n_samples_per_prompt 16 \
  --train.dynamic_batch_enable \
  --train.num_episodes 100 \
  --data.max_len 9216 \
  --rollout.max_new_tokens 8192 \
  --ds.zero_stage 3 \
  --ds.param_dtype bf16 \
  --actor.adam.lr 1e-6 \
  --data.prompt_dataset ${DATASET_PATH} \
  --data.input_key prompt \
  --data.label_key label \
  --eval.dataset OpenRLHF/aime-2024 \
  --eval.steps 5 \
  --eval.temperature 1.0 \
  --eval.n_samples_per_prompt 4 \
  --data.apply_chat_template \
  --actor.gradient_checkpointing_enable \
  --ds.packing_samples \
  --vllm.sync_backend nccl \
  --vllm.enforce_eager \
  --vllm.enable_sleep \
  --ds.enable_sleep \
  --algo.advantage.is_correction_enable \
  --algo.advantage.is_correction_threshold 0.5 5.0 \
  --algo.advantage.is_correction_type icepop \
  --train.max_tokens_per_gpu 32768 \
  --reward.stop_properly_penalty_coef 0.0
