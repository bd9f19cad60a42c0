"""Cases for ATN153."""

from tests import snapshots as s

FAILED_IMPORT = s.with_import(
    s.h200(), "liger_kernel.transformers", "raised", exception="ImportError", message="cannot import name 'x'"
)
FIRES = {
    "it raises": FAILED_IMPORT,
    "it dies": s.with_import(s.h200(), "liger_kernel.transformers", "died", signal="SIGSEGV"),
}
SILENT = {
    "the recorded machine": s.h200(),
    "no liger-kernel": s.laptop(),
    "transformers is too old for it: ATN150": s.with_package(FAILED_IMPORT, "transformers", "4.57.6"),
    "triton is missing: ATN152": s.without_packages(FAILED_IMPORT, "triton"),
    "triton is broken": s.with_import(FAILED_IMPORT, "triton", "raised", exception="ImportError", message="x"),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names what was found."""
    return "cannot import name" in finding or "SIGSEGV" in finding
