"""Cases for ATN101."""

from dataclasses import replace

from tests import snapshots as s

GONE = replace(s.without(s.h200(), "torch"), torch=s.Absent("no torch folder"), imports=s.Absent("not asked for"))

FIRES = {
    "no torch at all": GONE,
    "no torch, and the import lane agrees": s.imported(GONE, "torch", "raised", exception="ModuleNotFoundError"),
}
SILENT = {
    "the recorded machine": s.h200(),
    "a CPU build is a torch": s.laptop(),
    "torch comes from outside the distributions": s.imported(GONE, "torch"),
    "installed and unreadable is not missing": replace(s.h200(), torch=s.Unreadable("version.py is damaged")),
}


def says(finding: str) -> bool:
    """Say whether the finding's text names what a user must read."""
    return "torch is not installed" in finding and "install torch" in finding and "whl/cu130" in finding
