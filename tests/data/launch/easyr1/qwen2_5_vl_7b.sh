# after EasyR1 0.3.0 examples/qwen2_5_vl_7b_geo3k_grpo.sh
set -x
python3 -m verl.trainer.main config=examples/config.yaml \
    data.train_files=geometry.parquet \
    worker.actor.model.model_path=Qwen/Qwen2.5-VL-7B-Instruct \
    trainer.n_gpus_per_node=8 "$@"
