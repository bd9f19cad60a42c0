"""Cases for ATN703."""

from tests import snapshots as s

RLHF = s.with_package(s.h200(), "openrlhf", "0.11.2")
VERL = s.with_package(s.h200(), "verl", "0.9.1")
FIRES = {
    "OpenRLHF hands on none": s.with_env(RLHF, FLASH_ATTENTION_DETERMINISTIC="1"),
    "verl keeps this one": s.with_env(VERL, VERL_DISABLE_FLASH_ATTN_CE="1"),
}
SILENT = {
    "verl hands this one on": s.with_env(VERL, FLASH_ATTENTION_DETERMINISTIC="1"),
    "nothing set": RLHF,
    "NCCL tuned for speed": s.with_env(RLHF, NCCL_ALGO="Tree"),
    "no Ray framework": s.with_env(s.h200(), FLASH_ATTENTION_DETERMINISTIC="1"),
}


def says(text: str) -> bool:
    return "--runtime-env-json" in text
