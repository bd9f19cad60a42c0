"""Cases for ATN119."""

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s


def with_versions(flash: str, transformers: str) -> Snapshot:
    """Return the recorded machine with torch 2.8 and these versions."""
    base = s.with_torch(s.h200(), version="2.8.0+cu128", cuda=s.Known("12.8"), cxx11_abi=s.Known(True))
    return s.with_package(s.with_package(base, "flash-attn", flash), "transformers", transformers)


FIRES = {
    "last bad for 5.x": with_versions("2.3.2", "5.0.0"),
    "last bad for 4.x": with_versions("2.0.9", "4.57.6"),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "first good for 5.x": with_versions("2.3.3", "5.0.0"),
    "first good for 4.x": with_versions("2.1.0", "4.57.6"),
    "too old for 5.x, fine for 4.x": with_versions("2.3.2", "4.57.6"),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names what the user must know."""
    return "too old" in finding and "flash_attn-2.8.3+cu12torch2.8" in finding
