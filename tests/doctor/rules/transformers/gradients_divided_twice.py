"""Cases for ATN457."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from attncheck.core.experiments import HALVES, Experiments, TwinMeasurement
from attncheck.core.facts import Unreadable
from attncheck.core.launch import SourceLocation
from attncheck.core.snapshot import Snapshot
from tests import snapshots as s

WRITTEN = {"global_batch": SourceLocation("run.sh", 5)}


def training(transformers: str, steps: int = 2, faults: dict[str, bool] | None = None, **fields: Any) -> Snapshot:
    """Return a launch of TRL's SFT that accumulates under this transformers."""
    laptop = s.with_package(s.laptop(), "transformers", transformers, faults=faults or {})
    return s.with_job(laptop, {"accumulation": steps}, **{"framework": "trl", "locations": WRITTEN, **fields})


def installed(transformers: str, *others: str) -> Snapshot:
    """Return an environment with accelerate and no launch."""
    snapshot = s.with_package(s.laptop(), "transformers", transformers)
    for name in ("accelerate", *others):
        snapshot = s.with_package(snapshot, name, "1.0.0")
    return snapshot


def without_launch(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot without a launch and without accelerate."""
    return replace(snapshot, job=s.Absent("no launch was given"))


def with_ratio(ratio: float) -> Snapshot:
    """Return a launch of a preference loss whose gradients were measured."""
    twin = TwinMeasurement("trl", "dpo", change=HALVES, ratio=ratio, part="" if ratio == 1 else "gradient")
    return replace(training("5.5.0", trainer="dpo"), experiments=s.Known(Experiments(twins=(twin,))))


FIRES = {
    "measured wrong": with_ratio(0.5),
    "GKD that divides": training("5.5.0", trainer="gkd", version="1.7.0"),
    "TRL under 5.3.0": training("5.3.0"),
    "the first with the fault": training("5.2.0"),
    "the last with the fault": training("5.5.3", 8),
    "a preference loss": training("5.5.0", trainer="dpo"),
    "reinforcement learning": training("5.5.0", trainer="grpo"),
    "LLaMA-Factory": training("5.4.0", framework="llamafactory"),
    "axolotl": training("5.5.0", framework="axolotl", version="0.16.1", requires=("transformers==5.5.0",)),
    "the user's own script": training("5.3.0", framework="transformers", trainer="trainer"),
    "ms-swift before it took the steps back": training("5.2.0", framework="ms-swift", version="4.0.1"),
    "read in the files, regardless of the version": training("5.9.0", faults={"ATN457": True}),
    "accelerate's file was not read": training("5.3.0", deepspeed=Unreadable("a.yaml was not read")),
    "no launch: it may accumulate": installed("5.3.0"),
    "no launch, with OpenRLHF and TRL": installed("5.3.0", "openrlhf", "trl"),
}
SILENT = {
    "measured right": with_ratio(1.0),
    "GKD that divides nothing itself": training("5.5.0", trainer="gkd", version="1.6.0"),
    "nothing is accumulated": training("5.3.0", 1),
    "before the fault": training("5.1.0"),
    "after the fault": training("5.5.4"),
    "long after it": training("5.17.0"),
    "repaired by hand": training("5.3.0", faults={"ATN457": False}),
    "DeepSpeed divides nothing": training("5.3.0", deepspeed=s.Known(True)),
    "OpenRLHF has its own loop": training("5.3.0", framework="openrlhf"),
    "verl has its own loop": training("5.3.0", framework="verl"),
    "ms-swift takes the steps back": training("5.2.0", framework="ms-swift", version="4.0.2"),
    "a step that divides nothing itself": training("5.3.0", trainer="online_dpo"),
    "no launch, after the fault": installed("5.5.4"),
    "no launch and no accelerate": without_launch(training("5.3.0")),
    "no launch, OpenRLHF alone": installed("5.3.0", "openrlhf"),
}


def says(text: str) -> bool:
    """Return whether the finding says how often it divides, and the way out."""
    return "twice" in text and ("transformers>=5.5.4" in text or "do not accumulate" in text)
