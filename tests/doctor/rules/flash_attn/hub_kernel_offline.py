"""Cases for ATN158."""

from tests import snapshots as s
from tests.doctor.rules.flash_attn.hub_kernel_surprise import REPOSITORY, with_hub_kernels

FIRES = {"offline and not cached": with_hub_kernels("5.17.0", "0.16.0", True)}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "online: ATN157": with_hub_kernels("5.17.0", "0.16.0"),
    "cached": with_hub_kernels("5.17.0", "0.16.0", True, (f"{REPOSITORY}@v3",)),
    "4.55.4, before the fallback": with_hub_kernels("4.55.4", "0.9.0", True),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names the kernel and a fix."""
    return REPOSITORY in finding and "sdpa" in finding and "version=3)" in finding
