"""Documents of the user's own, as a source for training beside the synthetic language."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from attncheck.smoke.worker.data.language import Goal


class Corpus:
    """A source of the same documents over and over, their tokens numbered 0 … words - 1.

    The goal is half-way from a uniform guess to the entropy of single tokens, which any model learns; nothing is known
    of how low the loss may fall.
    """

    def __init__(self, documents: Sequence[Tensor], words: int) -> None:
        self._documents, self._next = list(documents), 0
        counts = torch.bincount(torch.cat(self._documents), minlength=words).double()
        share = counts[counts > 0] / counts.sum()
        single = float(-(share * share.log()).sum())
        self.goal = Goal(0.0, (math.log(max(2, words)) + single) / 2 + 1e-3)

    def again(self) -> Corpus:
        """Return the same source from its first document on: every run begins there."""
        fresh = copy.copy(self)
        fresh._next = 0
        return fresh

    def document(self, length: int = 0) -> Tensor:
        """Return the next document, or as many of the next ones as make up `length` tokens."""
        document = self._documents[self._next % len(self._documents)]
        self._next += 1
        if not length:
            return document
        if len(document) >= length:
            return document[:length]
        return torch.cat([document, self.document(length - len(document))])

    def documents(self, total: int) -> list[Tensor]:
        """Return documents of `total` tokens together, the last one cut to fit."""
        found: list[Tensor] = []
        while total > 0:
            found.append(self.document()[:total])
            total -= len(found[-1])
        return found
