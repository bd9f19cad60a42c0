"""A learnable language with a known entropy: the next token follows from the one before the last.

x[t+1] = permutation[x[t-1]] with probability `CERTAINTY`, otherwise any token. A model must attend to the token before
the last; its loss cannot fall below the entropy of the language unless it looks ahead.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the number of words is read where torch is not needed, whose import takes seconds
    from torch import Tensor

LANGUAGE_VOCABULARY = 32  # tokens, numbered from 0
CERTAINTY = 0.8  # probability that a token follows from the one before the last
MIN_LENGTH, MAX_LENGTH = 16, 64  # tokens of a training document


@dataclass(frozen=True)
class LossBounds:
    """The bounds of a loss, in nats per token.

    It must fall below one. It cannot fall below the other without looking ahead (0: unknown).
    """

    floor: float
    bound: float


def language_entropy() -> float:
    """Return the language's entropy in nats per token, about 1.157."""
    likely = CERTAINTY + (1 - CERTAINTY) / LANGUAGE_VOCABULARY
    other = (1 - CERTAINTY) / LANGUAGE_VOCABULARY
    return -likely * math.log(likely) - (LANGUAGE_VOCABULARY - 1) * other * math.log(other)


class Language:
    """An endless source of documents, the same for the same seed.

    The bound on the loss is half-way between a uniform guess and the language's entropy.
    """

    def __init__(self, seed: int) -> None:
        import torch

        self.loss_bounds = LossBounds(language_entropy(), (math.log(LANGUAGE_VOCABULARY) + language_entropy()) / 2)
        self._permutation = torch.randperm(LANGUAGE_VOCABULARY, generator=torch.Generator().manual_seed(1234))
        self._generator = torch.Generator().manual_seed(seed)

    def next_document(self, length: int = 0) -> "Tensor":
        """Return the tokens of a document, `length` of them or between MIN_LENGTH and MAX_LENGTH: int64, on the CPU."""
        import torch

        if not length:
            length = int(torch.randint(MIN_LENGTH, MAX_LENGTH + 1, (1,), generator=self._generator))
        tokens = torch.randint(LANGUAGE_VOCABULARY, (length,), generator=self._generator)
        follows = torch.rand(length, generator=self._generator) < CERTAINTY
        for t in range(2, length):
            if follows[t]:
                tokens[t] = self._permutation[tokens[t - 2]]
        return tokens

    def take_documents(self, total: int) -> "list[Tensor]":
        """Return documents with `total` tokens together, the last one truncated to fit."""
        documents: list[Tensor] = []
        while total > 0:
            documents.append(self.next_document()[:total])
            total -= len(documents[-1])
        return documents
