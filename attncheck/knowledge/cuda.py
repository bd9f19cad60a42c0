"""CUDA versions against drivers.

Source: NVIDIA CUDA Toolkit release notes, "Minimum Required Driver Version for CUDA Minor Version Compatibility"
(docs.nvidia.com/cuda/cuda-toolkit-release-notes), read 2026-11-21.
"""

from __future__ import annotations

# CUDA major version -> oldest Linux driver that runs any of its minor versions.
MINIMUM_DRIVER: dict[int, str] = {11: "450.80.02", 12: "525.60.13", 13: "580"}
