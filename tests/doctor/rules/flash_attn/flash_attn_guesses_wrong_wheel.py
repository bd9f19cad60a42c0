"""Cases for ATN112."""

from tests import snapshots as s
from tests.doctor.rules.flash_attn.flash_attn_missing import without_flash_attention

PINNED = s.with_package(
    without_flash_attention("2.9.1+cu130", "13.0"), "openrlhf", "0.11.2", requires=("flash-attn==2.8.3",)
)

FIRES = {"a pin on 2.8.3, CUDA 13, and a cu12 wheel for torch 2.9": PINNED}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "no pin: the newest release requires cu13": without_flash_attention("2.9.1+cu130", "13.0"),
    "CUDA 12 gets what it needs": s.with_package(
        without_flash_attention("2.9.1+cu128", "12.8"), "openrlhf", "0.11.2", requires=("flash-attn==2.8.3",)
    ),
    "no cu12 wheel for torch 2.11 to be mistaken for": s.with_package(
        without_flash_attention("2.11.0+cu130", "13.0"), "openrlhf", "0.11.2", requires=("flash-attn==2.8.3",)
    ),
    "already installed and working": s.with_package(s.h200(), "openrlhf", "0.11.2", requires=("flash-attn==2.8.3",)),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names what the user must know."""
    return "CUDA 12 wheel" in finding and "cu13torch2.9" in finding and "openrlhf 0.11.2 pins" in finding
