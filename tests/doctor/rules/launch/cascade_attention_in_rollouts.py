"""Cases for ATN426."""

from __future__ import annotations

from attncheck.core.launch import NOWHERE, Setting, SourceLocation
from attncheck.core.snapshot import Snapshot
from tests import snapshots as s

A100 = (8, 0)


PLACE = SourceLocation("run.sh", 4)


def rolling_out(snapshot: Snapshot, vllm: str = "0.11.0", **settings: str) -> Snapshot:
    """Return a verl launch next to this vllm with these settings."""
    written = tuple(
        Setting(name.replace("__", "."), value, SourceLocation("run.sh", 4), NOWHERE)
        for name, value in settings.items()
    )
    return s.with_job(
        s.with_package(snapshot, "vllm", vllm),
        framework="verl", version="0.9.1", trainer="ppo", reinforcement=True, settings=written,
    )  # fmt: skip


FIRES = {
    "eight A100": rolling_out(s.with_gpus(s.h200(), *[A100] * 8)),
    "a B200": rolling_out(s.with_gpus(s.h200(), (10, 0))),
}
SILENT = {
    "an H200": rolling_out(s.h200()),
    "switched off": rolling_out(s.with_gpus(s.h200(), A100), engine_kwargs__vllm__disable_cascade_attn="True"),
    "SGLang": rolling_out(s.with_gpus(s.h200(), A100), actor_rollout_ref__rollout__name="sglang"),
    "a vllm in which it is opt-in": rolling_out(s.with_gpus(s.h200(), A100), "0.20.0"),
    "no rollouts": s.with_job(s.with_package(s.with_gpus(s.h200(), A100), "vllm", "0.11.0")),
}


def says(text: str) -> bool:
    """Return whether the finding names cascade attention and the switch."""
    return "cascade attention" in text and "disable_cascade_attn=True" in text
