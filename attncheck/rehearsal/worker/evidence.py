"""All the evidence for a rehearsal's checks: the first step as documents, the reference, the later steps."""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from attncheck.core.rehearsal import Normalisation
from attncheck.rehearsal.worker.adapters import add_adapter_gradients
from attncheck.rehearsal.worker.norms import ClippedStep
from attncheck.rehearsal.worker.records import EpochRecord, RankRecord, RolloutRecord, StepRecord
from attncheck.rehearsal.worker.segments import SEED_WORDS
from attncheck.rehearsal.worker.step import FirstStep, Piece, Sliced
from attncheck.rehearsal.worker.truth import DocumentTruth, TruthModel, token_errors

ROUNDING_MULTIPLE = 3.0  # times eager attention's rounding error on the same documents
FP32_LIMIT = 1e-4  # relative error of a token's hidden state in float32; healthy kernels have 1e-6
MIN_LIMIT = 1e-4  # relative error of a loss: losses are summed in float32
SAME_LOSS = 1e-5  # relative
SAMPLED_PIECES = 8  # for measuring the rounding error


@dataclass(frozen=True)
class Evidence:
    """The evidence of one rehearsal."""

    step: FirstStep
    steps: tuple[StepRecord, ...]
    truth: TruthModel
    rounded: TruthModel | None  # in the job's own precision; for float32 in float64; None if that may not fit
    changed_weights: tuple[str, ...] = ()  # parameters that differ from the checkpoint
    unstepped: int = 0  # differentiated losses if no step was ever taken
    rollouts: tuple[tuple[RolloutRecord, ...], ...] = ()  # a driver's rollouts, by step
    full_model: bool = False  # whether the model is the user's own, with its own weights
    taken: tuple[RankRecord, ...] = ()  # the first rank's record of each recorded step
    logs: tuple[Mapping[str, float], ...] = ()  # the trainer's logs
    freezes: bool = False  # whether the launch says that parameters are frozen
    shares_rows: bool = False  # whether the launch says that documents share a row
    drawn: tuple[str, ...] = ()  # operators that drew random numbers in evaluation mode
    is_own_script: bool = False  # whether the user's own script chooses the targets, which no framework documents
    epochs: tuple[EpochRecord, ...] = ()  # for each loaded data set
    clipped: tuple[ClippedStep, ...] = ()  # the recorded steps of ranks that hold parts of weights
    data_sets: int = 0  # data sets that a script loaded itself: each has the same rows
    makes_rows: bool = False  # whether the script makes rows of documents itself, because its framework does not
    replaces_rewards: bool = False  # whether synthetic rewards replace the launch's own, which may be costs
    trained_epochs: float = 0.0  # of the launch's own loop; 0.0: unknown
    rates: tuple[float, float] = (0.0, 0.0)  # the launch's own learning rate, and the one set here; 0.0: unknown
    is_guessed: bool = False  # whether the configuration of the launch's model is not known
    tokens: int = 0  # of the model's tokenizer, without those that the launch adds; 0: unknown
    deviations: tuple[str, ...] = ()  # how the job's model differs from transformers' with its configuration
    _sums: dict[tuple[object, ...], list[dict[str, Tensor]]] = field(default_factory=dict, init=False, repr=False)
    computed: dict[tuple[object, ...], Any] = field(default_factory=dict, init=False, repr=False)

    def describe(self, piece: Piece) -> DocumentTruth:
        """Return the reference of a piece."""
        return self.truth.describe(piece.tokens)

    @cached_property
    def judged_pieces(self) -> tuple[Piece, ...]:
        """Return the pieces that belong to a document and have at least two tokens, at the step's first weights.

        A word or two may be those of a document by chance. If rows have other words too and no longer piece, they are
        the program's own.
        """
        pieces = [piece for piece in self.step.pieces if not piece.call.description.get("moved")]
        longest = max((piece.segment.words for piece in pieces), default=0)
        if longest < SEED_WORDS and any(piece.segment.document < 0 for piece in pieces):
            return ()
        return tuple(piece for piece in pieces if piece.segment.document >= 0 and len(piece.tokens) > 1)

    @cached_property
    def hidden_errors(self) -> list[tuple[Piece, float, int]]:
        """The largest relative error of a token's hidden state in each judged piece, and that token.

        Pieces without recorded hidden states are left out, and the rest of documents with words left out in between.
        """
        errors = []
        for piece in self.judged_pieces:
            if id(piece) not in self._torn and (hidden := piece.hidden) is not None:
                own = token_errors(hidden, self.describe(piece).hidden)
                errors.append((piece, float(own.max()), int(own.argmax())))
        return errors

    @cached_property
    def _torn(self) -> set[int]:
        """The pieces after earlier words of the same document in the row, with words left out in between."""
        pairs = [(first, piece) for first, piece in itertools.pairwise(self.step.pieces) if first.call is piece.call]
        return {
            id(piece)
            for first, piece in pairs
            if (first.row, first.segment.document) == (piece.row, piece.segment.document)
            and first.segment.offset + first.segment.words < piece.segment.offset
        }

    @cached_property
    def hidden_limit(self) -> float:
        """The largest allowed relative error of a token's hidden state."""
        if self.rounded is None:
            return FP32_LIMIT
        pieces = self.judged_pieces[:SAMPLED_PIECES]
        pairs = ((self.rounded.describe(piece.tokens), self.describe(piece)) for piece in pieces)
        errors = [float(token_errors(rounded.hidden, exact.hidden).max()) for rounded, exact in pairs]
        return max(FP32_LIMIT, ROUNDING_MULTIPLE * max(errors, default=0.0))

    @cached_property
    def differs(self) -> bool:
        """Whether a document's hidden states are not those of the document in isolation."""
        return any(not error <= self.hidden_limit for _, error, _ in self.hidden_errors)

    @cached_property
    def observed_loss(self) -> float:
        """The loss whose gradient the step took: summed over a rank's batches, averaged across ranks like gradients.

        Ranks that share a row each have the row's loss, or their share times the number of ranks; the mean is the same.
        """
        ranks = self.step.ranks
        return sum(sum(record.losses) for record in ranks) / len(ranks)

    @cached_property
    def has_own_loss(self) -> bool:
        """Whether the differentiated loss is neither the model's own loss nor a simple multiple of it."""
        for record in self.step.ranks:
            own = {call.batch: float(call.description.get("loss", 0.0)) for call in record.calls}
            for batch, loss in enumerate(record.losses):
                ratio = loss / own[batch] if own.get(batch) else 0.0
                if min(abs(ratio - 1.0), abs(ratio * len(record.losses) - 1.0)) > SAME_LOSS:
                    return True
        return False

    @cached_property
    def others(self) -> list[str]:
        """The classes of other models that are called in training; before it, they may choose documents."""
        return [name for record in self.taken[1:] or self.taken for name in record.code.get("others", ())]

    @cached_property
    def batches(self) -> int:
        """Return the number of losses that a rank differentiated before its first step."""
        return max((len(record.losses) for record in self.step.ranks), default=1)

    @cached_property
    def observed_gradients(self) -> dict[str, Tensor]:
        """The gradients of the step, averaged across ranks: they are equal on all ranks that step equally."""
        first, *others = [record.gradients for record in self.step.ranks]
        return {
            name: torch.stack([gradient, *(other[name] for other in others)]).mean(0)
            for name, gradient in first.items()
            if all(name in other and other[name].shape == gradient.shape for other in others)
        }

    def count_targets(self, shift: int = 1, every: bool = False, sliced: Sliced | None = None) -> list[int]:
        """Return the number of targets in each piece of the step."""
        return [int(piece.shift_labels(shift, every, sliced)[1].sum()) for piece in self.step.pieces]

    def sum_nll(self, shift: int = 1, every: bool = False, sliced: Sliced | None = None) -> list[float]:
        """Return Σ −log p over the targets of each piece of the step."""
        sums = []
        for piece in self.step.pieces:
            labels, counts = piece.shift_labels(shift, every, sliced)
            sums.append(float(self.describe(piece).nll(labels).double()[counts].sum()))
        return sums

    def sum_gradients(
        self,
        shares: Sequence[float],
        shift: int = 1,
        every: bool = False,
        rounded: bool = False,
        sliced: Sliced | None = None,
    ) -> dict[str, Tensor]:
        """Return the gradients of Σ share × −log p over the targets of all pieces, with one share per piece."""
        total: dict[str, Tensor] = {}
        for share, gradients in zip(shares, self.list_gradients(shift, every, rounded, sliced), strict=True):
            for name, gradient in gradients.items():
                total[name] = total.get(name, 0.0) + share * gradient
        return total

    def list_gradients(
        self, shift: int = 1, every: bool = False, rounded: bool = False, sliced: Sliced | None = None
    ) -> list[dict[str, Tensor]]:
        """Return, for each piece of the step, the gradients of Σ −log p over its targets."""
        model = self.rounded if rounded and self.rounded is not None else self.truth
        key = (shift, every, model is self.rounded, sliced)
        if key not in self._sums:
            self._sums[key] = [
                self._keep_compared(model.gradients(piece.tokens, labels, counts.float()))
                for piece in self.step.pieces
                for labels, counts in [piece.shift_labels(shift, every, sliced)]
            ]
        return self._sums[key]

    def _keep_compared(self, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return only the gradients, including adapters', that are compared with the step's."""
        record = self.step.ranks[0]
        total = add_adapter_gradients(gradients, record.adapters, record.weights)
        names = {*record.trainable, *self.observed_gradients}
        return {name: gradient for name, gradient in total.items() if name in names}

    def list_shares(self, normalisation: Normalisation, counts: Sequence[int]) -> list[float]:
        """Return, for each piece, the weight of one of its targets, whose numbers are `counts`."""
        keys = [_group(piece, normalisation) for piece in self.step.pieces]
        if normalisation in ("step_labels", "rank_labels"):
            labels = self.step.count_labels()
            if normalisation == "step_labels":
                return [1.0 / max(1, sum(labels.values()))] * len(keys)
            return [1.0 / (max(1, labels[piece.call.rank]) * len(labels)) for piece in self.step.pieces]
        if normalisation == "batch_positions":
            sizes = {key: piece.call.input_ids[:, 1:].numel() for key, piece in zip(keys, self.step.pieces)}
            return [1.0 / (max(1, sizes[key]) * len(sizes)) for key in keys]
        totals: dict[object, int] = {}
        for key, count in zip(keys, counts, strict=True):
            totals[key] = totals.get(key, 0) + count
        groups = sum(total > 0 for total in totals.values())
        if normalisation == "batch_rows":
            documents = Counter(key for key, count in zip(keys, counts) if count)
            return [documents[key] / (totals[key] * documents.total()) if totals[key] else 0.0 for key in keys]
        if normalisation == "document_sums":
            return [1.0 / groups if totals[key] else 0.0 for key in keys]
        return [1.0 / (totals[key] * groups) if totals[key] else 0.0 for key in keys]


def _group(piece: Piece, normalisation: Normalisation) -> object:
    call = piece.call
    return {
        "step_tokens": (),
        "step_labels": (),
        "rank_tokens": (call.rank,),
        "rank_labels": (call.rank,),
        "batch_tokens": (call.rank, call.batch),
        "group_tokens": (call.batch,),
        "batch_positions": (call.rank, call.batch),
        "batch_rows": (call.rank, call.batch),
        "row_tokens": (call.rank, call.batch, id(call), piece.row),
        "document_tokens": (call.rank, call.batch, id(call), piece.row, piece.segment.start),
        "document_sums": (call.rank, call.batch, id(call), piece.row, piece.segment.start),
    }[normalisation]


def list_positions(piece: Piece) -> list[int] | None:
    """Return the job's position_ids for a piece's tokens, None if it passed none."""
    positions = piece.call.tensors.get("position_ids")
    if positions is None:
        return None
    while positions.dim() > 2:
        positions = positions[-1]
    row = positions[piece.row if positions.shape[0] > piece.row else 0]
    return [int(position) for position in row[piece.segment.start : piece.segment.stop]]


def causal(length: int) -> Tensor:
    """Return the tokens that each token of a causal model attends to: (length, length) bool."""
    return torch.ones(length, length, dtype=torch.bool).tril()
