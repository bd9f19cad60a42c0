"""What each GPU generation can run: machine code, PTX, and the flash-attn family.

Sources, read 2026-11-21: CUDA C++ Programming Guide, "Application Compatibility" and "Feature-specific targets" (cubins
run on the same major with the same or a higher minor; PTX is compiled for any newer GPU; sm_90a and compute_90a only
for 9.0; sm_100f for its own major); flash-attn 2.8.3 to 2.8.3.post2 sdists (setup.py `cuda_archs`;
csrc/flash_attn/flash_api.cpp "only supports Ampere GPUs or newer"); flash_attn_4 4.0.0b36 (flash_attn/cute/
interface.py, lines 845 and 2288); accelerate 1.15.0 (utils/environment.py `check_cuda_p2p_ib_support`, state.py).
"""

import re

Capability = tuple[int, int]

FLASH_ATTN_MIN_CAPABILITY: Capability = (8, 0)
BF16_MIN_CAPABILITY: Capability = (8, 0)
# flash-attn 2's targets: the values FLASH_ATTN_CUDA_ARCHS may have, and the nvcc that each needs.
FLASH_ATTN_2_TARGETS: dict[str, tuple[Capability, str]] = {
    "80": ((8, 0), "11.7"),
    "90": ((9, 0), "11.8"),
    "100": ((10, 0), "12.8"),
    "120": ((12, 0), "12.8"),
}
FLASH_ATTN_4_VERSION = "4.0.0b36"  # the release that was read
FLASH_ATTN_4_FORWARD = (8, 9, 10, 11, 12)  # compute capability majors
FLASH_ATTN_4_BACKWARD = (9, 10, 11, 12)
# A GPU's common name -> NVIDIA's name, compute capability, memory in GiB (developer.nvidia.com/cuda-gpus and the data
# sheets; the usual size if it is sold with several).
GPUS_BY_NAME: dict[str, tuple[str, Capability, int]] = {
    "p100": ("Tesla P100", (6, 0), 16),
    "v100": ("Tesla V100", (7, 0), 32),
    "t4": ("Tesla T4", (7, 5), 16),
    "a10": ("NVIDIA A10", (8, 6), 24),
    "a10g": ("NVIDIA A10G", (8, 6), 24),
    "a30": ("NVIDIA A30", (8, 0), 24),
    "a40": ("NVIDIA A40", (8, 6), 48),
    "a100": ("NVIDIA A100", (8, 0), 80),
    "a800": ("NVIDIA A800", (8, 0), 80),
    "a6000": ("NVIDIA RTX A6000", (8, 6), 48),
    "rtx3090": ("NVIDIA GeForce RTX 3090", (8, 6), 24),
    "rtx4090": ("NVIDIA GeForce RTX 4090", (8, 9), 24),
    "rtx5090": ("NVIDIA GeForce RTX 5090", (12, 0), 32),
    "l4": ("NVIDIA L4", (8, 9), 24),
    "l40": ("NVIDIA L40", (8, 9), 48),
    "l40s": ("NVIDIA L40S", (8, 9), 48),
    "h20": ("NVIDIA H20", (9, 0), 96),
    "h100": ("NVIDIA H100", (9, 0), 80),
    "h800": ("NVIDIA H800", (9, 0), 80),
    "h200": ("NVIDIA H200", (9, 0), 141),
    "gh200": ("NVIDIA GH200", (9, 0), 96),
    "b200": ("NVIDIA B200", (10, 0), 180),
    "gb200": ("NVIDIA GB200", (10, 0), 186),
    "b300": ("NVIDIA B300", (10, 3), 270),
}
# accelerate: names of consumer GPUs whose old drivers lack peer-to-peer access, and the first driver that has it.
GPUS_WITHOUT_PEER_ACCESS = ("RTX 40",)
FIRST_DRIVER_WITH_PEER_ACCESS = "550.40.07"


def has_code_for(targets: tuple[str, ...], capability: Capability) -> bool:
    """Return whether code for `targets` ("sm_90", "sm_90a", "compute_80", …) runs on a GPU of `capability`."""
    return any(_target_runs_on(target, capability) for target in targets)


def _target_runs_on(target: str, capability: Capability) -> bool:
    match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", target)
    if not match:
        return False
    target_capability = (int(match[2]), int(match[3]))
    if match[4] == "a":
        return target_capability == capability
    if match[1] == "sm" or match[4] == "f":
        return target_capability[0] == capability[0] and target_capability[1] <= capability[1]
    return target_capability <= capability


def flash_attn_2_target(capability: Capability) -> tuple[str, str] | None:
    """Return the entry of FLASH_ATTN_CUDA_ARCHS for `capability` and the nvcc it needs; None if there is none."""
    for name, (target_capability, nvcc) in FLASH_ATTN_2_TARGETS.items():
        if target_capability[0] == capability[0] and target_capability[1] <= capability[1]:
            return name, nvcc
    return None
