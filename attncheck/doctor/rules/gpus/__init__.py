"""Rules about GPUs and drivers."""
