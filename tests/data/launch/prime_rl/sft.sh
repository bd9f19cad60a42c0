# prime-rl 0.5.0
uv run sft @ sft.toml --model.name Qwen/Qwen3-0.6B --data.seq-len 4096 --data.micro-batch-size 2
