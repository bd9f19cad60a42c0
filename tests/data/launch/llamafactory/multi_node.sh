# llamafactory 0.9.5 examples/README.md
FORCE_TORCHRUN=1 NNODES=2 NODE_RANK=0 MASTER_ADDR=192.168.0.1 MASTER_PORT=29500 llamafactory-cli train qwen3_full_sft.yaml
