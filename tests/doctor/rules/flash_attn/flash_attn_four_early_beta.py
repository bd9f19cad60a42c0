"""Cases for ATN175."""

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s


def with_beta(beta: int, capability: tuple[int, int] = (12, 0), **model: object) -> Snapshot:
    """Return a machine with this beta of flash-attn-4 and a GPU of this generation."""
    base = s.with_gpus(s.with_package(s.h200(), "flash-attn-4", f"4.0.0b{beta}"), capability)
    return s.with_model(base, **model) if model else base


FIRES = {
    "RTX 5090, b12": with_beta(12),
    "head size 256, b11": with_beta(11, (10, 0), head_dims=(256,)),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "the next one": with_beta(13),
    "datacentre Blackwell": with_beta(12, (10, 0)),
    "head size 256, b12": with_beta(12, (10, 0), head_dims=(256,)),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names a release that is repaired."""
    return "flash-attn-4==4.0.0b36" in finding and "wrong" in finding
