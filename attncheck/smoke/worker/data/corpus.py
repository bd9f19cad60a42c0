"""The user's documents as a source for training, in place of the synthetic language."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from attncheck.smoke.worker.data.language import LossBounds


class Corpus:
    """A source of the same documents over and over, their tokens numbered 0 … vocabulary_size - 1.

    The bound on the loss is half-way from a uniform guess to the entropy of single tokens, which any model learns; how
    low the loss may fall is not known.
    """

    def __init__(self, documents: Sequence[Tensor], vocabulary_size: int) -> None:
        self._documents, self._next_index = list(documents), 0
        counts = torch.bincount(torch.cat(self._documents), minlength=vocabulary_size).double()
        frequencies = counts[counts > 0] / counts.sum()
        unigram_entropy = float(-(frequencies * frequencies.log()).sum())
        self.loss_bounds = LossBounds(0.0, (math.log(max(2, vocabulary_size)) + unigram_entropy) / 2 + 1e-3)

    def from_start(self) -> Corpus:
        """Return a copy of the source that starts at its first document: every run begins there."""
        restarted = copy.copy(self)
        restarted._next_index = 0
        return restarted

    def next_document(self, length: int = 0) -> Tensor:
        """Return the next document, or as many of the next ones as make up `length` tokens."""
        document = self._documents[self._next_index % len(self._documents)]
        self._next_index += 1
        if not length:
            return document
        if len(document) >= length:
            return document[:length]
        return torch.cat([document, self.next_document(length - len(document))])

    def take_documents(self, total: int) -> list[Tensor]:
        """Return documents of `total` tokens together, the last one cut to fit."""
        documents: list[Tensor] = []
        while total > 0:
            documents.append(self.next_document()[:total])
            total -= len(documents[-1])
        return documents
