"""The cross-entropy implementations that a plan can name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from attncheck.smoke.worker.data.packing import IGNORED

Loss = Callable[[Tensor, Tensor], Tensor]  # logits (tokens, vocabulary), labels (tokens,) -> their summed loss


CHUNK = 256  # rows whose probabilities are held in float32 at a time


def loss_function(name: str) -> Loss:
    """Return a plan's loss by name. Raises ImportError where its package is missing."""
    if name == "chunked":
        return chunked
    if name == "flash_attn":
        from flash_attn.ops.triton.cross_entropy import cross_entropy_loss

        return lambda logits, labels: cross_entropy_loss(logits, labels, ignore_index=IGNORED)[0].sum()
    return plain


def plain(logits: Tensor, labels: Tensor) -> Tensor:
    """Return torch's own cross-entropy, summed, in float32."""
    return cross_entropy(logits.float(), labels, ignore_index=IGNORED, reduction="sum")


def chunked(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy, summed, holding a float32 copy of a few rows at a time only."""
    found: Tensor = _Chunked.apply(logits, labels)
    return found


class _Chunked(torch.autograd.Function):
    """log-sum-exp less the label's logit, CHUNK rows at a time; the gradient is made in the same way."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        lse = torch.cat([rows.float().logsumexp(-1) for rows in logits.split(CHUNK)])
        counts = labels != IGNORED
        chosen = logits.gather(1, labels.clamp(min=0)[:, None])[:, 0].float()
        ctx.save_for_backward(logits, labels, lse)
        return torch.where(counts, lse - chosen, torch.zeros_like(lse)).sum()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:
        logits, labels, lse = ctx.saved_tensors
        gradient = torch.empty_like(logits)
        for start in range(0, len(logits), CHUNK):
            rows = slice(start, start + CHUNK)
            own = labels[rows, None]
            part = (logits[rows].float() - lse[rows, None]).exp()
            part.scatter_add_(1, own.clamp(min=0), torch.full_like(own, -1.0, dtype=part.dtype))
            gradient[rows] = torch.where(own == IGNORED, torch.zeros_like(part), part) * upstream[0]
        return gradient, None
