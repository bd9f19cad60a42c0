"""What GPU generations can run: machine code, PTX, and the flash-attn family.

Sources, read 2026-11-21: CUDA C++ Programming Guide, "Application Compatibility" and "Feature-specific targets" (cubins
run on the same major with the same or a higher minor; PTX is compiled for any newer GPU; sm_90a and compute_90a for
9.0 alone; sm_100f for its own major); flash-attn 2.8.3 to 2.8.3.post2 sdists (setup.py `cuda_archs`;
csrc/flash_attn/flash_api.cpp "only supports Ampere GPUs or newer"); flash_attn_4 4.0.0b36 (flash_attn/cute/
interface.py, lines 845 and 2288); accelerate 1.15.0 (utils/environment.py `check_cuda_p2p_ib_support`, state.py).
"""

from __future__ import annotations

import re

Capability = tuple[int, int]

FLASH_OLDEST: Capability = (8, 0)
BF16_OLDEST: Capability = (8, 0)
# flash-attn 2's own targets: what FLASH_ATTN_CUDA_ARCHS may name, and the nvcc that is needed for it.
FLASH2_TARGETS: dict[str, tuple[Capability, str]] = {
    "80": ((8, 0), "11.7"),
    "90": ((9, 0), "11.8"),
    "100": ((10, 0), "12.8"),
    "120": ((12, 0), "12.8"),
}
FLASH4_VERSION = "4.0.0b36"  # the release that was read
FLASH4_FORWARD = (8, 9, 10, 11, 12)  # compute capability majors
FLASH4_BACKWARD = (9, 10, 11, 12)
# accelerate: names of consumer GPUs whose old drivers cannot do peer-to-peer, and the first driver that can.
NO_PEER_NAMES = ("RTX 40",)
PEER_DRIVER = "550.40.07"


def runs(targets: tuple[str, ...], capability: Capability) -> bool:
    """Say whether code for `targets` ("sm_90", "sm_90a", "compute_80", …) runs on a GPU of `capability`."""
    return any(_runs(target, capability) for target in targets)


def _runs(target: str, capability: Capability) -> bool:
    match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", target)
    if not match:
        return False
    built = (int(match[2]), int(match[3]))
    if match[4] == "a":
        return built == capability
    if match[1] == "sm" or match[4] == "f":
        return built[0] == capability[0] and built[1] <= capability[1]
    return built <= capability


def flash2_target(capability: Capability) -> tuple[str, str] | None:
    """Return the entry of FLASH_ATTN_CUDA_ARCHS for `capability` and the nvcc it needs; None where there is none."""
    for name, (built, nvcc) in FLASH2_TARGETS.items():
        if built[0] == capability[0] and built[1] <= capability[1]:
            return name, nvcc
    return None
