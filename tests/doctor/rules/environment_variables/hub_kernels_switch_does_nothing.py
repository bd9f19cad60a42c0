"""Cases for ATN560."""

from tests import snapshots as s
from tests.doctor.rules.flash_attn.hub_kernel_surprise import hub

FIRES = {"off": s.env(hub("5.17.0", "0.16.0"), USE_HUB_KERNELS="0")}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "on": s.env(hub("5.17.0", "0.16.0"), USE_HUB_KERNELS="YES"),
    "not set": hub("5.17.0", "0.16.0"),
    "flash-attn is installed": s.env(s.h200(), USE_HUB_KERNELS="0"),
}


def says(finding: str) -> bool:
    """Say whether the finding's text names the way out."""
    return "sdpa" in finding and "uninstall" in finding
