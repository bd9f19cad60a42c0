"""Transforms of logits that a side may apply: temperatures, truncated distributions, shifts, padded vocabularies."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attncheck.agree.worker.hypotheses import Context, Transform
from attncheck.agree.worker.models import GENERATION, Sample, gather, read_config, rms

TEMPERATURES = math.log(8)  # the logarithm of the largest fitted temperature, and of the inverse of the smallest
FITTED = 16  # steps of the search, each of which nearly halves that range
GOLDEN = 0.618
PADDED_TO = (64, 128, 256)  # engines pad the rows of an embedding to a multiple of these


def list_transforms(context: Context) -> list[Transform]:
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
    for extra in sorted({-size % multiple for multiple in PADDED_TO} - {0}):
        transforms.append(
            Transform(
                "vocabulary-padding",
                f"{extra} rows that pad the vocabulary of {size} take part in the softmax",
                "mask the padded rows of lm_head before the softmax",
                lambda logits, sample, extra=extra: gather(  # type: ignore[misc]
                    torch.nn.functional.pad(logits, (0, extra)) / temperature, sample.response
                ),
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
    end = read_config(context.folder).eos_token_id
    ends = end if isinstance(end, list) else [end]
    for place, text, is_masked in (
        ("last", "the last token of each response", lambda place, sample: place == len(sample.response) - 1),
        ("first", "the first token of each response", lambda place, sample: place == 0),
        ("end", "each EOS token", lambda place, sample: sample.response[place] in ends),
    ):
        transforms.append(
            Transform(
                f"token-masked:{place}",
                f"{text} has the log-probability 0: it is masked",
                "include every sampled token in the response mask",
                lambda logits, sample, is_masked=is_masked: right(logits, sample).masked_fill(  # type: ignore[misc]
                    torch.tensor([is_masked(place, sample) for place in range(len(sample.response))]), 0.0
                ),
            )
        )
    transforms.append(
        Transform(
            "softmax-in-bf16",
            "the softmax over the vocabulary is computed in bfloat16",
            "convert logits to float32 before the softmax",
            lambda logits, sample: _pick((logits / temperature).bfloat16().log_softmax(-1), sample),
        )
    )
    return transforms


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
