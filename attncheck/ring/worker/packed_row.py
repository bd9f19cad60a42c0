"""Runs one packed row through a model, document by document: its logits and the gradients of all parameters."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

Piece = tuple[int, int, int]  # first token, last token + 1, position of the first token in its document


@dataclass(frozen=True)
class PackedRow:
    """A packed row: its tokens and labels, `(tokens,)`, and the documents' boundaries."""

    tokens: Tensor
    labels: Tensor
    cu_seqlens: tuple[int, ...]

    def documents(self) -> list[Piece]:
        """Return the documents, each from its first token to its last."""
        return [(start, stop, 0) for start, stop in pairwise(self.cu_seqlens)]

    def pieces(self, start: int, stop: int) -> list[Piece]:
        """Return the pieces of documents between two tokens, with their positions."""
        cut = [(max(a, start), min(b, stop), max(a, start) - a) for a, b, _ in self.documents()]
        return [piece for piece in cut if piece[0] < piece[1]]


def position_ids(pieces: Sequence[Piece], device: Any) -> Tensor:
    """Return each token's position in its document, `(tokens,)`, for the tokens of the pieces."""
    return torch.cat([torch.arange(first, first + stop - start, device=device) for start, stop, first in pieces])


def compute_logits(model: Any, row: PackedRow, pieces: Sequence[Piece]) -> Tensor:
    """Return the logits of a row's pieces, each run separately, in float32: `(tokens, vocabulary)`."""
    parts = []
    for piece in pieces:
        tokens, positions = row.tokens[None, piece[0] : piece[1]], position_ids([piece], row.tokens.device)[None]
        parts.append(model(input_ids=tokens, position_ids=positions, use_cache=False).logits[0])
    return torch.cat(parts).float()


def run_row(model: Any, row: PackedRow) -> tuple[Tensor, Tensor]:
    """Return the model's logits and gradients on a complete row, document by document."""
    logits = compute_logits(model, row, row.documents())
    return logits.detach(), compute_gradients(model, logits, row.labels, len(row.tokens))


def compute_gradients(model: Any, logits: Tensor, labels: Tensor, count: int) -> Tensor:
    """Return the gradients of the loss, the sum over `labels` divided by `count`, as one float32 vector.

    The vector covers all parameters; an unused parameter has zeros.
    """
    loss = cross_entropy(logits.float(), labels, reduction="sum") / count
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    pairs = zip(parameters, gradients, strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten().float() for p, g in pairs])


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Return the Frobenius norm of the error divided by that of the expected tensor; a NaN counts as 1e30."""
    error = float((actual.double() - expected.double()).norm() / expected.double().norm())
    return error if error < 1e30 else 1e30
