"""Cases for ATN144."""

from tests import snapshots as s

SYNTAX_ERROR = s.with_import(
    s.h200(), "ring_flash_attn", "raised", exception="SyntaxError", message="invalid syntax", frames=("utils.py:3",)
)
FIRES = {
    "it raises": SYNTAX_ERROR,
    "it dies": s.with_import(s.h200(), "ring_flash_attn", "died", signal="SIGSEGV"),
}
SILENT = {
    "the recorded machine: ATN140 explains it": s.h200(),
    "no ring-flash-attn": s.laptop(),
    "it can be imported": s.with_import(s.h200(), "ring_flash_attn", "ok"),
    "flash_attn itself is broken": s.with_import(
        SYNTAX_ERROR, "flash_attn", "raised", exception="ImportError", message="x"
    ),
    "flash-attn is missing: ATN142": s.without_packages(SYNTAX_ERROR, "flash-attn"),
    "transformers is broken": s.with_import(
        SYNTAX_ERROR, "transformers", "raised", exception="ImportError", message="x"
    ),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names what was found."""
    return "SyntaxError" in finding or "SIGSEGV" in finding
