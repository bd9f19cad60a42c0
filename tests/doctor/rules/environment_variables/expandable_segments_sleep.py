"""Cases for ATN556."""

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s

ON = "max_split_size_mb:128,expandable_segments:True"


def with_vllm(version: str, **variables: str) -> Snapshot:
    """Return the machine with this vllm and these variables."""
    return s.with_env(s.with_package(s.h200(), "vllm", version), **variables)


FIRES = {
    "0.20.0": with_vllm("0.20.0", PYTORCH_CUDA_ALLOC_CONF=ON),
    "0.20.1 does not see the new name": with_vllm("0.20.1", PYTORCH_ALLOC_CONF=ON),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "0.20.1 sees the old name": with_vllm("0.20.1", PYTORCH_CUDA_ALLOC_CONF=ON),
    "0.20.1 with both": with_vllm("0.20.1", PYTORCH_CUDA_ALLOC_CONF=ON, PYTORCH_ALLOC_CONF=ON),
    "off": with_vllm("0.20.0", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:False"),
    "no vllm": s.with_env(s.h200(), PYTORCH_CUDA_ALLOC_CONF=ON),
}


def says(finding: str) -> bool:
    """Return whether the finding's text holds the line to paste."""
    return "unset PYTORCH_" in finding
