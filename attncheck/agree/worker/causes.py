"""Searches for the cause of a side's difference: variants of the exact computation on the same tokens.

A hypothesis is a model (its configuration, weights and inputs) and a transform of its logits. Every pair is compared
with the side's values. The simplest one that leaves only rounding error is the cause.
"""

import math
from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor

from attncheck.agree.worker.hypotheses import Context, Transform, Variant
from attncheck.agree.worker.models import Sample, rms
from attncheck.agree.worker.transforms import fit_rows, fit_temperature, list_transforms, split
from attncheck.agree.worker.variants import iter_variants
from attncheck.core.results.agree import Cause, Side
from attncheck.smoke.worker.models.randomness import find_rates

DRAWS = 16  # random draws of dropout
NORMAL_MEDIAN = 0.6745  # median absolute value of a normal variable of variance 1
DRAWN_FACTOR = 1.6  # draws may be this many times smaller or larger than the difference they explain
CLOSED_SHARE = 0.7  # share of the error that may be left, if it is within rounding


def find_cause(context: Context, side: Side, observed: Tensor, limit: float) -> tuple[Cause | None, int]:
    """Return the cause of a side's log-probabilities, and the number of hypotheses that were computed.

    `limit` is the root mean square that rounding explains.
    """
    base = Variant("", "", "", lambda: context.exact)
    transforms = [transform for transform in list_transforms(context, observed) if side in transform.sides]
    plain = transforms[0]
    exact = _join(plain, context.exact, context.samples)
    error = rms(observed - exact)
    own_temperature = fit_temperature(context, observed)
    of_base = [*transforms, *fit_rows(context, observed, plain), own_temperature]  # this is last: named ones come first
    best: tuple[float, Variant, Transform] | None = None
    tried = 0
    off = [rms(part) > limit for part in split(observed - exact, context.samples)]
    for variant in chain((base,), iter_variants(context, off, observed)):
        if side not in variant.sides:
            continue
        logits = _compute(context, variant)
        if logits is None:
            continue
        for transform in of_base if variant is base else transforms:
            if variant is base and transform is plain:
                continue
            tried += 1
            expected = _join(transform, logits, context.samples)
            rest = rms(torch.where(expected.isnan(), 0.0, observed - expected))
            if best is None or rest < best[0] * (0.9 if transform is own_temperature else 0.999):
                best = (rest, variant, transform)
        if best is not None and best[0] <= limit and best[0] <= CLOSED_SHARE * error:
            break
    if best is None or not math.isfinite(best[0]):
        return None, tried
    rest, variant, transform = best
    explained = 1.0 - (rest / error) ** 2
    closes = rest <= limit and rest <= CLOSED_SHARE * error
    if not closes and explained < variant.named_share:
        return (_find_dropout(context, plain, observed, exact) if side == "trainer" else None), tried
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


def _find_dropout(context: Context, plain: Transform, observed: Tensor, exact: Tensor) -> Cause | None:
    """Return dropout as the cause if repeated draws change each token by as much as is observed."""
    rates = {f"{name} {rate:g}" for (_, name), rate in find_rates(context.model.config).items()}
    if not rates:
        return None
    torch.manual_seed(0)
    context.model.train()
    draws = torch.stack([_join(plain, context.score(), context.samples) for _ in range(DRAWS)])
    context.model.eval()
    typical = float(((observed - draws.mean(0)) / draws.std(0).clamp_min(1e-12)).abs().median()) / NORMAL_MEDIAN
    share = rms(draws - exact) / rms(observed - exact)
    if not all(1 / DRAWN_FACTOR < number < DRAWN_FACTOR for number in (typical, share)):
        return None
    return Cause(
        "trainer",
        "dropout",
        f"dropout is on while the trainer scores: {', '.join(sorted(rates))}",
        min(1.0, share**2),
        "turn dropout off: set these rates in config.json to 0",
        closes=False,
    )


def _compute(context: Context, variant: Variant) -> list[Tensor] | None:
    """Return a variant's logits, None if no such model can be computed."""
    if variant.name not in context.computed:
        context.progress(variant.text or "comparing with the exact values")
        try:
            context.computed[variant.name] = variant.compute()
        except (ValueError, RuntimeError, TypeError, KeyError, AttributeError, IndexError):
            context.computed[variant.name] = []  # a configuration that this class rejects explains nothing
        if any(bool(logits.isnan().any()) for logits in context.computed[variant.name]):
            context.computed[variant.name] = []
    return context.computed[variant.name] or None


def _join(transform: Transform, logits: Sequence[Tensor], samples: Sequence[Sample]) -> Tensor:
    return torch.cat([transform.apply(own, sample) for own, sample in zip(logits, samples, strict=True)]).double()
