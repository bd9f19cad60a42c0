"""Cases for ATN164."""

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s


def job(transformers: str, size: str) -> Snapshot:
    """Return DeepSpeed with this transformers and sequence parallel size."""
    snapshot = s.package(s.without(s.h200(), "liger-kernel"), "transformers", transformers)
    return s.env(s.package(snapshot, "deepspeed", "0.19.6"), PARALLELISM_CONFIG_SP_SIZE=size)


FIRES = {"4.51.2": job("4.51.2", "4")}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "4.51.3": job("4.51.3", "4"),
    "no sequence parallelism": job("4.51.2", "1"),
    "no DeepSpeed": s.without(job("4.51.2", "4"), "deepspeed"),
}


def says(finding: str) -> bool:
    """Say whether the finding's text names the range."""
    return "transformers>=4.51.3" in finding
