"""Cases for ATN111."""

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s
from tests.doctor.rules.flash_attn.flash_attn_build_tools import READY
from tests.doctor.rules.flash_attn.flash_attn_missing import without_flash_attention


def with_free_memory(gib: int, base: Snapshot = READY) -> Snapshot:
    """Return a machine that has to build flash-attn with `gib` GiB of memory available."""
    return s.with_host(base, memory_available_bytes=s.Known(gib << 30))


FIRES = {
    "one job too many": s.with_env(with_free_memory(14), MAX_JOBS="3"),
    "not enough for one job": with_free_memory(6),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "as many as fit": s.with_env(with_free_memory(14), MAX_JOBS="2"),
    "just enough for one": with_free_memory(7),
    "setup.py decides": with_free_memory(30),
    "a wheel is published": s.with_env(
        with_free_memory(14, without_flash_attention("2.8.0+cu128", "12.8")), MAX_JOBS="16"
    ),
    "not a number": s.with_env(with_free_memory(14), MAX_JOBS="many"),
    "nothing to build": s.with_env(s.with_host(s.h200(), memory_available_bytes=s.Known(1 << 30)), MAX_JOBS="64"),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names what the user must know."""
    return "GiB are free" in finding and "export MAX_JOBS=" in finding
