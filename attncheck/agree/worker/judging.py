"""Compares an engine's log-probabilities with the trainer's: the distance, its limit, and its cause.

Both are compared with the exact values: the same weights in float64, one document at a time, with transformers' eager
attention. The effect of rounding is measured with the same weights in each side's precision. The floor is each side
compared with itself in another batch shape.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from attncheck.agree.worker import causes, routes, scoring
from attncheck.agree.worker.engines import Generated
from attncheck.agree.worker.hypotheses import Context
from attncheck.agree.worker.models import Sample, computing, gather, load_model, rms
from attncheck.agree.worker.scoring import Scored
from attncheck.core.agreement import Rollout, Scoring
from attncheck.core.plan import Precision
from attncheck.core.results.agree import AgreedModel, Cause, Distance, Side
from attncheck.rehearsal.worker.records import RolloutRecord, read_rollouts
from attncheck.smoke.worker.testbed import DTYPES

FLOOR_MULTIPLE = 3.0  # times the floors of both sides and the difference of their precisions
ROUNDING_MULTIPLE = 2.0  # times the coarser precision's error with eager attention
TYPICAL = 1.5  # times rounding's median error: a few tokens that are sent to other experts do not raise it so far
EXACT_PARAMETERS = 300_000_000  # larger models have exact values in float32, because float64 takes twice the memory
SIDES: tuple[Side, Side] = ("engine", "trainer")
KL_TOKENS = 256


@dataclass(frozen=True)
class Exact:
    """The exact logits and hidden states of each sample, the same in each side's precision, and the exact model."""

    logits: list[Tensor]
    hidden: list[tuple[Tensor, ...]]
    rounded: dict[Precision, list[Scored]]
    model: Any


@dataclass(frozen=True)
class Yardstick:
    """The exact log-probabilities, and what rounding makes of them: each side's values, their errors and the gap."""

    truth: Tensor
    rounded: list[Tensor]
    roundings: list[float]
    gap: float


def measure_distance(
    actual: Tensor, expected: Tensor, clip: tuple[float, float], of: Literal["both", "engine", "trainer"] = "both"
) -> Distance:
    """Return the distance of log-probabilities; `clip` is the loss's range below and above a ratio of 1."""
    difference = (actual.double() - expected.double()).nan_to_num(math.inf)
    size = difference.abs()
    ratio = difference.exp()

    def share(low: float, high: float) -> float:
        return float(((ratio < low) | (ratio > high)).double().mean())

    return Distance(
        of,
        len(size),
        float(difference.mean()),
        float(size.mean()),
        float(size.square().mean().sqrt()),
        float(size.quantile(0.99)),
        float(size.max()),
        share(0.9, 1.1),
        share(1 - clip[0], 1 + clip[1]),
        bool((difference == 0).all()),
    )


def judge(
    folder: str,
    engine_folder: str,
    generated: Generated,
    own: Mapping[int, RolloutRecord],
    rollout: Rollout,
    scoring_plan: Scoring,
    device: str,
    progress: Callable[[str], None],
) -> AgreedModel:
    """Return the comparison of an engine's samples with the trainer's scoring of them.

    `own` are the rollouts that the launch's own code scored, by number; without them its scoring is reproduced.
    """
    progress("scoring as the trainer does")
    numbers = [number for number, sample in enumerate(generated.samples) if _is_of(own.get(number), sample)]
    rewritten = _find_other_tokens(own, generated.samples)
    if numbers:
        generated = _select(generated, numbers)
    generated, trainer = _score_by_trainer(folder, generated, scoring_plan, device)
    samples, scoring_plan = generated.samples, trainer.loaded.scoring
    by_trainer = trainer.reproduced
    if numbers:
        by_trainer = torch.cat([torch.tensor(own[number].log_probabilities) for number in numbers]).double()
    by_engine = torch.cat([torch.tensor(sample.log_probabilities) for sample in samples]).double()
    observed = (by_engine, by_trainer)
    progress("computing the exact values")
    precisions: list[Precision] = [rollout.precision, scoring_plan.precision]
    exact = _compute_exact(folder, generated, scoring_plan, precisions, device)
    yardstick = _measure_rounding(exact, samples, replace(scoring_plan, temperature=rollout.temperature), precisions)
    distances = [measure_distance(by_engine, by_trainer, scoring_plan.clip)]
    if generated.first:
        again = torch.cat(generated.first), torch.cat(generated.again)
        distances.append(measure_distance(*again, scoring_plan.clip, "engine"))
    distances.append(measure_distance(trainer.reshaped, trainer.reproduced, scoring_plan.clip, "trainer"))
    errors = [rms(values - yardstick.truth) for values in observed]
    limit = _find_limit(distances, observed, yardstick)
    compared = _compare_own(own, numbers, by_trainer, trainer.reproduced, limit)
    result = AgreedModel(
        name="",
        model="",
        rollout=rollout,
        scoring=scoring_plan,
        distances=tuple(distances),
        limit=limit,
        engine_error=_bound(errors[0]),
        trainer_error=_bound(errors[1]),
        engine_rounding=yardstick.roundings[0],
        trainer_rounding=yardstick.roundings[1],
        precision_gap=yardstick.gap,
        engine_version=generated.version,
        notes=(*trainer.loaded.texts, *generated.notes, *compared),
        own_code=bool(numbers),
    )
    result = _add_routes(_add_kl(result, generated, trainer.scored), generated, trainer.scored)
    result = _add_first_layer(result, generated, trainer.scored, exact)
    if not result.differs:
        return replace(result, causes=rewritten, notes=(*result.notes, *_list_common_errors(result)))
    context = Context(
        folder, engine_folder, samples, rollout, scoring_plan, exact.model, device, exact.logits, progress
    )
    result = _explain(result, context, observed, errors, yardstick.roundings)
    return replace(result, causes=(*rewritten, *result.causes))


def _score_by_trainer(
    folder: str, generated: Generated, plan: Scoring, device: str
) -> tuple[Generated, "TrainerScores"]:
    """Return the samples as far as the trainer's vocabulary reaches, and the trainer's scores of them."""
    trainer, loaded = load_trainer(folder, plan, device)
    generated = _cut_unknown_tokens(generated, trainer.get_input_embeddings().weight.shape[0])
    plan = loaded.scoring
    trainer.train(plan.dropout != "off")
    for module in trainer.modules():
        if plan.dropout == "functional" and isinstance(module, torch.nn.Dropout):
            module.eval()
    scored = scoring.score(trainer, generated.samples, plan, with_hidden=True)
    reshaped = scoring.score(trainer, generated.samples, _reshape(plan))
    reproduced, other = (_join(scores, generated.samples, plan) for scores in (scored, reshaped))
    return generated, TrainerScores(loaded, scored, reproduced, other)


def _measure_rounding(
    exact: Exact, samples: Sequence[Sample], plan: Scoring, precisions: Sequence[Precision]
) -> Yardstick:
    """Return the exact log-probabilities at the engine's temperature, and what each side's precision makes of them."""
    truth = _score_exactly(exact.logits, samples, plan.temperature)
    rounded = [_join(exact.rounded[precision], samples, plan) for precision in precisions]
    return Yardstick(truth, rounded, [rms(values - truth) for values in rounded], rms(rounded[0] - rounded[1]))


def _find_limit(distances: Sequence[Distance], observed: tuple[Tensor, Tensor], yardstick: Yardstick) -> float:
    """Return the distance, in nats, up to which rounding and the floors of both sides explain a difference."""
    rounding = ROUNDING_MULTIPLE * max(yardstick.roundings)
    # Beyond rounding the batch shape is the fault, and does not excuse a difference.
    noise = [
        min(floor.rms, ROUNDING_MULTIPLE * yardstick.roundings[SIDES.index(floor.of)])
        for floor in distances
        if floor.of != "both"
    ]
    limit = max(FLOOR_MULTIPLE * math.hypot(*noise, yardstick.gap), rounding)
    sides = zip(observed, yardstick.rounded, strict=True)
    if sum(_is_off(*values, yardstick.truth) for values in sides) == 1:
        limit = min(limit, rounding)  # noise of batches would show on both sides
    return limit


def _find_other_tokens(own: Mapping[int, RolloutRecord], samples: Sequence[Sample]) -> tuple[Cause, ...]:
    """Return the cause of a launch that scores other responses than the engine wrote; cutting them is none."""
    for number, record in own.items():
        written = samples[number].response
        place = next((place for place, pair in enumerate(zip(record.response, written)) if pair[0] != pair[1]), None)
        if place is not None:
            count = sum(own[other].response != samples[other].response for other in own)
            text = (
                f"{count} of {len(own)} responses have other tokens than the engine wrote "
                f"(response {number}, token {place + 1}: {record.response[place]} instead of {written[place]})"
            )
            remedy = "give the trainer the engine's token ids, instead of tokenising its text again"
            return (Cause("trainer", "other-tokens", text, 0.0, remedy, closes=False),)
    return ()


def _is_off(values: Tensor, rounded: Tensor, truth: Tensor) -> bool:
    """Return whether the errors of a side are larger than rounding: all together, and those of most tokens."""
    error, rounding = (values - truth).abs(), (rounded - truth).abs()
    return rms(error) > ROUNDING_MULTIPLE * rms(rounding) and float(error.median()) > TYPICAL * float(rounding.median())


def read_own(folder: Path) -> dict[int, RolloutRecord]:
    """Return the rollouts that a launch scored in its first step, by the numbers of their documents."""
    return {rollout.document: rollout for step in read_rollouts(folder)[:1] for rollout in step}


def _is_of(record: RolloutRecord | None, sample: Sample) -> bool:
    """Return whether a launch scored the tokens of a sample."""
    return record is not None and (record.prompt, record.response) == (sample.prompt, sample.response)


def _compare_own(
    own: Mapping[int, RolloutRecord], numbers: Sequence[int], scored: Tensor, reproduced: Tensor, limit: float
) -> list[str]:
    """Return remarks on the launch's own scores: other tokens, or the distance from the reproduction."""
    if own and len(numbers) < len(own):
        text = f"the launch scored tokens that the engine neither read nor generated in {len(own) - len(numbers)} of"
        return [f"{text} {len(own)} rollouts: these are left out"]
    distance = rms(scored - reproduced)
    if distance <= limit:
        return []
    return [f"the launch's own code differs from a reproduction of its framework's source by {distance:.2g} nats"]


def _select(generated: Generated, numbers: Sequence[int]) -> Generated:
    """Return some of the generated samples."""
    return replace(
        generated,
        samples=tuple(generated.samples[number] for number in numbers),
        logits=tuple(generated.logits[number] for number in numbers if generated.logits),
        hidden=tuple(generated.hidden[number] for number in numbers if generated.hidden),
        routes=tuple(generated.routes[number] for number in numbers if generated.routes),
    )


def _cut_unknown_tokens(generated: Generated, size: int) -> Generated:
    """Return the samples with each response cut before the first token that the trainer's embedding does not have."""
    lengths = [
        next((index for index, token in enumerate(sample.response) if token >= size), len(sample.response))
        for sample in generated.samples
    ]
    lost = sum(length < len(sample.response) for length, sample in zip(lengths, generated.samples, strict=True))
    if not lost:
        return generated
    kept = [index for index, length in enumerate(lengths) if length]
    if not kept:
        raise ValueError(f"every response begins with a token beyond the trainer's vocabulary of {size}")

    def cut(sample: Sample, length: int) -> Sample:
        return Sample(sample.prompt, sample.response[:length], sample.log_probabilities[:length])

    text = (
        f"{lost} of {len(lengths)} responses have tokens beyond the trainer's vocabulary of "
        f"{size}: truncated before them"
    )
    generated, lengths = _select(generated, kept), [lengths[index] for index in kept]
    return replace(
        generated,
        samples=tuple(map(cut, generated.samples, lengths)),
        logits=tuple(own[:length] for own, length in zip(generated.logits, lengths)),
        hidden=tuple(tuple(own[:length] for own in states) for states, length in zip(generated.hidden, lengths)),
        routes=tuple(own[:, :length] for own, length in zip(generated.routes, lengths)),
        notes=(*generated.notes, text),
    )


def _explain(
    result: AgreedModel,
    context: Context,
    observed: tuple[Tensor, Tensor],
    errors: Sequence[float],
    roundings: Sequence[float],
) -> AgreedModel:
    """Return the result with the cause of each side's difference."""
    limits = [ROUNDING_MULTIPLE * rounding for rounding in roundings]
    off = [index for index in (0, 1) if not errors[index] <= limits[index]]
    off = off or [max((0, 1), key=lambda index: errors[index] / max(roundings[index], 1e-12))]
    named: list[Cause] = []
    notes: list[str] = []
    for index in off:
        cause, tried = causes.find_cause(context, SIDES[index], observed[index], limits[index])
        if cause is not None:
            named.append(cause)
        else:
            notes.append(f"none of {tried} computed hypotheses explains the {SIDES[index]}")
    return replace(result, causes=tuple(named), notes=(*result.notes, *notes))


def _list_common_errors(result: AgreedModel) -> list[str]:
    """Return a remark if both sides differ from eager attention in the same way."""
    is_common = (
        result.engine_error > FLOOR_MULTIPLE * result.engine_rounding
        and result.trainer_error > FLOOR_MULTIPLE * result.trainer_rounding
    )
    if not is_common:
        return []
    error = f"{result.trainer_error:.2g} nats against {result.trainer_rounding:.2g} of rounding"
    return [f"both sides compute the same, but differ from eager attention ({error})"]


@dataclass(frozen=True)
class LoadedTrainer:
    """The changes that the trainer's scoring needed to run here, and the notes on them."""

    scoring: Scoring
    texts: tuple[str, ...] = ()


@dataclass(frozen=True)
class TrainerScores:
    """The trainer's scores of the samples, joined to log-probabilities, and the same in another batch shape."""

    loaded: LoadedTrainer
    scored: list[Scored]
    reproduced: Tensor
    reshaped: Tensor


def load_trainer(folder: str, plan: Scoring, device: str) -> tuple[Any, LoadedTrainer]:
    """Return the trainer's model, and its scoring as far as it can be done here.

    Without a GPU flash-attn is emulated; if the model refuses that, rows hold one document. Raises transformers' error
    for an implementation that it refuses.
    """
    dtype = DTYPES[plan.precision]
    if "flash" not in plan.attn_implementation or device != "cpu":
        return load_model(folder, dtype, plan.attn_implementation, plan.overrides, device), LoadedTrainer(plan)
    name = plan.attn_implementation
    try:
        _emulate_flash_attn()
        model = load_model(folder, dtype, "flash_attention_2", plan.overrides, device)
        tokens = torch.tensor([[1, 2, 3, 1, 2]])
        positions = torch.tensor([[0, 1, 2, 0, 1]])
        with computing(plan.precision):
            model(input_ids=tokens, position_ids=positions, use_cache=False)
        return model, LoadedTrainer(plan, (f"{name} needs a GPU: flash-attn emulated in torch replaces it",))
    except Exception as error:  # a class may refuse an implementation with any exception
        own = replace(plan, attn_implementation="", batch=1 if plan.layout == "packed" else plan.batch)
        reason = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        text = f"{name} needs a GPU, and its emulation does not run ({reason}): transformers' default replaces it"
        packing = " and rows hold one document: packing is not checked" if plan.layout == "packed" else ""
        return load_model(folder, dtype, "", plan.overrides, device), LoadedTrainer(own, (f"{text}{packing}",))


def _emulate_flash_attn() -> None:
    """Let transformers use the emulated flash-attn on a CPU, which this process imports first."""
    from transformers import modeling_flash_attention_utils, modeling_utils
    from transformers.utils import import_utils

    from attncheck.rehearsal.watcher import emulation

    os.environ["ATTNCHECK_EMULATED"] = "1"
    emulation.allow_in_import_utils(import_utils)
    emulation.allow_in_modeling_utils(modeling_utils)
    vars(modeling_flash_attention_utils)["is_flash_attn_2_available"] = import_utils.is_flash_attn_2_available


def _reshape(plan: Scoring) -> Scoring:
    """Return the same scoring in another batch shape."""
    return replace(plan, batch=1 if plan.batch != 1 else 3, layout="left" if plan.batch == 1 else plan.layout)


def _compute_exact(
    folder: str, generated: Generated, plan: Scoring, precisions: Sequence[Precision], device: str
) -> Exact:
    rounded = {}
    parameters = 0
    for precision in dict.fromkeys(precisions):
        model = load_model(folder, DTYPES[precision], "eager", plan.overrides, device)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        rounded[precision] = scoring.score_each(model, generated.samples, Scoring(precision), with_hidden=True)
    dtype = torch.float64 if parameters <= EXACT_PARAMETERS else torch.float32
    model = load_model(folder, dtype, "eager", plan.overrides, device)
    results = scoring.score_each(model, generated.samples, Scoring("fp32"), with_hidden=True)
    return Exact([own.logits.double() for own in results], [own.hidden for own in results], rounded, model)


def _score_exactly(logits: Sequence[Tensor], samples: Sequence[Any], temperature: float) -> Tensor:
    return torch.cat(
        [gather(own / temperature, sample.response) for own, sample in zip(logits, samples, strict=True)]
    ).double()


def _join(results: Sequence[Scored], samples: Sequence[Any], plan: Scoring) -> Tensor:
    pairs = zip(results, samples, strict=True)
    return torch.cat([scoring.log_probabilities(own, sample, plan) for own, sample in pairs]).double()


def _bound(number: float) -> float:
    return min(number, 1e30)


def _add_kl(result: AgreedModel, generated: Generated, scored: Sequence[Scored]) -> AgreedModel:
    """Return the result with KL(engine || trainer) over the whole vocabulary, on the first tokens."""
    if not generated.logits:
        return result
    ours = torch.cat(list(generated.logits))[:KL_TOKENS].double() / result.rollout.temperature
    theirs = torch.cat([own.logits for own in scored])[:KL_TOKENS].double() / result.scoring.temperature
    if ours.shape != theirs.shape:
        return result
    first, second = ours.log_softmax(-1), theirs.log_softmax(-1)
    value = float((first.exp() * (first - second)).sum(-1).mean())
    return replace(result, kl=max(value, 0.0), kl_tokens=len(ours))


def _add_routes(result: AgreedModel, generated: Generated, scored: Sequence[Scored]) -> AgreedModel:
    """Return the result with the share of tokens that the two sides send to other experts."""
    ours = [own.routes for own in scored if own.routes is not None]
    if not generated.routes or not ours:
        return result
    share, *layers = routes.count_differing(generated.routes, ours)
    return replace(result, routes_differ=share, routed_layers=(layers[0], layers[1]))


def _add_first_layer(result: AgreedModel, generated: Generated, scored: Sequence[Scored], exact: Exact) -> AgreedModel:
    """Return the result with the first layer whose hidden states differ by more than rounding."""
    if not generated.hidden or not generated.hidden[0] or len(generated.hidden[0]) != len(exact.hidden[0]):
        return result
    names = ["the embedding", *(f"layer {index}" for index in range(len(exact.hidden[0]) - 2)), "the last layer"]
    if len(exact.hidden[0]) < 2:
        return result
    first = ""
    for index, name in enumerate(names):
        truth = torch.cat([states[index] for states in exact.hidden])
        size = float(truth.norm()) or 1.0
        rounding = max(
            float((torch.cat([own.hidden[index] for own in runs]) - truth).norm()) / size
            for runs in exact.rounded.values()
        )
        ours = torch.cat([states[index] for states in generated.hidden])
        theirs = torch.cat([own.hidden[index] for own in scored])
        error = float((ours - theirs).norm()) / size
        if error > FLOOR_MULTIPLE * max(rounding, torch.finfo(torch.float32).eps):
            first = name
            break
    return replace(result, first_layer=first, layers=len(names))
