"""Searches for the cause of a side's difference: variants of the exact computation on the same tokens.

A hypothesis is a model (its configuration, weights and inputs) and a transform of its logits. Every pair is compared
with the side's values. The simplest one that leaves only rounding error is the cause.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from attncheck.agree.worker.hypotheses import Context, Transform, Variant
from attncheck.agree.worker.models import Sample, rms
from attncheck.agree.worker.transforms import fit_temperature, list_transforms
from attncheck.agree.worker.variants import iter_variants
from attncheck.core.results.agree import Cause, Side

NAMED_SHARE = 0.9  # share of the squared difference that an incomplete explanation must explain
CLOSED_SHARE = 0.7  # share of the error that may be left, if it is within rounding


def find_cause(context: Context, side: Side, observed: Tensor, limit: float) -> tuple[Cause | None, int]:
    """Return the cause of a side's log-probabilities, and the number of hypotheses that were computed.

    `limit` is the root mean square that rounding explains.
    """
    base = Variant("", "", "", lambda: context.exact)
    transforms = [transform for transform in list_transforms(context) if side in transform.sides]
    plain = transforms[0]
    error = rms(observed - _join(plain, context.exact, context.samples))
    of_base = [*transforms, fit_temperature(context, observed)]  # the fitted one is last: named ones come first
    best: tuple[float, Variant, Transform] | None = None
    tried = 0
    for variant in (base, *(v for v in iter_variants(context) if side in v.sides)):
        logits = _compute(context, variant)
        if logits is None:
            continue
        for transform in of_base if variant is base else transforms:
            if variant is base and transform is plain:
                continue
            tried += 1
            rest = rms(observed - _join(transform, logits, context.samples))
            if best is None or rest < best[0] * (0.9 if transform is of_base[-1] else 0.999):
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
            context.computed[variant.name] = []  # a configuration that this class rejects explains nothing
    return context.computed[variant.name] or None


def _join(transform: Transform, logits: Sequence[Tensor], samples: Sequence[Sample]) -> Tensor:
    return torch.cat([transform.apply(own, sample) for own, sample in zip(logits, samples, strict=True)]).double()
