"""Transforms of logits that a side may apply: temperatures, truncated distributions, shifts, padded vocabularies."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attncheck.agree.worker.hypotheses import Context, Transform
from attncheck.agree.worker.models import GENERATION, Sample, gather, read_config, rms

TEMPERATURES = math.log(8)  # the logarithm of the largest fitted temperature, and of the inverse of the smallest
FITTED = 16  # steps of the search, each of which nearly halves that range
GOLDEN = 0.618
ROWS = (64, 128, 256)  # of an embedding: engines pad to a multiple of these, and kernels read as many at once


def list_transforms(context: Context, observed: Tensor) -> list[Transform]:
    """Return the possible transforms; the first is the right one: division by the sampling temperature."""
    temperature = context.rollout.temperature

    def scale(divisor: float) -> Callable[[Tensor, Sample], Tensor]:
        return lambda logits, sample: gather(logits / divisor, sample.response)

    right = scale(temperature)
    transforms = [Transform("", "", "", right)]
    if temperature != 1.0:
        remedy = "configure the engine to return processed log-probabilities (vLLM: logprobs_mode=processed_logprobs)"
        transforms += [
            Transform(
                "raw-log-probabilities",
                f"its log-probabilities are raw: the temperature {temperature:g} is not applied",
                remedy,
                scale(1.0),
                ("engine",),
            ),
            Transform(
                "temperature-not-applied",
                f"logits are not divided by the temperature of {temperature:g} that the rollout samples with",
                "set the temperature to 1, or use a release that applies it",
                scale(1.0),
                ("trainer",),
            ),
            Transform(
                "temperature-applied-twice",
                f"logits are divided by the temperature of {temperature:g} twice",
                "divide by the temperature once: in the engine's log-probabilities or in the scorer",
                scale(temperature**2),
            ),
            Transform(
                "log-probabilities-scaled",
                f"log-probabilities are divided by the temperature of {temperature:g} instead of the logits",
                "divide the logits, and normalise after it",
                lambda logits, sample: gather(logits, sample.response) / temperature,
            ),
        ]
    transforms += _list_truncations(context)
    size = context.exact[0].shape[-1]
    for rows in sorted(
        {size + change for multiple in ROWS for change in (-size % multiple, -(size % multiple))} - {0, size}
    ):
        text, remedy = (
            f"{rows - size} rows that pad the vocabulary of {size} take",
            "mask the padded rows of lm_head before",
        )
        if rows < size:
            text, remedy = (
                f"the last {size - rows} rows of the vocabulary of {size} take no",
                "include every row of lm_head in",
            )
        transforms.append(
            Transform(
                "vocabulary-padding" if rows > size else "vocabulary-cut",
                f"{text} part in the softmax",
                f"{remedy} the softmax",
                lambda logits, sample, rows=rows: _normalise(logits / temperature, sample, rows),  # type: ignore[misc]
            )
        )
    for shift, text in ((1, "the token after it"), (-1, "the token before it")):
        transforms.append(
            Transform(
                "one-token-off",
                f"each token has the log-probability of {text}",
                "align each log-probability with its token",
                lambda logits, sample, shift=shift: _shift(right(logits, sample), shift),  # type: ignore[misc]
            )
        )
    transforms += _list_masks(context, observed, right)
    transforms.append(
        Transform(
            "softmax-in-bf16",
            "the softmax over the vocabulary is computed in bfloat16",
            "convert logits to float32 before the softmax",
            lambda logits, sample: _pick((logits / temperature).bfloat16().log_softmax(-1), sample),
        )
    )
    return transforms


def _normalise(logits: Tensor, sample: Sample, rows: int) -> Tensor:
    """Return log p if only the first rows of the vocabulary are summed; rows beyond it are zero."""
    own = logits.gather(-1, torch.tensor(sample.response)[:, None])[:, 0]
    return own - torch.nn.functional.pad(logits, (0, rows - logits.shape[-1])).logsumexp(-1)


def split(values: Tensor, samples: Sequence[Sample]) -> tuple[Tensor, ...]:
    """Return the values of each sample's tokens."""
    return torch.split(values, [len(sample.response) for sample in samples])


def _list_masks(context: Context, observed: Tensor, right: Callable[[Tensor, Sample], Tensor]) -> list[Transform]:
    """Return the mask that a side's values show, if some tokens have the log-probability 0: it is named by its rule."""
    masks = {sample: own == 0 for sample, own in zip(context.samples, split(observed, context.samples), strict=True)}
    masked = [(place, sample) for sample, mask in masks.items() for place in mask.nonzero()[:, 0].tolist()]
    if not masked or len(masked) == len(observed):
        return []
    end = read_config(context.folder).eos_token_id
    ends = end if isinstance(end, list) else [end]
    longest, total = (min(place + size * len(sample.prompt) for place, sample in masked) for size in (0, 1))
    rules: tuple[tuple[str, str, Callable[[int, Sample], bool]], ...] = (
        ("last", "the last token of each response", lambda place, sample: place == len(sample.response) - 1),
        ("first", "the first token of each response", lambda place, sample: place == 0),
        ("end", "each EOS token", lambda place, sample: sample.response[place] in ends),
        (
            "row-cut",
            f"what is beyond {total} tokens of a row",
            lambda place, sample: len(sample.prompt) + place >= total,
        ),
        ("response-cut", f"what is beyond {longest} tokens of a response", lambda place, sample: place >= longest),
    )
    places = [(place, sample) for sample in context.samples for place in range(len(sample.response))]
    fitting = [(name, text) for name, text, rule in rules if [own for own in places if rule(*own)] == masked]
    name, text = fitting[0] if fitting else ("some", f"{len(masked)} of {len(places)} tokens")
    return [
        Transform(
            f"token-masked:{name}",
            f"{text} has the log-probability 0: it is masked",
            "let the mask of the response include every token that was sampled",
            lambda logits, sample: right(logits, sample).masked_fill(masks[sample], 0.0),
        )
    ]


def fit_rows(context: Context, observed: Tensor, right: Transform) -> list[Transform]:
    """Return the order of rows that fits a side's values best, if it is another one; longer rows end in zeros."""
    exact = [right.apply(logits, sample) for logits, sample in zip(context.exact, context.samples, strict=True)]
    row_values, moved = {}, 0
    for place, own in enumerate(split(observed, context.samples)):
        rows = [torch.nn.functional.pad(row[: len(own)], (0, max(0, len(own) - len(row)))) for row in exact]
        best = min(range(len(rows)), key=lambda index: rms(own - rows[index]))
        moved += best != place
        row_values[context.samples[place]] = rows[best]
    text = f"{moved} of {len(row_values)} rows have the log-probabilities of another row"
    remedy = "restore the order of rows that batches by length or by load have changed"
    return [Transform("rows-reordered", text, remedy, lambda logits, sample: row_values[sample])] if moved else []


def _pick(scores: Tensor, sample: Sample) -> Tensor:
    return scores.gather(-1, torch.tensor(sample.response)[:, None])[:, 0].double()


def _shift(values: Tensor, shift: int) -> Tensor:
    """Return values shifted by one position; the position without a value becomes NaN."""
    shifted = values.roll(-shift)
    shifted[-1 if shift > 0 else 0] = math.nan
    return shifted


def fit_temperature(context: Context, observed: Tensor) -> Transform:
    """Return the division of the logits that fits a side's values best."""

    def measure(logarithm: float) -> float:
        pairs = zip(context.exact, context.samples, strict=True)
        own = torch.cat([gather(logits / math.exp(logarithm), sample.response) for logits, sample in pairs])
        return rms(observed - own.double())

    low, high = -TEMPERATURES, TEMPERATURES
    for _ in range(FITTED):  # the error has one minimum
        first, second = low + (high - low) * (1 - GOLDEN), low + (high - low) * GOLDEN
        low, high = (low, second) if measure(first) < measure(second) else (first, high)
    divisor = math.exp((low + high) / 2)
    return Transform(
        "another-temperature",
        f"logits are divided by {divisor:.3g} instead of the temperature of {context.rollout.temperature:g}",
        "divide the logits by the rollout's sampling temperature",
        lambda logits, sample: gather(logits / divisor, sample.response),
    )


def _list_truncations(context: Context) -> list[Transform]:
    """Return the possible truncations: by the launch's sampling, or by the model's generation config."""
    rollout = context.rollout
    given = {"top_p": rollout.top_p, "top_k": rollout.top_k, "min_p": rollout.min_p}
    sources = {
        "truncated-distribution": ("the launch's sampling", "sample with top_p 1 and without top_k and min_p"),
        "sampling-defaults": (
            f"the model's {GENERATION}",
            f"remove the sampling fields from {GENERATION}, or set each of them in the launch",
        ),
    }
    path = Path(context.engine_folder or context.folder) / GENERATION
    fields = json.loads(path.read_text()) if path.exists() else {}
    own = {**given, **{name: fields[name] for name in given if fields.get(name) is not None}}
    own_temperature = float(fields.get("temperature") or rollout.temperature)
    own_penalty = float(fields.get("repetition_penalty") or 1.0)
    choices = [("truncated-distribution", given, rollout.temperature, 1.0)]
    choices += [
        ("sampling-defaults", values, temperature, penalty)
        for values in (given, own)
        for temperature in dict.fromkeys((rollout.temperature, own_temperature))
        for penalty in dict.fromkeys((own_penalty, 1.0))
    ]
    transforms, seen = [], set()
    for name, values, temperature, penalty in choices:
        words = [f"{key} {value:g}" for key, value in values.items() if value and not (key == "top_p" and value >= 1)]
        words += [f"temperature {temperature:g}"] if temperature != rollout.temperature else []
        words += [f"repetition_penalty {penalty:g}"] if penalty != 1.0 else []
        if not words or tuple(words) in seen:
            continue
        seen.add(tuple(words))
        whose, remedy = sources[name]
        transforms.append(
            Transform(
                name,
                f"it applies {', '.join(words)} of {whose}; the trainer scores the whole distribution",
                remedy,
                lambda logits, sample, v=values, d=temperature, p=penalty: _truncate(  # type: ignore[misc]
                    logits, sample, v, d, p
                ),
                ("engine",),
            )
        )
    return transforms


def _truncate(logits: Tensor, sample: Sample, values: dict[str, float], temperature: float, penalty: float) -> Tensor:
    """Return log p under transformers' own warpers, applied in the order of `generate`."""
    from transformers.generation import logits_process as processors

    logits_process: Any = processors
    scores = logits.clone()
    if penalty != 1.0:
        warper = logits_process.RepetitionPenaltyLogitsProcessor(penalty)
        rows = [
            warper(torch.tensor([sample.tokens[: len(sample.prompt) + index]]), row[None])[0]
            for index, row in enumerate(scores)
        ]
        scores = torch.stack(rows)
    scaled = scores = scores / temperature
    ids = torch.zeros(len(scores), 1, dtype=torch.long)
    if values.get("top_k"):
        scores = logits_process.TopKLogitsWarper(int(values["top_k"]))(ids, scores)
    if values.get("top_p", 1.0) < 1:
        scores = logits_process.TopPLogitsWarper(values["top_p"])(ids, scores)
    if values.get("min_p"):
        scores = logits_process.MinPLogitsWarper(values["min_p"])(ids, scores)
    tokens = torch.tensor(sample.response)[:, None]
    # rounding decides at the boundary, and this token was sampled
    kept = scores.scatter(-1, tokens, scaled.gather(-1, tokens))
    return gather(kept, sample.response)
