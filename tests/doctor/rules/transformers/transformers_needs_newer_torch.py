"""Cases for ATN155."""

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s


def with_versions(transformers: str, torch: str) -> Snapshot:
    """Return the recorded machine with these versions."""
    return s.with_torch(
        s.with_package(s.without_packages(s.h200(), "liger-kernel", "ring-flash-attn"), "transformers", transformers),
        version=torch,
    )


FIRES = {
    "a nightly of 2.6 comes before 2.6, for transformers too": with_versions("5.20.0", "2.6.0.dev20250101+cu126"),
    "5.20.0 with 2.5.1": with_versions("5.20.0", "2.5.1+cu124"),
    "5.15.0 with 2.4.1": with_versions("5.15.0", "2.4.1+cu121"),
    "5.1.0 with 2.3.1": with_versions("5.1.0", "2.3.1+cu121"),
    "4.52.4 with 2.0.1": with_versions("4.52.4", "2.0.1+cu118"),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "5.20.0 with 2.6.0": with_versions("5.20.0", "2.6.0+cu126"),
    "5.19.0 with 2.5.0": with_versions("5.19.0", "2.5.0+cu124"),
    "5.14.1 with 2.4.0": with_versions("5.14.1", "2.4.0+cu121"),
    "5.0.0 with 2.2.0": with_versions("5.0.0", "2.2.0+cu121"),
    "4.51.3 with 2.0.1": with_versions("4.51.3", "2.0.1+cu118"),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names the minimum and a transformers to take."""
    return "or newer" in finding and ("'transformers>=4.43,<" in finding or "transformers==4.51.3" in finding)
