"""Cases for ATN164."""

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s


def with_deepspeed(transformers: str, size: str) -> Snapshot:
    """Return DeepSpeed with this transformers and sequence parallel size."""
    snapshot = s.with_package(s.without_packages(s.h200(), "liger-kernel"), "transformers", transformers)
    return s.with_env(s.with_package(snapshot, "deepspeed", "0.19.6"), PARALLELISM_CONFIG_SP_SIZE=size)


FIRES = {"4.51.2": with_deepspeed("4.51.2", "4")}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "4.51.3": with_deepspeed("4.51.3", "4"),
    "no sequence parallelism": with_deepspeed("4.51.2", "1"),
    "no DeepSpeed": s.without_packages(with_deepspeed("4.51.2", "4"), "deepspeed"),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names the range."""
    return "transformers>=4.51.3" in finding
