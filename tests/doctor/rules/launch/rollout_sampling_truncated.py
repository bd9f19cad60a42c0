"""Cases for ATN424."""

from __future__ import annotations

from attncheck.core.launch import NOWHERE, Setting, SourceLocation
from attncheck.core.snapshot import Snapshot
from tests import snapshots as s


def sampling(
    name: str, value: str, framework: str = "trl", reinforcement: bool = True, trainer: str = "ppo"
) -> Snapshot:
    """Return a launch with this setting of its rollouts."""
    setting = Setting(name, value, SourceLocation("run.sh", 4), NOWHERE)
    return s.with_job(
        s.h200(),
        framework=framework,
        version="1.16.0",
        trainer=trainer,
        reinforcement=reinforcement,
        settings=(setting,),
    )


FIRES = {
    "TRL's top_p": sampling("--top_p", "0.95"),
    "TRL's top_k": sampling("--top_k", "50", "trl"),
    "min_p": sampling("--min_p", "0.05", "trl"),
    "a group of the same completions": sampling("top_k", "1", "trl", trainer="grpo"),
}
SILENT = {
    "no rollouts": sampling("--top_p", "0.9", reinforcement=False),
    "nothing is weighed by the rollouts": sampling("actor_rollout_ref.rollout.top_p", "0.95", "verl"),
    "the whole distribution": sampling("--top_p", "1.0"),
    "of an evaluation": sampling("eval_top_k", "1", trainer="grpo"),
    "no top_k": sampling("actor_rollout_ref.rollout.top_k", "-1"),
    "of validation": sampling("actor_rollout_ref.rollout.val_kwargs.top_p", "0.7"),
    "a value that is known only at run time": sampling("--top_p", "$TOP_P"),
}


def says(text: str) -> bool:
    """Return whether the finding names the setting and its whole value."""
    is_named = "scores over the whole vocabulary" in text or "top_k 1: all completions" in text
    return is_named and "sample from the whole distribution, as training does" in text
