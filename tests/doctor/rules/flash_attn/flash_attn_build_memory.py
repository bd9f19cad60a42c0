"""Cases for ATN111."""

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s
from tests.doctor.rules.flash_attn.flash_attn_build_tools import READY
from tests.doctor.rules.flash_attn.flash_attn_missing import bare


def free(gib: int, base: Snapshot = READY) -> Snapshot:
    """Return a machine that has to build flash-attn and has so much memory free."""
    return s.host(base, memory_available_bytes=s.Known(gib << 30))


FIRES = {
    "one job too many": s.env(free(14), MAX_JOBS="3"),
    "not enough for one job": free(6),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "as many as fit": s.env(free(14), MAX_JOBS="2"),
    "just enough for one": free(7),
    "setup.py decides": free(30),
    "a wheel is published": s.env(free(14, bare("2.8.0+cu128", "12.8")), MAX_JOBS="16"),
    "not a number": s.env(free(14), MAX_JOBS="many"),
    "nothing to build": s.env(s.host(s.h200(), memory_available_bytes=s.Known(1 << 30)), MAX_JOBS="64"),
}


def says(finding: str) -> bool:
    """Say whether the finding's text names what a user must read."""
    return "GiB are free" in finding and "export MAX_JOBS=" in finding
