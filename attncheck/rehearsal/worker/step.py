"""The first step as documents: each piece of a document, its location, and its targets.

A target is a token whose prediction counts in the loss. If labels are model inputs (unshifted, -100 for tokens that are
not learned: transformers' convention), they decide; otherwise the job's objective does.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from attncheck.core.rehearsal import FREE, Objective, Targets
from attncheck.rehearsal.worker.layouts import Layout
from attncheck.rehearsal.worker.own_rows import find_block_borders
from attncheck.rehearsal.worker.records import IGNORED, ModelCall, RankRecord
from attncheck.rehearsal.worker.segments import DocumentIndex, Segment, find_borders

MIN_LEADING = 3  # tokens that end documents at the beginning of a row: no document begins with so many


@dataclass(frozen=True)
class Sliced:
    """How to read the targets of a row that is split across ranks."""

    # The target of a slice's last token: the next token in the row; none; the slice's first token if it is a target; or
    # the slice's first token if the next one in the row is a target.
    labels: Literal["whole", "lost", "rolled", "misplaced"] = "whole"
    rank: int = -1  # the only rank of the group whose targets count; -1: all


@dataclass(frozen=True)
class Piece:
    """A piece of a document in a batch: `segment` of row `row` of the call, its tokens, and its targets."""

    call: ModelCall
    row: int
    segment: Segment
    tokens: tuple[int, ...]
    row_targets: Tensor  # (seqlen,) bool: the tokens of the row that must be predicted from any token

    @property
    def hidden(self) -> Tensor | None:
        """The job's hidden states of its tokens (tokens, hidden size), if they were recorded."""
        hidden = self.call.hidden
        if hidden is None or hidden.shape[:-1] != self.call.input_ids.shape:
            return None
        return hidden[self.row, self.segment.start : self.segment.stop]

    @property
    def is_target(self) -> Tensor:
        """Which of its tokens after the first are targets: (tokens - 1) bool."""
        return self.row_targets[self.segment.start + 1 : self.segment.stop]

    @property
    def first_is_target(self) -> bool:
        """Whether its first token is a target, which another document's last token would have to predict."""
        return self.segment.start > 0 and bool(self.row_targets[self.segment.start])

    def shift_labels(self, shift: int, every: bool = False, sliced: Sliced | None = None) -> tuple[Tensor, Tensor]:
        """Return each token's target, `shift` tokens ahead in the row, and whether it counts: (tokens,) each.

        -1 is the token before. `every` counts all tokens of the piece, regardless of labels; `sliced` reads labels
        within slices of the row.
        """
        if sliced is not None and self.call.places is not None:
            return self._shift_in_slices(sliced, self.call.places)
        row, length = self.call.input_ids[self.row], len(self.tokens)
        labels, counts = torch.zeros(length, dtype=torch.long), torch.zeros(length, dtype=torch.bool)
        last = self.segment.stop if every else len(row)
        places = range(self.segment.start + shift, min(self.segment.stop + shift, last))
        first, begin = max(0, -places.start), max(0, places.start)  # a row's first token has none before it
        labels[first : len(places)] = row[begin : places.stop]
        counts[first : len(places)] = True if every else self.row_targets[begin : places.stop]
        return labels, counts

    def _shift_in_slices(self, sliced: Sliced, places: Tensor) -> tuple[Tensor, Tensor]:
        row, span = self.call.input_ids[self.row], slice(self.segment.start, self.segment.stop)
        following = torch.arange(1, len(row) + 1)  # position in the row of the next token
        if sliced.labels != "whole":
            ends = torch.full_like(places[:, :1], len(row)) if sliced.labels == "lost" else places[:, :1]
            following[places] = torch.cat([places[:, 1:], ends], 1)
        counts = pad(self.row_targets, (0, 1))[following]
        if sliced.labels == "misplaced":
            counts = pad(self.row_targets, (0, 1))[1:]
        if sliced.rank >= 0:
            own = torch.zeros_like(counts)
            own[places[sliced.rank]] = True
            counts = counts & own
        return pad(row, (0, 1))[following][span], counts[span]

    @property
    def place(self) -> str:
        """The location in words."""
        rank = f"rank {self.call.rank}, " if self.call.rank else ""
        return f"{rank}batch {self.call.batch + 1}, row {self.row + 1}"


@dataclass(frozen=True)
class FirstStep:
    """The first step of all ranks, read as documents."""

    ranks: tuple[RankRecord, ...]
    index: DocumentIndex
    objective: Objective
    padding: int | None
    layout: Layout  # how rows are split across ranks
    first_tokens: bool = False  # whether a document's first token is a target, if labels do not decide
    leading: int = -1  # a token that is padding if several of it begin a row, and may end documents; -1: none
    moved: int = 0  # offset of a row's targets, to test whether they were moved
    narrowed: bool = False  # whether only those moved targets count that are also targets unmoved
    # First and last of a piece's targets that count, if labels do not decide the targets.
    kept: tuple[int | None, int | None] = (None, None)

    @cached_property
    def calls(self) -> tuple[ModelCall, ...]:
        """Return the calls in training of the trained model, whose gradients were taken."""
        return tuple(call for record in self.ranks for call in record.calls)

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """Return the pieces of documents of all calls, rank by rank, row by row."""
        return tuple(piece for call in self.calls for piece in self._iter_pieces(call))

    def count_labels(self) -> dict[int, int]:
        """Return the number of labels of each rank, first tokens included: in its inputs, or else as assumed."""
        counts = dict.fromkeys((call.rank for call in self.calls), 0)
        for call in self.calls if self.labels_enter else ():
            if "labels" in call.tensors:
                counts[call.rank] += int((call.tensors["labels"] != IGNORED).sum())
        for piece in () if self.labels_enter else self.pieces:
            counted = piece.shift_labels(1)[1]
            has_first = piece.segment.start == 0 and bool(counted[:1].any())  # unmasked rows label their first token
            counts[piece.call.rank] += int(counted.sum()) + has_first
        return counts

    @property
    def labels_enter(self) -> bool:
        """Whether labels are model inputs."""
        return any("labels" in call.tensors for call in self.calls)

    def list_readings(self) -> "list[FirstStep]":
        """Return the step with each possible objective; labels that were not recorded are assumed."""
        if self.labels_enter or self.objective.policy is not None:
            return [self]
        targets: tuple[Targets, ...] = (self.objective.targets,)
        if self.objective.targets in FREE:
            targets = ("all",) if self.index.is_own else ("all", "assistant")
        return [
            replace(self, objective=replace(self.objective, targets=name), first_tokens=first_tokens)
            for name in targets
            for first_tokens in (False, True)
        ]

    def _iter_pieces(self, call: ModelCall) -> Iterator[Piece]:
        labels = call.tensors.get("labels")
        for number, row in enumerate(self.mark_padding(call).tolist()):
            borders = find_borders(call.tensors, number, len(row))
            if self.index.is_own:  # its words do not show where a document ends
                borders = sorted({*borders, *find_block_borders(call.tensors, number, len(row))})
            segments = self.index.find_segments(row, borders, self.padding)
            tokens = [tuple(row[segment.start : segment.stop]) for segment in segments]
            targets = torch.zeros(len(row), dtype=torch.bool)
            if labels is not None and labels.shape == call.input_ids.shape:
                targets = labels[number] != IGNORED
            else:
                for segment, own in zip(segments, tokens, strict=True):
                    targets[segment.start + 1 : segment.stop] = self.expected_targets(segment, own)
                    targets[segment.start] = self.first_tokens
                    places = segment.start + targets[segment.start : segment.stop].nonzero().flatten()
                    targets[segment.start : segment.stop] = False
                    targets[places[slice(*self.kept)]] = True
            targets = self._move(targets)
            for segment, own in zip(segments, tokens, strict=True):
                yield Piece(call, number, segment, own, targets)

    def mark_padding(self, call: ModelCall) -> Tensor:
        """Return the tokens of a call, with the padding token where its mask hides them.

        Some frameworks pad with a word.
        """
        mask, tokens = call.tensors.get("attention_mask"), call.input_ids
        if self.padding is None:
            return tokens
        if mask is not None and mask.shape == tokens.shape:
            return tokens.masked_fill(mask == 0, self.padding)
        leads = (tokens == self.leading).cumprod(1)  # for each token, whether all tokens up to it are the padding token
        return tokens.masked_fill(leads.bool() & (leads.sum(1, keepdim=True) >= MIN_LEADING), self.padding)

    def _move(self, targets: Tensor) -> Tensor:
        moved = targets.roll(self.moved)
        return moved & targets if self.narrowed else moved

    def expected_targets(self, segment: Segment, tokens: Sequence[int]) -> Tensor:
        """Return which of a piece's tokens after the first are targets of the objective: (tokens - 1) bool.

        In the markup, the token that ends an answer is a target; if whole documents are learned, all of it is.
        """
        if self.objective.targets in ("all", *FREE) or segment.document < 0:
            return torch.ones(len(tokens) - 1, dtype=torch.bool)
        targets: list[bool] = []
        for token, role in zip(tokens, self.list_roles(segment, tokens), strict=True):
            is_word = self.index.vocabulary.is_word(token)
            targets.append(role == "assistant" and (is_word or (bool(targets) and targets[-1])))
        return torch.tensor(targets[1:], dtype=torch.bool)

    def list_roles(self, segment: Segment, tokens: Sequence[int]) -> list[str]:
        """Return the speaker of each token of a piece; for markup, the last speaker."""
        roles = self.index.roles(segment.document)
        word, current = segment.offset, ""
        listed = []
        for token in tokens:
            if self.index.vocabulary.is_word(token) and word < len(roles):
                current = roles[word]
                word += 1
            listed.append(current)
        return listed
