"""Finds documents in token rows of the user's data, by the job's boundaries.

A document's data row is identified by its text: runs of tokens that only one row has, with each text tokenized
separately. If a stretch without a boundary contains the text of several data rows, these are documents that nothing
separates. The boundary is then placed by the first document's own markup, and marked `inferred`.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attncheck.rehearsal.worker.segments import DocumentIndex, Segment, strip_padding

RUN_TOKENS = 8  # consecutive tokens that only one row has
MIN_MATCHES = 8  # runs of a row that identify a stretch as its text: at least 15 tokens
UNTOLD = (
    "not judged: batch rows contain several data rows without a boundary, and their tokens attend neither to their "
    "own document alone nor to all earlier ones"
)
BEGINNING = 2  # tokens into a text at which its first run is expected: the very first may differ in a row


@dataclass(frozen=True)
class Run:
    """A stretch of a row's text in a batch: tokens [start, stop), the first at `offset` of the row's texts."""

    document: int
    start: int
    stop: int
    offset: int
    matches: int


class RowIndex(DocumentIndex):
    """Finds rows of the data by the tokens of their texts; `rows` has each row's texts as tokens."""

    is_own = True

    def __init__(self, rows: Sequence[Sequence[Sequence[int]]], end: int | None = None) -> None:
        super().__init__([[("", tuple(token for text in texts for token in text))] for texts in rows])
        self.end = end
        self._runs: dict[tuple[int, ...], tuple[int, int]] = {}
        shared: set[tuple[int, ...]] = set()
        for number, texts in enumerate(rows):
            offset = 0
            for text in texts:
                for place in range(len(text) - RUN_TOKENS + 1):
                    run = tuple(text[place : place + RUN_TOKENS])
                    if self._runs.setdefault(run, (number, offset + place))[0] != number:
                        shared.add(run)
                offset += len(text)
        for run in shared:
            del self._runs[run]
        self.tellable = {number for number, _ in self._runs.values()}

    @property
    def unknown(self) -> int:
        """The number of a document that belongs to no identifiable row."""
        return len(self.documents)

    def name_document(self, document: int) -> str:
        """Return a document's name for messages."""
        return f"row {document + 1} of the data" if document < self.unknown else "a document"

    def find_segments(self, row: Sequence[int], borders: Sequence[int], padding: int | None) -> list[Segment]:
        """Return the documents of a row of tokens, in order."""
        first, last = strip_padding(row, padding)
        edges = [first, *(border for border in borders if first < border < last), last]
        segments: list[Segment] = []
        for start, stop in itertools.pairwise(edges):
            segments += self._split(row, start, stop)
        while segments and segments[-1].document == self.unknown and _is_filling(row, segments[-1]):
            segments.pop()
        return segments

    def _split(self, row: Sequence[int], start: int, stop: int) -> list[Segment]:
        """Return the documents of a stretch without a boundary inside."""
        runs = self._find_runs(row, start, stop)
        if not runs:
            return [Segment(self.unknown, start, stop, 0, 0)]
        begins = [start, *(self._find_border(row, start, runs, number) for number in range(1, len(runs)))]
        return [
            Segment(run.document, begin, end, run.offset if run.offset > BEGINNING else 0, run.matches, number > 0)
            for number, (run, begin, end) in enumerate(zip(runs, begins, [*begins[1:], stop], strict=True))
        ]

    def _find_runs(self, row: Sequence[int], start: int, stop: int) -> list[Run]:
        """Return the runs of a stretch; consecutive runs of one data row are merged."""
        runs: list[Run] = []
        for place in range(start, stop - RUN_TOKENS + 1):
            match = self._runs.get(tuple(row[place : place + RUN_TOKENS]))
            if match is None:
                continue
            if runs and runs[-1].document == match[0]:
                last = runs[-1]
                runs[-1] = Run(last.document, last.start, place + RUN_TOKENS, last.offset, last.matches + 1)
            else:
                runs.append(Run(match[0], place, place + RUN_TOKENS, match[1], 1))
        merged: list[Run] = []
        for run in (run for run in runs if run.matches >= MIN_MATCHES):
            if merged and merged[-1].document == run.document:
                last = merged[-1]
                merged[-1] = Run(run.document, last.start, run.stop, last.offset, last.matches + run.matches)
            else:
                merged.append(run)
        return merged

    def _find_border(self, row: Sequence[int], start: int, runs: Sequence[Run], number: int) -> int:
        """Return the start of a run's document: as far before its text as in the row's first document."""
        before, run = runs[number - 1], runs[number]
        if runs[0].offset <= BEGINNING and run.offset <= BEGINNING:
            markup = runs[0].start - runs[0].offset - start
            return min(max(before.stop, run.start - run.offset - markup), run.start)
        ends = [place + 1 for place in range(before.stop, run.start) if row[place] == self.end]
        return ends[0] if ends else before.stop


def _is_filling(row: Sequence[int], segment: Segment) -> bool:
    """Return whether a stretch is one repeated token, which pads a row."""
    return len(set(row[segment.start : segment.stop])) == 1


def find_block_borders(tensors: Mapping[str, Tensor], row: int, seqlen: int) -> list[int]:
    """Return the positions of a row at which a mask of (batch, 1, seqlen, seqlen) hides all earlier tokens."""
    mask = tensors.get("attention_mask")
    if mask is None or mask.dim() != 4 or mask.shape[-2:] != (seqlen, seqlen):
        return []
    own = mask[row if mask.shape[0] > row else 0, 0]
    visible = own if own.dtype == torch.bool else own == 0
    sees_before = (visible & torch.ones_like(visible).tril(-1)).any(-1).tolist()
    return [place for place in range(1, seqlen) if not sees_before[place]]
