"""Cases for ATN552."""

from tests import snapshots as s

HOPPER = s.with_gpus(s.h200(), (9, 0))

FIRES = {
    "1 under FSDP": s.with_env(HOPPER, ACCELERATE_USE_FSDP="true", CUDA_DEVICE_MAX_CONNECTIONS="1"),
    "unset under Megatron": s.with_env(HOPPER, ACCELERATE_USE_MEGATRON_LM="true"),
    "8 under Megatron": s.with_env(HOPPER, ACCELERATE_USE_MEGATRON_LM="true", CUDA_DEVICE_MAX_CONNECTIONS="8"),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "1 with nothing said": s.with_env(HOPPER, CUDA_DEVICE_MAX_CONNECTIONS="1"),
    "1 under Megatron": s.with_env(HOPPER, ACCELERATE_USE_MEGATRON_LM="true", CUDA_DEVICE_MAX_CONNECTIONS="1"),
    "unset under FSDP": s.with_env(HOPPER, ACCELERATE_USE_FSDP="true"),
    "Megatron on Blackwell": s.with_env(s.with_gpus(s.h200(), (10, 0)), ACCELERATE_USE_MEGATRON_LM="true"),
}


def says(finding: str) -> bool:
    """Return whether the finding's text holds a line to paste."""
    return "unset CUDA_DEVICE" in finding or "export CUDA_DEVICE_MAX_CONNECTIONS=1" in finding
