"""Reads the records of a rehearsal's ranks into the evidence that the checks judge."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from attncheck.core.rehearsal import Objective
from attncheck.rehearsal.worker.layouts import Layout
from attncheck.rehearsal.worker.norms import ClippedStep
from attncheck.rehearsal.worker.records import RankRecord
from attncheck.rehearsal.worker.segments import DocumentIndex
from attncheck.rehearsal.worker.truth import TruthModel
from attncheck.rehearsal.worker.vocabulary import Vocabulary, load_vocabulary

REFERENCE = "reference.pt"  # the answers of the job's own process
DEVIATIONS = "deviations"  # in them: how its class differs from transformers'
MAX_STEPS = 3  # the most steps that the watcher records


def read_evidence(
    folder: Path, watch: Path, objective: Objective, message: Mapping[str, Any], supply: Any = None
) -> Any:
    """Return the evidence of a rehearsal's records.

    `supply` returns `TruthModel`'s model and memory for a dtype, with or without autocast, if it is not the folder's.
    """
    from attncheck.rehearsal.worker import adapters, explanations, joining, records, step, truth, vocabulary
    from attncheck.rehearsal.worker.evidence import Evidence

    own_ranks = records.read_ranks(watch)
    temperature = objective.policy.temperature if objective.policy is not None else 1.0
    configuration = json.loads((folder / "model" / "config.json").read_text())
    is_guessed, answers = bool(message.get("is_guessed")), {}
    if supply is None and (watch / REFERENCE).exists():
        answers = torch.load(watch / REFERENCE, weights_only=True)
        own_model = truth.Parameters(own_ranks[0].weights, configuration)
        supply = lambda kind, autocast: {"model": own_model, "memory": answers.get(f"{kind} {autocast}", {})}

    def make(kind: torch.dtype, autocast: bool) -> TruthModel:
        options = temperature, objective.token_loss
        supplied = supply(kind, autocast) if supply else {"used": name_class(own_ranks)}
        model = truth.TruthModel(folder / "model", kind, autocast, *options, **supplied)
        return model.begin(own_ranks[0], own_ranks[0].weights, truth.SAME_WEIGHTS, is_guessed)

    model = make(torch.float32, False)
    full_model, is_own = bool(message["full_model"]), bool(message["full_model"] or message["real_data"])
    parameters = dict(model.model.named_parameters())
    if own_ranks[0].weights and parameters.keys().isdisjoint(adapters.merge_adapters(own_ranks[0].weights, ())):
        raise ValueError("the model is of a class of the job's own code, whose reference its process did not compute")
    words = vocabulary.load_vocabulary(folder)
    rows = _find_rows(folder, own_ranks, message, configuration.get("pad_token_id"), parameters)
    ranks = joining.join_ranks(own_ranks, rows.layout, rows.fill, words)
    dtype, autocast = read_precision(ranks)
    ranks = joining.join_parts(ranks, parameters)
    first_step = step.FirstStep(ranks, rows.index, objective, rows.padding, rows.layout, leading=rows.leading)
    if not first_step.calls[0].description.get(
        "predicts_tokens", True
    ):  # what a classifier optimises is no mean over tokens
        first_step = replace(first_step, objective=replace(objective, is_documented=False, is_mean=False))
    rounded = _load_rounded(make, dtype, autocast, full_model)
    for reference in (model, rounded) if is_own else ():
        if reference is not None:
            reference.watch_gradients(_list_compared(ranks))
    documents = records.read_documents(watch)
    join_rows = partial(joining.join_step_rows, layout=rows.layout, padding=rows.fill, vocabulary=words)
    taken, clipped = _read_steps(watch, parameters)
    evidence = Evidence(
        first_step,
        tuple(records.read_steps(documents, join_rows)),
        model,
        rounded,
        changed_weights=tuple(model.changed),
        unstepped=max((document["unstepped"] for document in documents if not document["steps"]), default=0),
        rollouts=tuple(records.read_rollouts(watch)),
        full_model=full_model,
        taken=taken,
        logs=tuple(documents[0]["logs"] if documents else ()),
        freezes=bool(message.get("freezes")),
        shares_rows=bool(message.get("shares_rows")),
        drawn=tuple(dict.fromkeys(name for document in documents for name in document["drawn"])),
        is_own_script=objective.targets == "labelled",
        epochs=tuple(records.read_epochs(watch)),
        clipped=clipped,
        data_sets=len(list(watch.glob("data-set-*"))),
        makes_rows=bool(message.get("makes_rows")),
        replaces_rewards=bool(message.get("replaces_rewards")),
        trained_epochs=message.get("epochs", 0.0),
        rates=tuple(message.get("rates", (0.0, 0.0))),
        is_guessed=is_guessed,
        tokens=vocabulary.count_tokens(folder / "model") if model.is_resized and not is_own else 0,
        deviations=(*model.frequencies, *answers.get(DEVIATIONS, ())),
    )
    return explanations.settle_targets(evidence)


@dataclass(frozen=True)
class _Rows:
    """How rows are read: the documents or the user's rows, the padding token, and how ranks split rows."""

    index: Any
    padding: int | None
    layout: Layout
    leading: int = -1  # a token that is padding if several of it begin a row, and may end documents; -1: none

    @property
    def fill(self) -> int:
        """The padding token, else the synthetic tokenizer's <unk>."""
        return self.padding or 0


def _find_rows(
    folder: Path, ranks: Sequence[RankRecord], message: Mapping[str, Any], padding: int | None, parameters: Any
) -> _Rows:
    """Return how the ranks' rows are read; `padding` is the token of the model's configuration."""
    from attncheck.rehearsal.worker import joining, layouts
    from attncheck.rehearsal.worker.padding import choose_filler

    words = load_vocabulary(folder)
    if message["real_data"]:
        index, token = _read_rows(folder)
        layout = layouts.keep_rows_whole(ranks)
    else:
        index, token = _read_index(folder, words), words.padding
        # Ranks that hold parts of weights get the same rows.
        is_split = bool(joining.list_parts([own.gradients for own in ranks], parameters))
        layout = layouts.find_layout(ranks, index, len(ranks) if is_split else int(message.get("ring_size", 1)))
        if not message["full_model"]:
            return _Rows(index, padding, layout)
    return _Rows(index, choose_filler(ranks, token), layout, -1 if token is None else token)


def _read_steps(watch: Path, parameters: Mapping[str, Any]) -> tuple[tuple[RankRecord, ...], tuple[ClippedStep, ...]]:
    """Return the first rank's record of each recorded step, and the steps of ranks that hold parts of weights."""
    from attncheck.rehearsal.worker import norms, records

    taken: list[RankRecord] = []
    clipped: list[ClippedStep] = []
    for number in range(1, 1 + MAX_STEPS):
        own = records.read_ranks(watch, number)
        taken += own[:1]
        clipped += filter(None, [norms.read_clipped_step(own, parameters)])
    return tuple(taken), tuple(clipped)


def read_later(folder: Path, evidence: Any) -> list[Any]:
    """Return the evidence of each recorded step after the first, without steps whose weights are incomplete.

    Definitions of losses by a reference or by rewards hold only for the first step.
    """
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

        def make(kind: torch.dtype, autocast: bool, own: RankRecord = own, weights: Any = weights) -> TruthModel:
            options = evidence.truth.temperature, evidence.truth.token_loss
            small = truth.TruthModel(folder / "model", kind, autocast, *options, used=name_class([own]))
            return small.begin(own, weights, 0.0, evidence.is_guessed)

        model = make(torch.float32, False)
        if not model.can_load(weights) or not _are_known(own, model):
            break
        ranks = joining.join_ranks(own_ranks, step.layout, fill, step.index.vocabulary)
        rounded = _load_rounded(make, *read_precision(ranks), False)
        own_step = replace(step, ranks=ranks)
        deviations = tuple(model.frequencies)
        steps.append(
            replace(evidence, step=own_step, truth=model, rounded=rounded, changed_weights=(), deviations=deviations)
        )
    return steps


def name_class(ranks: Sequence[RankRecord]) -> str:
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


def read_precision(ranks: Sequence[RankRecord]) -> tuple[torch.dtype, bool]:
    """Return the dtype of the job's weights, and whether it computes with autocast."""
    calls = [call for record in ranks for call in record.calls]
    if not calls:  # as in ms-swift 4.6.0's template of Qwen2-VL
        raise ValueError("the model gets no input_ids: the trainer embeds tokens itself, so the rows are unknown")
    description = calls[0].description
    return getattr(torch, str(description["dtype"]).removeprefix("torch.")), bool(description["autocast"])


def _load_rounded(
    make: Callable[[torch.dtype, bool], TruthModel], dtype: torch.dtype, autocast: bool, full_model: bool
) -> TruthModel | None:
    """Return the model in the job's own precision; for float32 in float64, which shows float32's rounding.

    None if that may not fit in memory, or has no kernels: torch 2.13.0 `_grouped_mm` does not support float64.
    """
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
