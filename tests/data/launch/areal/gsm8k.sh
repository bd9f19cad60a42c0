# areal 1.0.0
python3 -m areal.launcher.local examples/math/gsm8k_rl.py --config gsm8k_grpo.yaml \
  actor.path=Qwen/Qwen2.5-7B-Instruct cluster.n_nodes=1 cluster.n_gpus_per_node=8 actor.mb_spec.max_tokens_per_mb=10240
