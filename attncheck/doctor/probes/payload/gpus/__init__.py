"""The device lane: nvidia-smi, NVML, visible devices, and tiny kernels on each GPU."""
