"""Cases for ATN153."""

from tests import snapshots as s

BROKEN = s.imported(
    s.h200(), "liger_kernel.transformers", "raised", exception="ImportError", message="cannot import name 'x'"
)
FIRES = {
    "it raises": BROKEN,
    "it dies": s.imported(s.h200(), "liger_kernel.transformers", "died", signal="SIGSEGV"),
}
SILENT = {
    "the recorded machine": s.h200(),
    "no liger-kernel": s.laptop(),
    "transformers is too old for it: ATN150": s.package(BROKEN, "transformers", "4.57.6"),
    "triton is missing: ATN152": s.without(BROKEN, "triton"),
    "triton is broken": s.imported(BROKEN, "triton", "raised", exception="ImportError", message="x"),
}


def says(finding: str) -> bool:
    """Say whether the finding's text names what was seen."""
    return "cannot import name" in finding or "SIGSEGV" in finding
