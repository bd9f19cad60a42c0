"""Cases for ATN101."""

from dataclasses import replace

from tests import snapshots as s

WITHOUT_TORCH = replace(
    s.without_packages(s.h200(), "torch"), torch=s.Absent("no torch folder"), imports=s.Absent("not requested")
)

FIRES = {
    "no torch at all": WITHOUT_TORCH,
    "no torch, and the import lane agrees": s.with_import(
        WITHOUT_TORCH, "torch", "raised", exception="ModuleNotFoundError"
    ),
}
SILENT = {
    "the recorded machine": s.h200(),
    "a CPU build is a torch": s.laptop(),
    "torch comes from outside the distributions": s.with_import(WITHOUT_TORCH, "torch"),
    "installed and unreadable is not missing": replace(s.h200(), torch=s.Unreadable("version.py is damaged")),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names what the user must know."""
    return "torch is not installed" in finding and "install torch" in finding and "whl/cu130" in finding
