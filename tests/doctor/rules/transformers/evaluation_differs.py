"""Cases for ATN469."""

from __future__ import annotations

from dataclasses import replace

from attncheck.core.experiments import EvaluationMeasurement, Experiments
from attncheck.core.launch import Setting, SourceLocation
from attncheck.core.snapshot import Snapshot
from tests import snapshots as s


def with_evaluations(*evaluations: EvaluationMeasurement) -> Snapshot:
    return replace(s.h200(), experiments=s.Known(Experiments(evaluations=evaluations)))


def with_launch(snapshot: Snapshot, trainer: str, plan: dict[str, object] | None = None, **values: str) -> Snapshot:
    settings = [Setting(f"--{name}", text, SourceLocation("run.sh", 3, 1), (0, 1)) for name, text in values.items()]
    return s.with_job(snapshot, plan or {}, framework="trl", trainer=trainer, settings=tuple(settings))


ERROR = "AttributeError: no attribute"
FAILS = with_evaluations(EvaluationMeasurement("trl", "online_dpo", error=ERROR))
ONE_LOSS = with_evaluations(EvaluationMeasurement("trl", "grpo loss_type=grpo", error=ERROR, at_start=True))
BY_ROW = with_evaluations(
    EvaluationMeasurement("transformers", by_row=0.877), EvaluationMeasurement("trl", by_row=0.877)
)
PADDED: dict[str, object] = {"packing": "padding"}
FIRES = {
    "a launch whose evaluation loss is one": with_launch(BY_ROW, "sft", PADDED, eval_strategy="steps"),
    "it fails": FAILS,
    "twice the training loss": with_evaluations(EvaluationMeasurement("transformers", ratio=2.0)),
    "a launch that evaluates": with_launch(FAILS, "online_dpo", eval_strategy="steps"),
    "a launch with that loss": with_launch(ONE_LOSS, "grpo", eval_on_start="true", loss_type="grpo"),
}
SILENT = {
    "nothing was measured": s.h200(),
    "a mean over batches, and no launch": BY_ROW,
    "one by one the same loss": with_evaluations(EvaluationMeasurement("transformers", by_row=1.0001)),
    "a launch without evaluation": with_launch(BY_ROW, "sft", PADDED, eval_strategy="no"),
    "rows that are packed, so about equally long": with_launch(BY_ROW, "sft", eval_strategy="steps"),
    "the same loss": with_evaluations(EvaluationMeasurement("trl")),
    "one label more in a row": with_evaluations(EvaluationMeasurement("trl", ratio=17 / 16)),
    "training fails too": with_evaluations(EvaluationMeasurement("trl", "dpo", unmeasured="TypeError")),
    "a trainer that was not made to evaluate": with_evaluations(EvaluationMeasurement("ms-swift", error=ERROR)),
    "a launch that does not evaluate": with_launch(FAILS, "online_dpo", eval_strategy="no"),
    "a launch of another objective": with_launch(FAILS, "grpo", eval_strategy="steps"),
    "a launch that evaluates later only": with_launch(ONE_LOSS, "grpo", eval_strategy="steps", loss_type="grpo"),
    "a launch with another loss": with_launch(ONE_LOSS, "grpo", eval_on_start="true", loss_type="dapo"),
}
