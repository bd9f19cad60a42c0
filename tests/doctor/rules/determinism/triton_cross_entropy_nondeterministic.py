"""Cases for ATN705."""

from tests import snapshots as s

KERNEL = "flash_attn.ops.triton.cross_entropy:cross_entropy_loss"
VERL = s.with_interfaces(s.with_package(s.h200(), "verl", "0.9.1"), symbols={KERNEL: True})
DETERMINISTIC = s.with_env(VERL, FLASH_ATTENTION_DETERMINISTIC="1")

FIRES = {
    "determinism without the switch": DETERMINISTIC,
    "the switch off": s.with_env(DETERMINISTIC, VERL_DISABLE_FLASH_ATTN_CE="0"),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "the switch on": s.with_env(DETERMINISTIC, VERL_DISABLE_FLASH_ATTN_CE="1"),
    "nobody asks for determinism": VERL,
    "no such kernel here": s.with_interfaces(DETERMINISTIC, symbols={KERNEL: False}),
    "no verl": s.with_env(s.h200(), FLASH_ATTENTION_DETERMINISTIC="1"),
}


def says(finding: str) -> bool:
    """Return whether the finding's text holds the line to paste."""
    return "export VERL_DISABLE_FLASH_ATTN_CE=1" in finding
