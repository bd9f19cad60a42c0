"""Cases for ATN122."""

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s

ASKS = 'triton==3.6.0; platform_system == "Linux"'


def pair(triton: str, *requires: str) -> Snapshot:
    """Return torch 2.11.0 that requires this beside a triton."""
    return s.package(s.package(s.h200(), "torch", "2.11.0", requires=requires), "triton", triton)


FIRES = {"newer": pair("3.7.1", ASKS), "older": pair("3.5.1", ASKS)}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "the one": pair("3.6.0", ASKS),
    "none: other rules' matter": s.without(pair("3.6.0", ASKS), "triton"),
    "asked for on another platform": pair("3.7.1", 'triton==3.6.0; platform_system == "Windows"'),
}


def says(finding: str) -> bool:
    """Say whether the finding's text names what a user must read."""
    return "==3.6.0" in finding and "install" in finding
