"""Cases for ATN114."""

from tests import snapshots as s
from tests.doctor.rules.flash_attn.flash_attn_missing import bare

ALONE = s.package(bare("2.8.0+cu128", "12.8"), "flash-attn-4", "4.0.0b36")

FIRES = {"verl beside flash-attn-4": s.package(ALONE, "verl", "0.9.1")}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "no framework that imports flash_attn": ALONE,
    "flash-attn is there too": s.package(s.package(ALONE, "verl", "0.9.1"), "flash-attn", "2.8.3"),
    "OpenRLHF: ATN146": s.package(s.package(ALONE, "verl", "0.9.1"), "openrlhf", "0.11.2"),
    "verl without flash-attn-4: ATN109": s.package(bare("2.8.0+cu128", "12.8"), "verl", "0.9.1"),
}


def says(finding: str) -> bool:
    """Say whether the finding's text names what a user must read."""
    return "4.0.0b36" in finding and "flash_attn-2.8.3+cu12torch2.8" in finding
