"""The task that judges a rehearsal: reads the ranks' records and sends the result of each check."""

import copy
import importlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from attncheck.core import codec
from attncheck.core.rehearsal import Objective, Targets
from attncheck.core.results.smoke import CheckResult, Layer, describe_measure, judge_result
from attncheck.rehearsal.worker.records import RankRecord
from attncheck.rehearsal.worker.segments import DocumentIndex
from attncheck.rehearsal.worker.truth import TruthModel
from attncheck.rehearsal.worker.vocabulary import Vocabulary

if TYPE_CHECKING:
    import torch


CHECKS = ("batch", "documents", "update", "loss", "gradients", "learning")
# Consequences of another check's failure: only the cause is named.
CAUSES = {
    "loss": ("batch", "documents"),
    "gradients": ("batch", "documents", "loss", "update"),
    "learning": ("batch", "update", "loss"),
}
OF_STEPS = ("update", "loss", "gradients")  # without a step, "learning" reports that
OF_WEIGHTS = ("loss", "gradients")  # at one point
OTHER_VALUES = "{} computes other values than transformers' {} with the same weights, intentionally or not: {}"
MAX_STEPS = 3  # the most steps that the watcher records
LATER = ("batch", "documents", "loss", "gradients")  # checks that also judge the later steps
ANSWERED = ("documents", "loss", "gradients")  # by the job's own process, if only it has the model's class
# The parts of the training, as the watcher's `script_code.py` names them, that a check judges; others judge the loss.
PARTS = {"batch": ("data",), "documents": ("data",), "update": ("steps",), "learning": ("loss", "steps")}
NAMED = 4  # the most functions of a script in a message
PACKAGE = "attncheck.rehearsal.worker.checks"
REFERENCE = "reference.pt"  # the answers of the job's own process
DEVIATIONS = "deviations"  # in them: how its class differs from transformers'


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
                later = _read_later(Path(message["stage"]), evidence) if later is None else later
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


def _read_later(folder: Path, evidence: Any) -> list[Any]:
    """Return the evidence of each recorded step after the first, without steps whose weights are incomplete.

    Definitions of losses by a reference or by rewards hold only for the first step.
    """
    import torch

    from attncheck.rehearsal.worker import adapters, joining, records, truth

    step, has_memory = evidence.step, evidence.truth.memory is not None  # of answers about the first step
    if step.objective.policy is not None or step.objective.preference is not None or evidence.full_model or has_memory:
        return []
    fill = step.padding or 0  # the synthetic tokenizer's <unk>
    steps: list[Any] = []
    for number in range(2, len(evidence.taken) + 1):
        own_ranks = records.read_ranks(folder / "watch", number)
        if len(own_ranks) != len(step.ranks) or not _are_alike(own_ranks):
            break
        own = own_ranks[0]
        weights = adapters.merge_adapters(own.weights, own.adapters)

        def make(kind: "torch.dtype", autocast: bool, own: RankRecord = own, weights: Any = weights) -> TruthModel:
            options = evidence.truth.temperature, evidence.truth.token_loss
            small = truth.TruthModel(folder / "model", kind, autocast, *options, used=_name_class([own]))
            return small.begin(own, weights, 0.0, evidence.is_guessed)

        model = make(torch.float32, False)
        if not model.can_load(weights) or not _are_known(own, model):
            break
        ranks = joining.join_ranks(own_ranks, step.layout, fill, step.index.vocabulary)
        rounded = _load_rounded(make, *_read_precision(ranks), False)
        own_step = replace(step, ranks=ranks)
        deviations = tuple(model.frequencies)
        steps.append(
            replace(evidence, step=own_step, truth=model, rounded=rounded, changed_weights=(), deviations=deviations)
        )
    return steps


def _name_class(ranks: Sequence[RankRecord]) -> str:
    """Return the class of a job's model; "" if it was not called."""
    return next((call.description["class"] for record in ranks for call in record.calls), "")


def _are_alike(ranks: Sequence[RankRecord]) -> bool:
    """Return whether all ranks start the step from the same weights."""
    first, *others = (record.weights for record in ranks)
    return all(weight.equal(first[name]) for own in others for name, weight in own.items() if name in first)


def _are_known(record: RankRecord, model: TruthModel) -> bool:
    """Return whether the trained model is the original, or adapters that can be merged into it."""
    merged = {adapter.name_weight(matrix) for adapter in record.adapters for matrix in "AB"}
    own = {name for name, _ in model.model.named_parameters()}
    return all(name in own or name in merged for name in record.trainable)


def _read_precision(ranks: Sequence[RankRecord]) -> "tuple[torch.dtype, bool]":
    """Return the dtype of the job's weights, and whether it computes with autocast."""
    import torch

    calls = [call for record in ranks for call in record.calls]
    if not calls:  # as in ms-swift 4.6.0's template of Qwen2-VL
        raise ValueError("the model gets no input_ids: the trainer embeds tokens itself, so the rows are unknown")
    description = calls[0].description
    return getattr(torch, str(description["dtype"]).removeprefix("torch.")), bool(description["autocast"])


def read_evidence(
    folder: Path, watch: Path, objective: Objective, message: Mapping[str, Any], supply: Any = None
) -> Any:
    """Return the evidence of a rehearsal's records.

    `supply` returns `TruthModel`'s model and memory for a dtype, with or without autocast, if it is not the folder's.
    """
    import torch

    from attncheck.rehearsal.worker import (
        adapters,
        explanations,
        joining,
        layouts,
        norms,
        padding,
        records,
        step,
        truth,
        vocabulary,
    )
    from attncheck.rehearsal.worker.evidence import Evidence

    own_ranks = records.read_ranks(watch)
    temperature = objective.policy.temperature if objective.policy is not None else 1.0
    configuration = json.loads((folder / "model" / "config.json").read_text())
    is_guessed, answers = bool(message.get("is_guessed")), {}
    if supply is None and (watch / REFERENCE).exists():
        answers = torch.load(watch / REFERENCE, weights_only=True)
        own_model = truth.Parameters(own_ranks[0].weights, configuration)
        supply = lambda kind, autocast: {"model": own_model, "memory": answers.get(f"{kind} {autocast}", {})}

    def make(kind: "torch.dtype", autocast: bool) -> TruthModel:
        options = temperature, objective.token_loss
        supplied = supply(kind, autocast) if supply else {"used": _name_class(own_ranks)}
        model = truth.TruthModel(folder / "model", kind, autocast, *options, **supplied)
        return model.begin(own_ranks[0], own_ranks[0].weights, truth.SAME_WEIGHTS, is_guessed)

    model = make(torch.float32, False)
    full_model, real_data = bool(message["full_model"]), bool(message["real_data"])
    parameters = dict(model.model.named_parameters())
    if own_ranks[0].weights and parameters.keys().isdisjoint(adapters.merge_adapters(own_ranks[0].weights, ())):
        raise ValueError("the model is of a class of the job's own code, whose reference its process did not compute")
    words = vocabulary.load_vocabulary(folder)
    index, pad_token = _read_rows(folder) if real_data else (_read_index(folder, words), words.padding)
    is_own = full_model or real_data  # of the tokenizer
    filler = padding.choose_filler(own_ranks, pad_token) if is_own else configuration.get("pad_token_id")
    if real_data:
        layout = layouts.keep_rows_whole(own_ranks)
    else:
        # Ranks that hold parts of weights get the same rows.
        is_split = bool(joining.list_parts([own.gradients for own in own_ranks], parameters))
        ring_size = len(own_ranks) if is_split else int(message.get("ring_size", 1))
        layout = layouts.find_layout(own_ranks, index, ring_size)
    fill = filler or 0  # the synthetic tokenizer's <unk>
    ranks = joining.join_ranks(own_ranks, layout, fill, words)
    leading = pad_token if is_own and pad_token is not None else -1
    dtype, autocast = _read_precision(ranks)
    ranks = joining.join_parts(ranks, parameters)
    first_step = step.FirstStep(ranks, index, objective, filler, layout, leading=leading)
    if not first_step.calls[0].description.get(
        "predicts_tokens", True
    ):  # what a classifier optimises is no mean over tokens
        first_step = replace(first_step, objective=replace(objective, is_documented=False, is_mean=False))
    compared = _list_compared(ranks)
    if is_own:
        model.watch_gradients(compared)
    rounded = _load_rounded(make, dtype, autocast, full_model)
    if rounded is not None and is_own:
        rounded.watch_gradients(compared)
    documents = records.read_documents(watch)
    steps = tuple(records.read_steps(documents, lambda rows: joining.join_step_rows(rows, layout, fill, words)))
    rollouts = tuple(records.read_rollouts(watch))
    taken: list[RankRecord] = []
    clipped: list[Any] = []
    for number in range(1, 1 + MAX_STEPS):
        own = records.read_ranks(watch, number)
        taken += own[:1]
        clipped += filter(None, [norms.read_clipped_step(own, parameters)])
    evidence = Evidence(
        first_step,
        steps,
        model,
        rounded,
        tuple(model.changed),
        max((document["unstepped"] for document in documents if not document["steps"]), default=0),
        rollouts,
        full_model,
        tuple(taken),
        tuple(documents[0]["logs"] if documents else ()),
        bool(message.get("freezes")),
        bool(message.get("shares_rows")),
        tuple(dict.fromkeys(name for document in documents for name in document["drawn"])),
        objective.targets == "labelled",
        tuple(records.read_epochs(watch)),
        tuple(clipped),
        len(list(watch.glob("data-set-*"))),
        makes_rows=bool(message.get("makes_rows")),
        replaces_rewards=bool(message.get("replaces_rewards")),
        trained_epochs=message.get("epochs", 0.0),
        rates=tuple(message.get("rates", (0.0, 0.0))),
        is_guessed=is_guessed,
        tokens=vocabulary.count_tokens(folder / "model") if model.is_resized and not is_own else 0,
        deviations=(*model.frequencies, *answers.get(DEVIATIONS, ())),
    )
    return explanations.settle_targets(evidence)


def answer_questions(path: str, model: Any, recorder: Any) -> bool:
    """Write the answers of a job's own model to the questions about its first step, in the job's process.

    Return whether it did: not if the judge can build the model, whose parameters are those of the one in the folder. A
    copy of transformers' class, which has the same names, answers only if it computes other values in isolation.
    """
    import torch

    from attncheck.rehearsal.worker import adapters, first_module, records, truth

    message, watch = json.loads(Path(path).read_text()), Path(recorder.folder)
    if message["full_model"]:
        return False
    folder, objective = Path(message["stage"]), codec.read(Objective, message["objective"])
    memories: dict[str, Any] = {}

    def supply(kind: "torch.dtype", autocast: bool) -> dict[str, Any]:
        own = copy.deepcopy(model, {id(recorder): recorder}).to("cpu", kind).eval()
        own.forward = getattr(own, "_original_forward", own.forward)  # accelerate 1.15.0 accelerator.py: autocast
        return {"model": own, "memory": memories.setdefault(f"{kind} {autocast}", {})}

    with torch.random.fork_rng(devices=[]), without_ranks():
        own_ranks = records.read_ranks(watch)
        small = truth.TruthModel(folder / "model", used=_name_class(own_ranks)).model
        weights = adapters.merge_adapters(own_ranks[0].weights, ())
        if {name for name, _ in small.named_parameters()} <= weights.keys():
            evidence = read_evidence(folder, watch, objective, message)
            piece, error, _ = max(  # of the call whose modules were recorded
                evidence.hidden_errors, key=lambda item: (item[0].call is evidence.step.ranks[0].calls[0], item[1])
            )
            own = truth.TruthModel(folder / "model", **supply(torch.float32, False))
            own.begin(own_ranks[0], own_ranks[0].weights, 0.0, False)
            errors = truth.token_errors(own.describe(piece.tokens).hidden, evidence.describe(piece).hidden)
            if min(error, float(errors.max())) <= evidence.hidden_limit:
                return False
            texts = type(model).__name__, type(small).__name__, *first_module.name_first_module(evidence, piece), "-"
            memories[DEVIATIONS] = [OTHER_VALUES.format(*texts)]
        evidence = read_evidence(folder, watch, objective, message, supply)
        for name in ANSWERED:
            with suppress(Exception):  # the judge comes to the same question
                importlib.import_module(f"{PACKAGE}.{name}").run(evidence)
    torch.save(memories, watch / REFERENCE)
    return True


@contextmanager
def without_ranks() -> Iterator[None]:
    """Let a process compute without the other ranks, which go on: it is alone, and no collective waits for them."""
    import torch
    from torch.distributed import distributed_c10d

    def refuse(*_: Any) -> bool:
        raise NotImplementedError("the other ranks do not compute a reference")

    alone = patch.object(torch.distributed, "is_initialized", lambda: False)
    with alone, patch.object(distributed_c10d, "_rank_not_in_group", refuse):
        yield


def _load_rounded(
    make: "Callable[[torch.dtype, bool], TruthModel]", dtype: "torch.dtype", autocast: bool, full_model: bool
) -> TruthModel | None:
    """Return the model in the job's own precision; for float32 in float64, which shows float32's rounding.

    None if that may not fit in memory, or has no kernels: torch 2.13.0 `_grouped_mm` does not support float64.
    """
    import torch

    if dtype != torch.float32 or autocast:
        return make(dtype, autocast)
    if full_model:
        return None
    exact = make(torch.float64, False)
    try:
        exact.describe((0, 1))
    except RuntimeError:
        return None
    return exact


def _read_index(folder: Path, words: Vocabulary) -> DocumentIndex:
    """Return the synthetic documents."""
    from attncheck.rehearsal.worker import multimodal, segments

    documents = segments.read_documents(json.loads((folder / "documents.json").read_text()))
    return segments.DocumentIndex(documents, words, multimodal.read_placeholders(folder))


def _read_rows(folder: Path) -> tuple[DocumentIndex, int | None]:
    """Return the rows of the user's data, and the padding token."""
    from attncheck.rehearsal.worker import own_data, own_rows

    content = json.loads((folder / own_data.FILE).read_text())
    return own_rows.RowIndex(content["rows"], content["end"]), content["padding"]


def _list_compared(ranks: Sequence[RankRecord]) -> set[str]:
    """Return the parameters whose gradients are needed: recorded ones, and those below adapters."""
    names = {name for record in ranks for name in (*record.trainable, *record.gradients)}
    return names | {f"{adapter.layer}.weight" for record in ranks for adapter in record.adapters}


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
