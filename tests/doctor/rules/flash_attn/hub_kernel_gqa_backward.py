"""Cases for ATN159."""

from tests import snapshots as s
from tests.doctor.rules.flash_attn.hub_kernel_surprise import with_hub_kernels

FIRES = {
    "5.16.0": s.with_model(with_hub_kernels("5.16.0", "0.16.0")),
    "5.18.0": s.with_model(with_hub_kernels("5.18.0", "0.17.0")),
    "5.21.0": s.with_model(with_hub_kernels("5.21.0", "0.17.2")),
    "5.22.0 with torch 2.9": s.with_model(s.with_torch(with_hub_kernels("5.22.0", "0.17.2"), version="2.9.1+cu128")),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "5.15.1 names no version": s.with_model(with_hub_kernels("5.15.1", "0.16.0")),
    "5.22.0 with torch 2.10 takes version 4": s.with_model(
        s.with_torch(with_hub_kernels("5.22.0", "0.17.2"), version="2.10.0+cu128")
    ),
    "as many kv heads as heads": s.with_model(with_hub_kernels("5.18.0", "0.17.0"), num_kv_heads=s.Known(28)),
    "no model": with_hub_kernels("5.18.0", "0.17.0"),
    "flash-attn is installed": s.with_model(
        s.with_package(with_hub_kernels("5.18.0", "0.17.0"), "flash-attn", "2.8.3")
    ),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names the version to pin."""
    return "kernels-community/flash-attn2@v2" in finding and "warning" in finding
