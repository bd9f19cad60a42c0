"""What would explain a side that is off: variants of the exact computation, each computed on the same tokens.

A hypothesis is a model (its configuration, its weights, what it was given) and what is made of its logits. All pairs
are compared with what the side computed; the simplest that leaves no more than rounding is the cause.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attncheck.agree.worker import scoring
from attncheck.agree.worker.models import GENERATION, Sample, gather, load_model, read_config, rms
from attncheck.agree.worker.weights import load_from, name_differences
from attncheck.core.agreement import Overrides, Rollout, Scoring
from attncheck.core.results.agree import Cause, Side

NAMED_SHARE = 0.9  # of the squared difference that an incomplete explanation has to explain
CLOSED_SHARE = 0.7  # of the error that may be left, if it is within rounding
PADDED_TO = (64, 128, 256)  # rows of an embedding that engines pad vocabularies to a multiple of
KEPT_PROMPTS = (8, 16, 24, 32, 48)  # tokens that a truncated prompt may keep
ROPE_FACTORS = (2.0, 4.0, 8.0)
NO_SINK = -1e4  # an attention sink of no weight


@dataclass(frozen=True)
class Variant:
    """A model's logits under one hypothesis: one tensor (tokens, vocabulary) for each sample."""

    name: str
    text: str
    remedy: str
    compute: Callable[[], list[Tensor]]
    sides: tuple[Side, ...] = ("engine", "trainer")


@dataclass(frozen=True)
class Transform:
    """What is made of logits: log p of a sample's tokens."""

    name: str
    text: str
    remedy: str
    apply: Callable[[Tensor, Sample], Tensor]
    sides: tuple[Side, ...] = ("engine", "trainer")


@dataclass
class Context:
    """What hypotheses are computed from: the trainer's model, the samples, both sides' settings."""

    folder: str
    engine_folder: str
    samples: Sequence[Sample]
    rollout: Rollout
    plan: Scoring
    dtype: torch.dtype
    device: str
    exact: list[Tensor]  # logits
    progress: Callable[[str], None]
    computed: dict[str, list[Tensor]] = field(default_factory=dict)

    def score(
        self,
        overrides: Overrides = (),
        folder: str = "",
        change: Callable[[Any], None] | None = None,
        samples: Sequence[Sample] = (),
    ) -> list[Tensor]:
        """Return the logits of each sample on its own under a changed model."""
        model = load_model(folder or self.folder, self.dtype, "eager", (*self.plan.overrides, *overrides), self.device)
        if change is not None:
            with torch.no_grad():
                change(model)
        return [scored.logits for scored in scoring.score_each(model, samples or self.samples)]

    def score_batches(self, make: Callable[[Sequence[Sample]], scoring.Batch]) -> list[Tensor]:
        """Return the logits of batches that are made in another way than the trainer's."""
        model = load_model(self.folder, self.dtype, "eager", self.plan.overrides, self.device)
        plan = Scoring("fp32", batch=self.plan.batch)
        return [scored.logits for scored in scoring.score(model, self.samples, plan, make=make)]


def find_cause(context: Context, side: Side, observed: Tensor, limit: float) -> tuple[Cause | None, int]:
    """Return what explains a side's log-probabilities, and how many hypotheses were computed.

    `limit` is the root mean square that rounding explains.
    """
    base = Variant("", "", "", lambda: context.exact)
    transforms = [transform for transform in list_transforms(context) if side in transform.sides]
    plain = transforms[0]
    error = rms(observed - _join(plain, context.exact, context.samples))
    best: tuple[float, Variant, Transform] | None = None
    tried = 0
    for variant in (base, *(v for v in iter_variants(context) if side in v.sides)):
        logits = _compute(context, variant)
        if logits is None:
            continue
        for transform in transforms:
            if variant is base and transform is plain:
                continue
            tried += 1
            rest = rms(observed - _join(transform, logits, context.samples))
            if best is None or rest < best[0] * 0.999:
                best = (rest, variant, transform)
        if best is not None and best[0] <= limit and best[0] <= CLOSED_SHARE * error:
            break
    if best is None or not math.isfinite(best[0]):
        return None, tried
    rest, variant, transform = best
    explained = 1.0 - (rest / error) ** 2
    closes = rest <= limit and rest <= CLOSED_SHARE * error
    if not closes and explained < NAMED_SHARE:
        return None, tried
    parts = [part for part in (variant, transform) if part.name]
    return (
        Cause(
            side,
            " and ".join(part.name for part in parts),
            "; ".join(part.text for part in parts),
            explained,
            "; ".join(part.remedy for part in parts if part.remedy),
            closes,
        ),
        tried,
    )


def _compute(context: Context, variant: Variant) -> list[Tensor] | None:
    """Return a variant's logits, None if no such model can be computed."""
    if variant.name not in context.computed:
        context.progress(variant.text or "comparing with the exact values")
        try:
            context.computed[variant.name] = variant.compute()
        except (ValueError, RuntimeError, TypeError, KeyError, AttributeError, IndexError):
            context.computed[variant.name] = []  # a configuration that this class does not take explains nothing
    return context.computed[variant.name] or None


def _join(transform: Transform, logits: Sequence[Tensor], samples: Sequence[Sample]) -> Tensor:
    return torch.cat([transform.apply(own, sample) for own, sample in zip(logits, samples, strict=True)]).double()


def list_transforms(context: Context) -> list[Transform]:
    """Return what may be made of logits; the first is right: divided by the temperature that is sampled with."""
    temperature = context.rollout.temperature

    def scale(divisor: float) -> Callable[[Tensor, Sample], Tensor]:
        return lambda logits, sample: gather(logits / divisor, sample.response)

    right = scale(temperature)
    transforms = [Transform("", "", "", right)]
    if temperature != 1.0:
        remedy = "let the engine return processed log-probabilities (vLLM: logprobs_mode=processed_logprobs)"
        transforms += [
            Transform(
                "raw-log-probabilities",
                f"its log-probabilities are raw: the temperature of {temperature:g} is not applied",
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
                "align log-probabilities with their tokens",
                lambda logits, sample, shift=shift: right(logits, sample).roll(-shift),  # type: ignore[misc]
            )
        )
    return transforms


def _list_truncations(context: Context) -> list[Transform]:
    """Return how an engine may cut the distribution: by the launch's sampling, or by the model's generation config."""
    rollout = context.rollout
    given = {"top_p": rollout.top_p, "top_k": rollout.top_k, "min_p": rollout.min_p}
    sources = {
        "truncated-distribution": ("the launch's sampling", "sample with top_p 1 and without top_k and min_p"),
        "sampling-defaults": (
            f"the model's {GENERATION}",
            f"remove the sampling fields from {GENERATION}, or pass each of them in the launch",
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
    """Return log p under transformers' own warpers, applied as `generate` orders them."""
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
    kept = scores.scatter(-1, tokens, scaled.gather(-1, tokens))  # rounding decides at the boundary: it was sampled
    return gather(kept, sample.response)


def iter_variants(context: Context) -> Iterator[Variant]:
    """Yield what a side's model may be instead, the cheapest first."""
    yield from _iter_folder_variants(context)
    yield from _iter_layouts(context)
    yield from _iter_inputs(context)
    yield from _iter_configurations(context)
    yield from _iter_weights(context)


def _iter_folder_variants(context: Context) -> Iterator[Variant]:
    """Yield what the engine's own folder and overrides hold."""
    overrides = context.rollout.overrides
    if overrides and overrides != context.plan.overrides:
        names = ", ".join(f"{key}={text}" for key, text in overrides)
        yield Variant(
            "engine-overrides",
            f"the engine overrides the model's configuration: {names}",
            "give the trainer the same configuration",
            lambda: context.score(overrides),
            ("engine",),
        )
    if context.plan.overrides:
        names = ", ".join(f"{key}={text}" for key, text in context.plan.overrides)
        without = replace(context.plan, overrides=())
        yield Variant(
            "trainer-overrides",
            f"the trainer overrides the model's configuration but the engine does not: {names}",
            "give the engine the same configuration",
            lambda: replace(context, plan=without).score(),
            ("engine",),
        )
    if not context.engine_folder:
        return
    differences = name_differences(context.folder, context.engine_folder)
    for key, own, other in differences.keys:
        yield Variant(
            f"configuration:{key}",
            f"{key} is {other} in the engine's config.json and {own} in the trainer's",
            f"use the same {key} in both",
            lambda key=key, other=other: context.score(((key, other),)),  # type: ignore[misc]
            ("engine",),
        )
    for name, text, remedy, tensors in differences.weights:
        yield Variant(
            f"weights:{name}",
            text,
            remedy,
            lambda tensors=tensors: context.score(  # type: ignore[misc]
                change=lambda model: load_from(model, context.engine_folder, tensors)
            ),
            ("engine",),
        )
    if differences.keys or differences.weights:
        yield Variant(
            "other-model",
            f"the engine's model is a different one: {differences.summary}",
            "load the same model on both sides",
            lambda: context.score(folder=context.engine_folder),
            ("engine",),
        )


def _iter_layouts(context: Context) -> Iterator[Variant]:
    """Yield what the trainer's batches may be instead of documents on their own."""
    layout = context.plan.layout

    def make_unmasked(samples: Sequence[Sample]) -> scoring.Batch:
        batch = scoring.make_batch(samples, layout, False)
        width = batch.inputs["input_ids"].shape[1]
        positions = torch.arange(width).expand(len(samples), -1)
        return scoring.Batch({**batch.inputs, "position_ids": positions}, batch.places)

    if layout == "left":
        yield Variant(
            "padding-counted-as-positions",
            "prompts are padded on the left without position_ids: positions count the padding",
            "pass position_ids that begin at each prompt's first token",
            lambda: context.score_batches(make_unmasked),
            ("trainer",),
        )
    if layout != "packed":
        yield Variant(
            "padding-attended",
            "padding is attended to: the mask is not used",
            "pass the attention mask",
            lambda: context.score_batches(_make_attended(layout)),
            ("trainer",),
        )
        return
    yield Variant(
        "packed-documents-leak",
        "documents of a packed row attend to earlier ones",
        "use an attention implementation that separates packed documents (flash_attention_2)",
        lambda: context.score_batches(_make_leaking),
        ("trainer",),
    )
    yield Variant(
        "packed-positions-run-on",
        "positions continue across a packed row, and its documents attend to earlier ones",
        "pass position_ids that restart with each document",
        lambda: context.score_batches(lambda samples: scoring.pack(samples, resets=False)),
        ("trainer",),
    )


def _make_attended(layout: Any) -> Callable[[Sequence[Sample]], scoring.Batch]:
    def make(samples: Sequence[Sample]) -> scoring.Batch:
        batch = scoring.make_batch(samples, layout, True)
        mask = torch.ones_like(batch.inputs["attention_mask"])
        return scoring.Batch({**batch.inputs, "attention_mask": mask}, batch.places)

    return make


def _make_leaking(samples: Sequence[Sample]) -> scoring.Batch:
    batch = scoring.pack(samples)
    mask = torch.ones_like(batch.inputs["input_ids"])  # with a mask transformers does not look for documents
    return scoring.Batch({**batch.inputs, "attention_mask": mask}, batch.places)


def _iter_inputs(context: Context) -> Iterator[Variant]:
    """Yield what a side may have been given instead of the prompts."""
    begin = read_config(context.folder).bos_token_id
    samples = context.samples
    if isinstance(begin, int) and all(sample.prompt[:1] == (begin,) for sample in samples):
        doubled = [replace(sample, prompt=(begin, *sample.prompt)) for sample in samples]
        without = [replace(sample, prompt=sample.prompt[1:]) for sample in samples if len(sample.prompt) > 1]
        yield Variant(
            "bos-doubled",
            "prompts begin with the BOS token twice",
            "tokenise prompts with add_special_tokens=False if the chat template writes the BOS token",
            lambda: context.score(samples=doubled),
        )
        if len(without) == len(samples):
            yield Variant(
                "bos-missing",
                "prompts do not begin with the BOS token",
                "keep the BOS token in the prompts",
                lambda: context.score(samples=without),
            )
    longest = max(len(sample.prompt) for sample in samples)
    for kept in KEPT_PROMPTS:
        if kept < longest:
            cut = [replace(sample, prompt=sample.prompt[-kept:]) for sample in samples]
            yield Variant(
                f"prompt-truncated:{kept}",
                f"prompts are cut to their last {kept} tokens",
                "raise max_model_len or the prompt length, or drop prompts that are too long",
                lambda cut=cut: context.score(samples=cut),  # type: ignore[misc]
            )


def _iter_configurations(context: Context) -> Iterator[Variant]:
    """Yield what the model's class would compute without one of its features, or with another value of it."""
    config = read_config(context.folder)
    changes: list[tuple[str, str, str, Any]] = []
    parameters = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    rope_type = parameters.get("rope_type", parameters.get("type", "default"))
    if rope_type != "default":
        changes.append(("rope-scaling", f"RoPE is not scaled ({rope_type} is left out)", "rope_scaling", None))
    else:
        changes += [
            (
                "rope-scaling",
                f"RoPE is scaled linearly by {factor:g}",
                "rope_scaling",
                {"rope_type": "linear", "factor": factor},
            )
            for factor in ROPE_FACTORS
        ]
    window = getattr(config, "sliding_window", None)
    types = getattr(config, "layer_types", None)
    if window:
        full = ["full_attention" if name == "sliding_attention" else name for name in types or ()]
        if types:
            changes.append(("window", f"the window of {window} tokens is not applied", "layer_types", full))
        else:
            changes.append(("window", f"the window of {window} tokens is not applied", "sliding_window", None))
        changes += [
            ("window", f"the window is {window + step} tokens instead of {window}", "sliding_window", window + step)
            for step in (1, -1)
        ]
    for key, text in (
        ("attn_logit_softcapping", "attention scores are not capped"),
        ("final_logit_softcapping", "logits are not capped"),
        ("attention_chunk_size", "attention is not chunked"),
    ):
        if getattr(config, key, None):
            changes.append((f"{'chunk' if 'chunk' in key else 'softcap'}", f"{text} ({key})", key, None))
    if getattr(config, "query_pre_attn_scalar", None):
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        changes.append(("softmax-scale", "scores are scaled by head_dim", "query_pre_attn_scalar", head_dim))
    if isinstance(getattr(config, "norm_topk_prob", None), bool):
        flipped = not config.norm_topk_prob
        changes.append(
            ("expert-weights", f"experts' weights are {'' if flipped else 'not '}normalised", "norm_topk_prob", flipped)
        )
    for name, message, key, value in changes:
        yield Variant(
            f"{name}:{key}={json.dumps(value)}",
            message,
            f"use the model's own {key} on both sides",
            lambda key=key, value=value: context.score(((key, json.dumps(value)),)),  # type: ignore[misc]
        )


def _iter_weights(context: Context) -> Iterator[Variant]:
    """Yield what the model would compute without some of its weights, or with one in another's place."""
    remedy = "load every parameter of the model, and synchronise all of them"

    def fill(value: float, *endings: str) -> Callable[[Any], None]:
        def change(model: Any) -> None:
            parameters = [parameter for name, parameter in model.named_parameters() if name.endswith(endings)]
            if not parameters:
                raise KeyError(endings)
            for parameter in parameters:
                parameter.fill_(value)

        return change

    def tie(model: Any) -> None:
        model.get_output_embeddings().weight.copy_(model.get_input_embeddings().weight)

    for name, text, value, endings in (
        ("sinks", "attention sinks are left out", NO_SINK, (".sinks",)),
        ("biases", "biases are zero", 0.0, (".bias",)),
        (
            "query-key-norms",
            "the norms of queries and keys are applied without weights",
            1.0,
            ("q_norm.weight", "k_norm.weight"),
        ),
    ):
        yield Variant(
            name,
            text,
            remedy,
            lambda value=value, endings=endings: context.score(change=fill(value, *endings)),  # type: ignore[misc]
        )
    if not getattr(read_config(context.folder), "tie_word_embeddings", False):
        yield Variant(
            "tied-embeddings",
            "lm_head is the input embedding, which this model does not tie",
            "set tie_word_embeddings to false on both sides, and synchronise lm_head",
            lambda: context.score(change=tie),
        )
