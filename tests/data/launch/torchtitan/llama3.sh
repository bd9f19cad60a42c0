# torchtitan 0.2.2
torchrun --nproc_per_node=8 --rdzv_backend c10d --role rank --tee 3 -m torchtitan.train \
  --job.config_file llama3_8b.toml \
  --training.seq_len 8192 \
  --training.local_batch_size 1 \
  --parallelism.context_parallel_degree 2
