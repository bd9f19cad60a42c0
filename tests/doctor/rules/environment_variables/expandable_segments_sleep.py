"""Cases for ATN556."""

from attncheck.core.launch import Setting, SourceLocation
from attncheck.core.snapshot import Snapshot
from tests import snapshots as s

ON = "max_split_size_mb:128,expandable_segments:True"


def with_vllm(version: str, **variables: str) -> Snapshot:
    """Return the machine with this vllm and these variables."""
    return s.with_env(s.with_package(s.h200(), "vllm", version), **variables)


def with_setting(name: str, value: str, framework: str = "trl", version: str = "1.0.0") -> Snapshot:
    """Return the machine with a launch of GRPO that sets one option."""
    setting = Setting(name, value, SourceLocation("run.sh"), (0, 1))
    return s.with_job(
        with_vllm("0.20.0", PYTORCH_CUDA_ALLOC_CONF=ON), settings=(setting,), framework=framework, version=version
    )


FIRES = {
    "ms-swift sleeps": with_setting("--sleep_level", "1", framework="ms-swift", version="3.8.3"),
    "verl sleeps": with_setting("trainer.nnodes", "1", framework="verl", version="0.5.0"),
    "0.20.0": with_vllm("0.20.0", PYTORCH_CUDA_ALLOC_CONF=ON),
    "0.20.1 does not see the new name": with_vllm("0.20.1", PYTORCH_ALLOC_CONF=ON),
}
SILENT = {
    "a launch without sleep mode": with_setting("--use_vllm", "true"),
    "ms-swift switches them off": with_setting("--sleep_level", "1", framework="ms-swift", version="3.9.0"),
    "sleep level 0": with_setting("--sleep_level", "0", framework="ms-swift"),
    "verl that keeps its cache": with_setting(
        "actor_rollout_ref.rollout.free_cache_engine", "False", framework="verl", version="0.5.0"
    ),
    "verl 0.1": with_setting("trainer.nnodes", "1", framework="verl", version="0.1"),
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "0.20.1 sees the old name": with_vllm("0.20.1", PYTORCH_CUDA_ALLOC_CONF=ON),
    "0.20.1 with both": with_vllm("0.20.1", PYTORCH_CUDA_ALLOC_CONF=ON, PYTORCH_ALLOC_CONF=ON),
    "torch before 2.9 does not read the new name": with_vllm("0.8.5.post1", PYTORCH_ALLOC_CONF=ON),
    "off": with_vllm("0.20.0", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:False"),
    "no vllm": s.with_env(s.h200(), PYTORCH_CUDA_ALLOC_CONF=ON),
}


def says(finding: str) -> bool:
    """Return whether the finding's text holds the line to paste."""
    return "unset PYTORCH_" in finding
