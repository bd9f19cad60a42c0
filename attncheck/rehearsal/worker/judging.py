"""The task that judges a rehearsal: reads the ranks' records and sends the result of each check."""

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from attncheck.core import codec
from attncheck.core.rehearsal import Objective, Targets
from attncheck.core.results.smoke import CheckResult, Layer, describe_measure, judge_result
from attncheck.rehearsal.worker.reading import read_evidence, read_later
from attncheck.rehearsal.worker.records import RankRecord

CHECKS = ("batch", "documents", "update", "loss", "gradients", "learning")
# Consequences of another check's failure: only the cause is named.
CAUSES = {
    "loss": ("batch", "documents"),
    "gradients": ("batch", "documents", "loss", "update"),
    "learning": ("batch", "update", "loss"),
}
OF_STEPS = ("update", "loss", "gradients")  # without a step, "learning" reports that
OF_WEIGHTS = ("loss", "gradients")  # at one point
LATER = ("batch", "documents", "loss", "gradients")  # checks that also judge the later steps
# The parts of the training, as the watcher's `script_code.py` names them, that a check judges; others judge the loss.
PARTS = {"batch": ("data",), "documents": ("data",), "update": ("steps",), "learning": ("loss", "steps")}
NAMED = 4  # the most functions of a script in a message
PACKAGE = "attncheck.rehearsal.worker.checks"


def judge(message: dict[str, Any], send: Callable[[dict[str, Any]], None]) -> None:
    """Handle a job of check names; `message` has the folder and the objective.

    With `message["full_model"]` the model is the user's own; with `message["real_data"]` the data are.
    """
    import torch

    import attncheck.rehearsal.worker.libraries  # noqa: F401  (first, if the process was not forked)
    from attncheck.attention.device import describe_exception
    from attncheck.rehearsal.worker.checks.batch import describe_noise
    from attncheck.rehearsal.worker.checks.documents import ONLY_ON_GPU
    from attncheck.rehearsal.worker.own_rows import UNTOLD

    torch.set_num_threads(int(message.get("threads", 1)))
    evidence: Any = None
    later: list[Any] | None = None
    failed: list[str] = []
    for item in message["items"]:
        send({"started": item})
        if item == "labels":
            result = _judge_labels(Path(message["stage"]), message["targets"])
            send({"item": item, "answer": codec.to_plain(result)})
            continue
        try:
            if evidence is None:
                objective = codec.read(Objective, message["objective"])
                folder = Path(message["stage"])
                evidence = read_evidence(folder, folder / "watch", objective, message)
                send({"device": evidence.step.calls[0].description["device"]})  # on which the launch trained
            if not evidence.judged_pieces and item != "update":  # which follows from weights and gradients
                raise ValueError("no input token belongs to a document: the data or the tokenizer differ")
            if item in LATER and (noise := describe_noise(evidence, item)):
                result = CheckResult(item, "skipped", noise)
            elif evidence.unstepped and item in OF_STEPS:
                result = CheckResult(item, "skipped", "no optimiser took a step")
            elif "documents" in failed and item in OF_WEIGHTS:
                result = CheckResult(item, "skipped")  # before its costly search for an explanation
            elif item in OF_WEIGHTS and any(call.description.get("moved") for call in evidence.step.calls):
                result = CheckResult(
                    item, "skipped", "unknown: a step passes a batch twice, or changes the weights between"
                )
            else:
                result = importlib.import_module(f"{PACKAGE}.{item}").run(evidence)
            if item in LATER and judge_result(result) in ("pass", "warn"):
                later = read_later(Path(message["stage"]), evidence) if later is None else later
                result = _judge_later(result, later)
        except Exception as error:
            result = CheckResult(item, "skipped", f"it cannot be judged: {describe_exception(error)}")
        if item == "documents" and evidence is not None and result.outcome == "ok":
            record = evidence.step.ranks[0]
            requested = str(record.calls[0].description["attn_implementation"])
            notes = (*result.notes, *describe_patches(record))
            result = replace(result, layers=collect_layers(list(record.layers), requested), notes=notes)
        if evidence is not None and judge_result(result) in ("fail", "warn"):
            result = replace(result, notes=(*result.notes, *name_code(item, evidence.taken)))
        if evidence is not None and judge_result(result) in ("pass", "warn"):
            result = replace(result, notes=(*result.notes, describe_asked(evidence)))
        result = skip_what_follows(result, failed)
        failed += [item] * (judge_result(result) == "fail" or result.reason.endswith((UNTOLD, ONLY_ON_GPU)))
        send({"item": item, "answer": codec.to_plain(result)})


def _judge_labels(folder: Path, targets: Targets) -> CheckResult:
    """Return whether the labels of the user's rows are those of the turns that the launch should learn."""
    from attncheck.rehearsal.worker import labels, own_labels, records

    recorded = [call for record in records.read_ranks(folder / "watch") for call in record.calls]
    calls: list[dict[str, Any]] = [{**call.tensors, "learned": call.description.get("learned")} for call in recorded]
    rows = [{name: value.tolist() for name, value in own.items() if getattr(value, "ndim", 0) == 2} for own in calls]
    answer = labels.read_labels(folder, rows, targets, False, own_labels.OwnTurnFinder)
    if isinstance(answer, str):
        return CheckResult("labels", "skipped", answer)
    counts = (f"{count['role']}: {count['learned']} of {count['tokens']} tokens learned" for count in answer["counts"])
    return CheckResult("labels", violations=tuple(answer["problems"]), notes=(*answer["notes"], *counts))


def skip_what_follows(result: CheckResult, failed: Sequence[str]) -> CheckResult:
    """Return a result as skipped if an earlier check's failure causes this one."""
    causes = [name for name in CAUSES.get(result.check, ()) if name in failed]
    if judge_result(result) not in ("fail", "skipped") or not causes:
        return result
    return CheckResult(
        result.check, "skipped", f"not judged: a consequence of the failed {causes[0]} check", notes=result.notes
    )


def _judge_later(result: CheckResult, later: Sequence[Any]) -> CheckResult:
    """Return a result of the first step, extended by the first later step with a fault of the same check."""
    run = importlib.import_module(f"{PACKAGE}.{result.check}").run
    judged = []
    for number, evidence in enumerate(later, 2):
        other = run(evidence)
        if judge_result(other) == "fail":
            violations = other.violations or tuple(describe_measure(m) for m in other.measures if m.beyond)
            return replace(result, violations=tuple(f"step {number}: {text}" for text in violations))
        judged += [str(number)] * (other.outcome == "ok")
    notes = (f"the same holds for step {' and '.join(judged)}",) if judged else ()
    return replace(result, notes=(*result.notes, *notes))


def describe_asked(evidence: Any) -> str:
    """Return the job that an answer holds for."""
    step, description = evidence.step, evidence.step.calls[0].description
    kind, attention = description["class"].rpartition(".")[2], description["attn_implementation"] or "its own attention"
    dtype = f"{description['dtype'].removeprefix('torch.')}{' with autocast' if description['autocast'] else ''}"
    rows = [int(call.input_ids.shape[0]) for call in step.calls]
    return (
        f"asked of {kind}, {attention}, {dtype}, ranks: {len(step.ranks)}, accumulated batches: {evidence.batches}, "
        f"rows of a batch: {max(rows)}, documents per row: {len(step.pieces) / max(1, sum(rows)):.3g}, longest row: "
        f"{max(int(call.input_ids.shape[-1]) for call in step.calls)}; {step.objective.text}"
        + ("; the job's own class computed the reference" if evidence.truth.memory is not None else "")
    )


def name_code(check: str, taken: Sequence[RankRecord]) -> Iterator[str]:
    """Yield the script's own code that computes what a check judges."""
    code = taken[0].code if taken else {}
    names = [name for part in PARTS.get(check, ("loss",)) for name in code.get(part, ())]
    if names:
        yield f"the script's own code for this: {'; '.join(names[:NAMED])}{' and others' * (len(names) > NAMED)}"


def describe_patches(record: RankRecord) -> Iterator[str]:
    """Yield the functions that compute the model and its loss, and loaded packages that patch models."""
    description = record.calls[0].description
    loss = description.get("loss_function")
    yield f"the model's forward is {description['forward']}" + (f", its loss function {loss}" if loss else "")
    if record.packages:
        yield f"loaded packages that patch models: {', '.join(record.packages)}"


def collect_layers(layers: list[dict[str, Any]], requested: str) -> tuple[Layer, ...]:
    """Return, for each attention layer, the requested, the dispatched and the actual implementation."""
    from attncheck.smoke.worker.attention_trace import name_operators

    return tuple(
        Layer(layer["name"], "", requested, layer["dispatched"], name_operators(layer["operators"]), ())
        for layer in layers
    )
