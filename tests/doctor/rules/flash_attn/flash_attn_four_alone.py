"""Cases for ATN114."""

from tests import snapshots as s
from tests.doctor.rules.flash_attn.flash_attn_missing import without_flash_attention

ONLY_FLASH_ATTN_4 = s.with_package(without_flash_attention("2.8.0+cu128", "12.8"), "flash-attn-4", "4.0.0b36")

FIRES = {
    "verl alongside flash-attn-4": s.with_package(ONLY_FLASH_ATTN_4, "verl", "0.9.1"),
    "a launch of verl, alongside OpenRLHF": s.with_job(
        s.with_package(s.with_package(ONLY_FLASH_ATTN_4, "verl", "0.9.1"), "openrlhf", "0.11.2"),
        framework="verl",
        trainer="sft",
    ),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "no framework that imports flash_attn": ONLY_FLASH_ATTN_4,
    "flash-attn is there too": s.with_package(
        s.with_package(ONLY_FLASH_ATTN_4, "verl", "0.9.1"), "flash-attn", "2.8.3"
    ),
    "OpenRLHF: ATN146": s.with_package(s.with_package(ONLY_FLASH_ATTN_4, "verl", "0.9.1"), "openrlhf", "0.11.2"),
    "verl without flash-attn-4: ATN109": s.with_package(
        without_flash_attention("2.8.0+cu128", "12.8"), "verl", "0.9.1"
    ),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names what the user must know."""
    return "4.0.0b36" in finding and "flash_attn-2.8.3+cu12torch2.8" in finding
