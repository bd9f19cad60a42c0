"""Variables with which a user asks for the same bits every time.

Source: transformers 5.23.0 `trainer_utils.py` (enable_full_determinism) and `modeling_flash_attention_utils.py`; verl
0.9.1 `trainer/constants_ppo.py`; read on 2026-11-21.
"""

from __future__ import annotations

from collections.abc import Mapping

# CUBLAS_WORKSPACE_CONFIG is no such wish: images preset it.
WISHES = (
    "FLASH_ATTENTION_DETERMINISTIC",
    "VERL_FULL_DETERMINISM",
    "NCCL_DETERMINISTIC",
    "TORCHINDUCTOR_DETERMINISTIC",
)


def wishes(environ: Mapping[str, str]) -> list[str]:
    """Return the variables, with their values, that ask for determinism."""
    return [f"{name}={environ[name]}" for name in WISHES if environ.get(name) == "1"]
