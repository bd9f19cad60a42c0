"""A learnable language with a known entropy: the next token follows from the last but one.

x[t+1] = permutation[x[t-1]] with probability `CERTAINTY`, else any token. A model has to attend to the token before
the last; its loss cannot fall below the entropy of the language unless it looks ahead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

WORDS = 32
CERTAINTY = 0.8
SHORTEST, LONGEST = 16, 64  # tokens of a document that is trained on


@dataclass(frozen=True)
class Goal:
    """What a loss must fall below, and what it cannot honestly fall below (0: unknown), in nats a token."""

    floor: float
    bound: float


class Source(Protocol):
    """An endless source of documents: int64 tokens on the CPU."""

    goal: Goal

    def document(self, length: int = 0) -> Tensor:
        """Return a document."""

    def documents(self, total: int) -> list[Tensor]:
        """Return documents of `total` tokens together."""


def floor() -> float:
    """Return the language's entropy in nats a token, about 1.157."""
    likely = CERTAINTY + (1 - CERTAINTY) / WORDS
    other = (1 - CERTAINTY) / WORDS
    return -likely * math.log(likely) - (WORDS - 1) * other * math.log(other)


class Language:
    """An endless source of documents, the same for the same seed.

    The goal is half-way from a uniform guess to the language's entropy.
    """

    def __init__(self, seed: int) -> None:
        self.goal = Goal(floor(), (math.log(WORDS) + floor()) / 2)
        self._permutation = torch.randperm(WORDS, generator=torch.Generator().manual_seed(1234))
        self._generator = torch.Generator().manual_seed(seed)

    def document(self, length: int = 0) -> Tensor:
        """Return the tokens of a document, `length` of them or between SHORTEST and LONGEST: int64, on the CPU."""
        if not length:
            length = int(torch.randint(SHORTEST, LONGEST + 1, (1,), generator=self._generator))
        tokens = torch.randint(WORDS, (length,), generator=self._generator)
        follows = torch.rand(length, generator=self._generator) < CERTAINTY
        for t in range(2, length):
            if follows[t]:
                tokens[t] = self._permutation[tokens[t - 2]]
        return tokens

    def documents(self, total: int) -> list[Tensor]:
        """Return documents of `total` tokens together, the last one cut to fit."""
        found: list[Tensor] = []
        while total > 0:
            found.append(self.document()[:total])
            total -= len(found[-1])
        return found
