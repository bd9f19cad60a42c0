"""Cases for ATN130."""

from tests import snapshots as s

FIRES = {
    "neither is there": s.without_packages(s.h200(), "ring-flash-attn"),
    "alongside a transformers that it knows": s.with_package(s.laptop(), "transformers", "5.3.0"),
    "no transformers": s.without_packages(s.laptop(), "transformers"),
}
SILENT = {
    "ring-flash-attn": s.h200(),
    "yunchang": s.with_package(s.laptop(), "yunchang", "0.6.3"),
}


def says(finding: str) -> bool:
    """Return whether the finding's text holds the command, or why none helps here."""
    return "ring-flash-attn==0.1.8" in finding or "a CUDA build of torch" in finding
