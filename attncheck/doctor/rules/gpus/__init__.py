"""gpus."""
