"""Scores samples as a framework's trainer does: its batches, positions, precision and temperature.

Sources: verl 0.9.1 workers/engine/fsdp/transformer_impl.py (`prepare_model_inputs`: rows without padding get
position_ids and no mask; `_scale_logits_by_temperature` divides in the logits' dtype); openrlhf 0.11.2 models/actor.py
(`Actor.forward`: position_ids from the mask, logits to float32 and divided there); trl 1.16.0 trainer/grpo_trainer.py
(`_get_per_token_logps_and_entropies`: prompts padded on the left, a mask and no position_ids) and trainer/utils.py
(`add_fused_lm_head`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attncheck.agree.worker.models import Sample, computing, gather
from attncheck.agree.worker.routes import RouteWatch
from attncheck.core.agreement import Layout, Scoring


@dataclass(frozen=True)
class Scored:
    """A model's values for one sample's response.

    `logits` are (tokens, vocabulary) in the model's dtype. `hidden` are each layer's states, (tokens, width) each, and
    `routes` the experts, (layers, tokens, experts per token), at the positions that predict the response.
    """

    logits: Tensor
    hidden: tuple[Tensor, ...] = ()
    routes: Tensor | None = None


@dataclass(frozen=True)
class Batch:
    """Rows of model input; for each sample, its row and the position of its first token."""

    inputs: dict[str, Tensor]
    places: tuple[tuple[int, int], ...]


def score(
    model: Any,
    samples: Sequence[Sample],
    scoring: Scoring,
    with_hidden: bool = False,
    make: Callable[[Sequence[Sample]], Batch] | None = None,
) -> list[Scored]:
    """Return the model's values for each sample, batched as the trainer does, or by `make`."""
    device = str(next(model.parameters()).device)
    results = []
    for start in range(0, len(samples), scoring.batch):
        chunk = samples[start : start + scoring.batch]
        batch = make(chunk) if make is not None else make_batch(chunk, scoring.layout, scoring.passes_positions)
        inputs = {name: tensor.to(device) for name, tensor in batch.inputs.items()}
        results += run(model, inputs, chunk, batch.places, scoring, with_hidden)
    return results


def run(
    model: Any,
    inputs: dict[str, Tensor],
    samples: Sequence[Sample],
    places: Sequence[tuple[int, int]],
    scoring: Scoring,
    with_hidden: bool = False,
    cache: Any = None,
) -> list[Scored]:
    """Return the values of one forward for the samples at these positions of its rows."""
    options = {"use_cache": False} if cache is None else {"past_key_values": cache}
    with computing(scoring.precision, next(model.parameters()).device.type), RouteWatch(model) as watch:
        outputs = model(**inputs, **options, output_hidden_states=with_hidden)
    results = []
    routes = watch.read(0, len(inputs["input_ids"])) if with_hidden else None
    for sample, (row, start) in zip(samples, places, strict=True):
        first = start + len(sample.prompt) - 1
        span = slice(first, first + len(sample.response))
        hidden = tuple(states[row, span].float().cpu() for states in outputs.hidden_states or ()) if with_hidden else ()
        own = None if routes is None else routes[:, row, span]
        results.append(Scored(outputs.logits[row, span].cpu(), hidden, own))
    return results


def log_probabilities(scored: Scored, sample: Sample, scoring: Scoring) -> Tensor:
    """Return log p of the response's tokens as the trainer computes it, shape (tokens,)."""
    logits = scored.logits.float() if scoring.divides_float32 else scored.logits
    if scoring.temperature != 1.0:
        logits = logits / torch.tensor(scoring.temperature, dtype=logits.dtype)
    return gather(logits, sample.response)


def make_batch(samples: Sequence[Sample], layout: Layout, passes_positions: bool) -> Batch:
    """Return samples in one batch of a layout."""
    if layout == "packed":
        return pack(samples)
    width = max(len(sample.tokens) for sample in samples)
    left = max(len(sample.prompt) for sample in samples) if layout == "left" else 0
    right = max(len(sample.response) for sample in samples)
    width = left + right if layout == "left" else width
    tokens = torch.zeros(len(samples), width, dtype=torch.long)
    mask = torch.zeros_like(tokens)
    places = []
    for row, sample in enumerate(samples):
        start = left - len(sample.prompt) if left else 0
        tokens[row, start : start + len(sample.tokens)] = torch.tensor(sample.tokens)
        mask[row, start : start + len(sample.tokens)] = 1
        places.append((row, start))
    inputs = {"input_ids": tokens, "attention_mask": mask}
    if passes_positions:
        inputs["position_ids"] = (mask.cumsum(-1) - 1).masked_fill(mask == 0, 1)
    return Batch(inputs, tuple(places))


def pack(samples: Sequence[Sample], resets: bool = True) -> Batch:
    """Return samples one after another in a row without padding; positions restart at each if `resets`."""
    tokens = torch.tensor([[token for sample in samples for token in sample.tokens]])
    positions = [
        torch.arange(len(sample.tokens)) if resets else torch.zeros(len(sample.tokens), dtype=torch.long)
        for sample in samples
    ]
    joined = torch.cat(positions) if resets else torch.arange(tokens.shape[1])
    return Batch({"input_ids": tokens, "position_ids": joined[None]}, tuple(_iter_places(samples)))


def _iter_places(samples: Sequence[Sample]) -> Iterator[tuple[int, int]]:
    start = 0
    for sample in samples:
        yield 0, start
        start += len(sample.tokens)


def score_each(
    model: Any,
    samples: Sequence[Sample],
    scoring: Scoring | None = None,
    with_hidden: bool = False,
    make_cache: Callable[[], Any] | None = None,
) -> list[Scored]:
    """Return the model's values for each sample separately: one row, no padding, positions from 0."""
    results = []
    for sample in samples:
        tokens = torch.tensor([sample.tokens], device=next(model.parameters()).device)
        inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
        cache = make_cache() if make_cache is not None else None
        results += run(model, inputs, [sample], [(0, 0)], scoring or Scoring("fp32"), with_hidden, cache)
    return results
