"""Cases for ATN560."""

from tests import snapshots as s
from tests.doctor.rules.flash_attn.hub_kernel_surprise import with_hub_kernels

FIRES = {"off": s.with_env(with_hub_kernels("5.17.0", "0.16.0"), USE_HUB_KERNELS="0")}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "on": s.with_env(with_hub_kernels("5.17.0", "0.16.0"), USE_HUB_KERNELS="YES"),
    "not set": with_hub_kernels("5.17.0", "0.16.0"),
    "flash-attn is installed": s.with_env(s.h200(), USE_HUB_KERNELS="0"),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names a fix."""
    return "sdpa" in finding and "uninstall" in finding
