"""The variables that make a run bitwise reproducible, and those with which a user requests that.

Source: transformers 5.23.0 `trainer_utils.py` (enable_full_determinism) and `modeling_flash_attention_utils.py`, which
compares with "1"; verl 0.9.1 `trainer/constants_ppo.py`; torch.use_deterministic_algorithms' documentation for the two
cuBLAS settings; read on 2026-11-21.
"""

from attncheck.core.snapshot import Snapshot

# Each of these, if set to 1, requests determinism. CUBLAS_WORKSPACE_CONFIG alone does not, because images preset it.
DETERMINISM_VARIABLES = (
    "FLASH_ATTENTION_DETERMINISTIC",
    "VERL_FULL_DETERMINISM",
    "NCCL_DETERMINISTIC",
    "TORCHINDUCTOR_DETERMINISTIC",
)


def determinism_settings(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the examined environment's variables that request determinism, as "NAME=value"."""
    return tuple(
        f"{name}={snapshot.environ[name]}" for name in DETERMINISM_VARIABLES if snapshot.environ.get(name) == "1"
    )
