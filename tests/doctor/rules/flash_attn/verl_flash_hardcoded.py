"""Cases for ATN162."""

from tests import snapshots as s
from tests.doctor.rules.flash_attn.hub_kernel_surprise import with_hub_kernels

VERL = s.with_package(s.without_packages(s.laptop(), "flash-attn"), "verl", "0.9.1")

FIRES = {
    "verl without flash-attn": VERL,
    "`kernels` is not one that transformers accepts": s.with_package(
        with_hub_kernels("5.17.0", "0.17.2"), "verl", "0.9.1"
    ),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "flash-attn is installed": s.with_package(VERL, "flash-attn", "2.8.3"),
    "a kernel of the Hub is in: ATN157": s.with_package(with_hub_kernels("5.17.0", "0.16.0"), "verl", "0.9.1"),
    "flash_attn comes from elsewhere": s.with_interfaces(VERL, availability={"is_flash_attn_2_available": True}),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names both fixes."""
    return "adv_estimator=grpo" in finding and "install" in finding
