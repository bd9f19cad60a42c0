"""Cases for ATN425."""

from __future__ import annotations

from attncheck.core.launch import NOWHERE, Setting, SourceLocation
from attncheck.core.snapshot import Snapshot
from tests import snapshots as s

PLACE = SourceLocation("run.sh", 4)


def rolling_out(framework: str, version: str, **settings: str) -> Snapshot:
    """Return a launch of reinforcement learning in this release with these settings."""
    written = tuple(
        Setting(name.replace("__", "."), value, SourceLocation("run.sh", 4), NOWHERE)
        for name, value in settings.items()
    )
    return s.with_job(
        s.h200(), framework=framework, version=version, trainer="ppo", reinforcement=True, settings=written
    )


FIRES = {
    "verl": rolling_out("verl", "0.9.1"),
    "verl, switched off": rolling_out("verl", "0.9.1", algorithm__rollout_correction__rollout_is="null"),
    "TRL, switched off": rolling_out("trl", "1.16.0", vllm_importance_sampling_correction="False"),
    "OpenRLHF": rolling_out("openrlhf", "0.11.2"),
    "an older OpenRLHF": rolling_out("openrlhf", "0.9.3"),
}
SILENT = {
    "no rollouts": s.with_job(s.h200()),
    "verl before it had one": rolling_out("verl", "0.4.1"),
    "verl, on": rolling_out("verl", "0.9.1", algorithm__rollout_correction__rollout_is="token"),
    "TRL, on by default": rolling_out("trl", "1.16.0"),
    "OpenRLHF, on": rolling_out("openrlhf", "0.11.2", algo__advantage__is_correction_level="token"),
    "a framework that was not read for it": rolling_out("axolotl", "0.19.0"),
}


def says(text: str) -> bool:
    """Return whether the finding says what is not corrected."""
    return "rollouts and training" in text
