# after EasyR1 0.3.2 examples/qwen3_4b_math_grpo.sh
MODEL_PATH=Qwen/Qwen3-4B
python3 -m verl.trainer.main \
    config=examples/config.yaml \
    data.max_prompt_length=1024 \
    data.max_response_length=4096 \
    worker.actor.model.model_path=${MODEL_PATH} \
    worker.actor.padding_free=true \
    worker.actor.ulysses_size=2 \
    worker.rollout.tensor_parallel_size=1 \
    trainer.experiment_name=qwen3_4b \
    trainer.nnodes=1 \
    trainer.n_gpus_per_node=8
