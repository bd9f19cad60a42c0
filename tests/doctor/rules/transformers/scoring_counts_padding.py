"""Cases for ATN468."""

from __future__ import annotations

from dataclasses import replace

from attncheck.core.experiments import Experiments, ScoringMeasurement
from attncheck.core.snapshot import Snapshot
from tests import snapshots as s


def with_scorings(*scorings: ScoringMeasurement) -> Snapshot:
    snapshot = replace(s.h200(), model=s.Absent("no model was given"))
    return replace(snapshot, experiments=s.Known(Experiments(scorings=scorings)))


def with_launch(snapshot: Snapshot, model: str, trainer: str = "grpo") -> Snapshot:
    return s.with_job(snapshot, framework="trl", trainer=trainer, model=model)


SHIFTED = with_scorings(ScoringMeasurement("trl", "grpo", 1.2, 1e-7))
MASKLESS = with_scorings(ScoringMeasurement("trl", "rloo", 1.2, 0.9))
FIRES = {
    "a launch of GPT-2": with_launch(SHIFTED, "openai-community/gpt2"),
    "tokens attend to padding": MASKLESS,
    "tokens attend to padding, in a launch": with_launch(MASKLESS, "Qwen/Qwen3-0.6B", "rloo"),
}
SILENT = {
    "nothing was measured": s.h200(),
    "positions count the padding, and no launch": SHIFTED,
    "a launch of a rotary model": with_launch(SHIFTED, "EleutherAI/gpt-neox-20b"),
    "a launch of another trainer": with_launch(SHIFTED, "openai-community/gpt2", "rloo"),
    "measured right": with_launch(with_scorings(ScoringMeasurement("trl", "grpo", 1e-7, 1.2)), "openai-community/gpt2"),
    "could not be measured": with_launch(
        with_scorings(ScoringMeasurement("trl", "grpo", error="TypeError")), "openai-community/gpt2"
    ),
}
