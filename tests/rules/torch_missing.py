"""Cases for ATN101."""

from dataclasses import replace

from tests import snapshots as s

GONE = replace(
    s.without(s.h200(), "torch"), torch=s.Absent("no directory torch on sys.path"), imports=s.Absent("not asked for")
)
FIRES = {
    "no torch": GONE,
    "no torch, and the import says so": s.imported(
        GONE, "torch", "raised", exception="ModuleNotFoundError", message="No module named 'torch'"
    ),
    "no torch on an older driver": s.driver(GONE, version="550.54.15"),
    "no torch and no GPU": s.gpus(GONE),
}
SILENT = {
    "the recorded machine": s.h200(),
    "a laptop": s.laptop(),
    "torch comes from outside the distributions": s.imported(GONE, "torch"),
    "torch could not be read": replace(GONE, torch=s.Unreadable("permission denied")),
    "torch's metadata is there: its import or its remains are another finding": s.package(GONE, "torch", "2.11.0"),
}


def says(finding: str) -> bool:
    """Say whether the finding's text names what a user must read."""
    return "torch is not installed" in finding and " install " in finding
