"""One packed row through a model: its documents one after the other, logits, and gradients of every parameter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

Span = tuple[int, int, int]  # first token, last token + 1, position of the first in its document


@dataclass(frozen=True)
class Packed:
    """A packed row: its tokens, what they are to predict, and where its documents begin and end."""

    tokens: Tensor
    labels: Tensor
    edges: tuple[int, ...]

    def documents(self) -> list[Span]:
        """Return the documents."""
        return [(start, stop, 0) for start, stop in pairwise(self.edges)]

    def pieces(self, start: int, stop: int) -> list[Span]:
        """Return the pieces of documents that lie between two tokens, with their positions."""
        cut = [(max(a, start), min(b, stop), max(a, start) - a) for a, b, _ in self.documents()]
        return [piece for piece in cut if piece[0] < piece[1]]


def positions(pieces: Sequence[Span], device: Any) -> Tensor:
    """Return the position of each token of the pieces in its document."""
    return torch.cat([torch.arange(first, first + stop - start, device=device) for start, stop, first in pieces])


def logits(model: Any, row: Packed, pieces: Sequence[Span]) -> Tensor:
    """Return the logits of pieces of a row, each by itself, in float32: (tokens, vocabulary)."""
    found = []
    for piece in pieces:
        tokens, places = row.tokens[None, piece[0] : piece[1]], positions([piece], row.tokens.device)[None]
        found.append(model(input_ids=tokens, position_ids=places, use_cache=False).logits[0])
    return torch.cat(found).float()


def whole(model: Any, row: Packed) -> tuple[Tensor, Tensor]:
    """Return the logits and the gradients of the model on the whole row."""
    found = logits(model, row, row.documents())
    return found.detach(), gradients(model, found, row.labels, len(row.tokens))


def gradients(model: Any, predicted: Tensor, labels: Tensor, count: int) -> Tensor:
    """Return the gradients of the loss, a sum over `labels` by `count`, as one float32 vector over all parameters.

    A parameter that is not used has zeros.
    """
    loss = cross_entropy(predicted.float(), labels, reduction="sum") / count
    parameters = list(model.parameters())
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    pairs = zip(parameters, found, strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten().float() for p, g in pairs])


def relative(got: Tensor, wanted: Tensor) -> float:
    """Return the Frobenius norm of the error over that of what was wanted; a NaN counts as 1e30."""
    error = float((got.double() - wanted.double()).norm() / wanted.double().norm())
    return error if error < 1e30 else 1e30
