"""Cases for ATN144."""

from tests import snapshots as s

SYNTAX_ERROR = s.with_import(
    s.h200(),
    "ring_flash_attn",
    "raised",
    exception="SyntaxError",
    message="invalid syntax",
    frames=("ring_flash_attn/utils.py:3 in <module>",),
)
FROM_FLASH_ATTN = s.with_import(
    s.h200(),
    "ring_flash_attn",
    "raised",
    exception="ImportError",
    message="undefined symbol: x",
    frames=("ring_flash_attn/ring_flash_attn.py:3 in <module>", "flash_attn/__init__.py:3 in <module>"),
)
NO_FLASH_ATTN = s.with_import(
    s.h200(),
    "ring_flash_attn",
    "raised",
    exception="ModuleNotFoundError",
    message="No module named 'flash_attn'",
    frames=("ring_flash_attn/ring_flash_attn.py:3 in <module>",),
)
FIRES = {
    "it raises": SYNTAX_ERROR,
    "it dies": s.with_import(s.h200(), "ring_flash_attn", "died", signal="SIGSEGV"),
    "it raises, and flash_attn is broken too": s.with_import(
        SYNTAX_ERROR, "flash_attn", "raised", exception="ImportError", message="x"
    ),
    "it raises, and flash-attn is missing too": s.without_packages(SYNTAX_ERROR, "flash-attn"),
    "flash_attn fails for it alone": FROM_FLASH_ATTN,
}
SILENT = {
    "the recorded machine: ATN140 explains it": s.h200(),
    "no ring-flash-attn": s.laptop(),
    "it can be imported": s.with_import(s.h200(), "ring_flash_attn", "ok"),
    "flash_attn is broken, and it fails there": s.with_import(
        FROM_FLASH_ATTN, "flash_attn", "raised", exception="ImportError", message="undefined symbol: x"
    ),
    "it dies as flash_attn does": s.with_import(
        s.with_import(s.h200(), "ring_flash_attn", "died", signal="SIGSEGV"), "flash_attn", "died", signal="SIGSEGV"
    ),
    "flash-attn is missing: ATN142": s.without_packages(NO_FLASH_ATTN, "flash-attn"),
    "transformers is broken: it was not tried": s.with_import(
        s.with_import(s.h200(), "ring_flash_attn", "skipped", message="transformers could not be imported"),
        "transformers",
        "raised",
        exception="ImportError",
        message="x",
    ),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names what was found."""
    return any(word in finding for word in ("SyntaxError", "SIGSEGV", "undefined symbol"))
