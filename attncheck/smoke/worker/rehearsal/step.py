"""The first step as documents: each piece of a document that went in, where it stood, which of its tokens are targets.

A target is a token whose prediction counts in the loss. Where labels go into the model (unshifted, -100 where nothing
is to be learnt: transformers' convention) they say it; elsewhere the job's objective does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from attncheck.core.rehearsal import Objective
from attncheck.smoke.worker.data.language import LANGUAGE_VOCABULARY
from attncheck.smoke.worker.rehearsal.records import ModelCall, RankRecord
from attncheck.smoke.worker.rehearsal.segments import DocumentIndex, Segment, find_borders, find_segments

IGNORED = -100


@dataclass(frozen=True)
class Piece:
    """A piece of a document in a batch: `segment` of row `row` of the call, its tokens, and which are targets."""

    call: ModelCall
    row: int
    segment: Segment
    tokens: tuple[int, ...]
    is_target: Tensor  # (tokens - 1) bool: of the next token
    first_is_target: bool  # its first token, which another document's last would have to predict

    @property
    def place(self) -> str:
        """Where it stood, in words."""
        rank = f"rank {self.call.rank}, " if self.call.rank else ""
        return f"{rank}batch {self.call.batch + 1}, row {self.row + 1}"


@dataclass(frozen=True)
class FirstStep:
    """The first step of all ranks, read as documents."""

    ranks: tuple[RankRecord, ...]
    index: DocumentIndex
    objective: Objective
    padding: int | None

    @cached_property
    def calls(self) -> tuple[ModelCall, ...]:
        """Return the calls of the trained model: the one whose gradients were taken, in training."""
        return tuple(call for record in self.ranks for call in record.calls)

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """Return the pieces of documents of all calls, rank by rank, row by row."""
        return tuple(piece for call in self.calls for piece in self._iter_pieces(call))

    @property
    def labels_enter(self) -> bool:
        """Whether labels go into the model."""
        return any("labels" in call.tensors for call in self.calls)

    def _iter_pieces(self, call: ModelCall) -> Iterator[Piece]:
        labels = call.tensors.get("labels")
        for number, row in enumerate(call.input_ids.tolist()):
            for segment in find_segments(row, self.index, find_borders(call.tensors, number, len(row)), self.padding):
                tokens = tuple(row[segment.start : segment.stop])
                if labels is not None and labels.shape == call.input_ids.shape:
                    targets = labels[number, segment.start : segment.stop] != IGNORED
                    yield Piece(call, number, segment, tokens, targets[1:], bool(targets[0]) and segment.start > 0)
                else:
                    yield Piece(call, number, segment, tokens, self.expected_targets(segment, tokens), False)

    def expected_targets(self, segment: Segment, tokens: Sequence[int]) -> Tensor:
        """Return which of a piece's tokens after the first the objective makes targets: (tokens - 1) bool.

        Of markup the one after an answer is a target, which ends it; all of it where whole documents are learnt.
        """
        if self.objective.targets != "assistant" or segment.document < 0:
            return torch.ones(len(tokens) - 1, dtype=torch.bool)
        targets: list[bool] = []
        for token, role in zip(tokens, self.list_roles(segment, tokens), strict=True):
            targets.append(role == "assistant" and (token < LANGUAGE_VOCABULARY or (bool(targets) and targets[-1])))
        return torch.tensor(targets[1:], dtype=torch.bool)

    def list_roles(self, segment: Segment, tokens: Sequence[int]) -> list[str]:
        """Return who speaks each token of a piece; of markup, who spoke last."""
        roles = self.index.roles(segment.document)
        word, current = segment.offset, ""
        listed = []
        for token in tokens:
            if token < LANGUAGE_VOCABULARY and word < len(roles):
                current = roles[word]
                word += 1
            listed.append(current)
        return listed
