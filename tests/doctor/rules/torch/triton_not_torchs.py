"""Cases for ATN122."""

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s

REQUIREMENT = 'triton==3.6.0; platform_system == "Linux"'


def with_triton(triton: str, *requires: str) -> Snapshot:
    """Return torch 2.11.0 with these requirements alongside a triton."""
    return s.with_package(s.with_package(s.h200(), "torch", "2.11.0", requires=requires), "triton", triton)


FIRES = {"newer": with_triton("3.7.1", REQUIREMENT), "older": with_triton("3.5.1", REQUIREMENT)}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "the one": with_triton("3.6.0", REQUIREMENT),
    "none: other rules' matter": s.without_packages(with_triton("3.6.0", REQUIREMENT), "triton"),
    "requested on another platform": with_triton("3.7.1", 'triton==3.6.0; platform_system == "Windows"'),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names what the user must know."""
    return "==3.6.0" in finding and "install" in finding
