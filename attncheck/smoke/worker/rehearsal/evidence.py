"""All that the checks of a rehearsal judge by: the first step as documents, the truth about it, the steps after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from attncheck.core.rehearsal import Normalisation
from attncheck.smoke.worker.rehearsal.records import StepRecord
from attncheck.smoke.worker.rehearsal.step import FirstStep, Piece
from attncheck.smoke.worker.rehearsal.truth import DocumentTruth, TruthModel, token_errors

ROUNDING_MULTIPLE = 3.0  # times what rounding costs eager attention on the same documents
FP32_LIMIT = 1e-4  # relative error of a token's hidden state in float32; healthy kernels are at 1e-6
SAMPLED_PIECES = 8  # on which the cost of rounding is measured


@dataclass(frozen=True)
class Evidence:
    """The evidence of one rehearsal."""

    step: FirstStep
    steps: tuple[StepRecord, ...]
    truth: TruthModel
    rounded: TruthModel | None  # in the job's own precision; None in float32

    def describe(self, piece: Piece) -> DocumentTruth:
        """Return the truth about a piece."""
        return self.truth.describe(piece.tokens)

    @cached_property
    def judged_pieces(self) -> tuple[Piece, ...]:
        """Return the pieces that are a document's own, of two tokens or more."""
        return tuple(piece for piece in self.step.pieces if piece.segment.document >= 0 and len(piece.tokens) > 1)

    @cached_property
    def hidden_limit(self) -> float:
        """The largest relative error allowed of a token's hidden state."""
        if self.rounded is None:
            return FP32_LIMIT
        pieces = self.judged_pieces[:SAMPLED_PIECES]
        errors = [self._round_error(piece.tokens) for piece in pieces]
        return max(FP32_LIMIT, ROUNDING_MULTIPLE * max(errors, default=0.0))

    def _round_error(self, tokens: Sequence[int]) -> float:
        assert self.rounded is not None
        rounded, exact = self.rounded.describe(tokens), self.truth.describe(tokens)
        return float(token_errors(rounded.hidden, exact.hidden).max())

    def weights(self, normalisation: Normalisation) -> list[Tensor]:
        """Return for each piece of the step the weight of each of its tokens but the first: (tokens - 1,)."""
        return [
            piece.is_target.double() * share
            for piece, share in zip(self.step.pieces, self._shares(normalisation), strict=True)
        ]

    def _shares(self, normalisation: Normalisation) -> list[float]:
        """Return for each piece the weight of one of its targets."""
        keys = [_group(piece, normalisation) for piece in self.step.pieces]
        counts: dict[object, int] = {}
        for key, piece in zip(keys, self.step.pieces, strict=True):
            counts[key] = counts.get(key, 0) + int(piece.is_target.sum())
        groups = sum(count > 0 for count in counts.values())
        return [1.0 / (counts[key] * groups) if counts[key] else 0.0 for key in keys]

    def expected_loss(self, normalisation: Normalisation) -> float:
        """Return what the loss of the step should be, in nats a token."""
        return self.weigh_nll(self.weights(normalisation))

    def weigh_nll(self, weights: Sequence[Tensor]) -> float:
        """Return Σ weight × nll over the pieces of the step."""
        return sum(
            float((self.describe(piece).nll.double() * weight).sum())
            for piece, weight in zip(self.step.pieces, weights, strict=True)
            if len(piece.tokens) > 1
        )

    @cached_property
    def observed_loss(self) -> float:
        """The loss whose gradient the step took: a rank's batches summed, ranks averaged, as gradients are."""
        ranks = self.step.ranks
        return sum(sum(record.losses) for record in ranks) / len(ranks)

    @cached_property
    def batches(self) -> int:
        """Return how many losses a rank differentiated before its first step."""
        return max((len(record.losses) for record in self.step.ranks), default=1)

    def gradients(self, weights: Sequence[Tensor], model: TruthModel | None = None) -> dict[str, Tensor]:
        """Return the gradients of Σ weight × nll over the pieces of the step."""
        pieces = [
            (piece.tokens, weight.float()) for piece, weight in zip(self.step.pieces, weights, strict=True)
            if len(piece.tokens) > 1
        ]  # fmt: skip
        return (model or self.truth).gradients(pieces)


def _group(piece: Piece, normalisation: Normalisation) -> object:
    call = piece.call
    return {
        "step_tokens": (),
        "rank_tokens": (call.rank,),
        "batch_tokens": (call.rank, call.batch),
        "row_tokens": (call.rank, call.batch, id(call), piece.row),
        "document_tokens": (call.rank, call.batch, id(call), piece.row, piece.segment.start),
    }[normalisation]


def list_positions(piece: Piece) -> list[int] | None:
    """Return the position_ids that the job gave to a piece's tokens, None where it gave none."""
    positions = piece.call.tensors.get("position_ids")
    if positions is None:
        return None
    while positions.dim() > 2:
        positions = positions[-1]
    row = positions[piece.row if positions.shape[0] > piece.row else 0]
    return [int(position) for position in row[piece.segment.start : piece.segment.stop]]


def causal(length: int) -> Tensor:
    """Return which tokens a token of a causal model sees: (length, length) bool."""
    return torch.ones(length, length, dtype=torch.bool).tril()
