"""Cases for ATN553."""

from tests import snapshots as s

TE = s.with_package(s.h200(), "transformer-engine", "2.10.0")
FIRES = {
    "flash off": s.with_env(TE, NVTE_FLASH_ATTN="0"),
    "two off": s.with_env(TE, NVTE_FLASH_ATTN="0", NVTE_FUSED_ATTN="0"),
}
SILENT = {
    "all on": s.with_env(TE, NVTE_FLASH_ATTN="1"),
    "no Transformer Engine": s.with_env(s.h200(), NVTE_FLASH_ATTN="0"),
    "nothing set": TE,
}


def says(text: str) -> bool:
    return "unset NVTE_FLASH_ATTN" in text
