"""The cross-entropy implementations that a plan can name."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from attncheck.smoke.worker.data.packing import IGNORE_INDEX

LossFunction = Callable[[Tensor, Tensor], Tensor]  # logits (tokens, vocabulary), labels (tokens,) -> their summed loss

CHUNK_ROWS = 256  # rows with probabilities in float32 at a time


def load_loss_function(name: str) -> LossFunction:
    """Return the loss function that a plan names. Raises ImportError if its package is missing."""
    if name == "chunked":
        return chunked_cross_entropy
    if name == "flash_attn":
        from flash_attn.ops.triton.cross_entropy import cross_entropy_loss

        return lambda logits, labels: cross_entropy_loss(logits, labels, ignore_index=IGNORE_INDEX)[0].sum()
    return torch_cross_entropy


def torch_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return torch's own cross-entropy, summed, in float32."""
    return cross_entropy(logits.float(), labels, ignore_index=IGNORE_INDEX, reduction="sum")


def chunked_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the summed cross-entropy, with a float32 copy of only CHUNK_ROWS rows at a time."""
    loss: Tensor = _ChunkedCrossEntropy.apply(logits, labels)
    return loss


class _ChunkedCrossEntropy(torch.autograd.Function):
    """log-sum-exp minus the label's logit, CHUNK_ROWS rows at a time; the gradient is computed in the same chunks."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        lse = torch.cat([rows.float().logsumexp(-1) for rows in logits.split(CHUNK_ROWS)])
        is_predicted = labels != IGNORE_INDEX
        label_logits = logits.gather(1, labels.clamp(min=0)[:, None])[:, 0].float()
        ctx.save_for_backward(logits, labels, lse)
        return torch.where(is_predicted, lse - label_logits, torch.zeros_like(lse)).sum()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:
        logits, labels, lse = ctx.saved_tensors
        gradient = torch.empty_like(logits)
        for start in range(0, len(logits), CHUNK_ROWS):
            rows = slice(start, start + CHUNK_ROWS)
            row_labels = labels[rows, None]
            row_gradient = (logits[rows].float() - lse[rows, None]).exp()
            row_gradient.scatter_add_(
                1, row_labels.clamp(min=0), torch.full_like(row_labels, -1.0, dtype=row_gradient.dtype)
            )
            gradient[rows] = (
                torch.where(row_labels == IGNORE_INDEX, torch.zeros_like(row_gradient), row_gradient) * upstream[0]
            )
        return gradient, None
