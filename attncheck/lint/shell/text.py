"""Text that remembers where it came from: runs of characters, each with its place in the source and its uses."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from attncheck.core.launch import NOWHERE, Source, Span

DEEPEST = 24  # uses remembered of one run: a variable that is appended to itself in a long script has as many
QUOTING = frozenset("\\'\"\n")


@dataclass(frozen=True)
class Run:
    """Characters that stand side by side in the source, or that were made (`start` is -1) and stand for their use."""

    text: str
    start: int
    known: bool = True
    uses: tuple[Span, ...] = ()  # the `$NAME`s that brought it where it is, innermost first
    splits: bool = False  # expanded outside quotes: blanks in it divide words
    quoted: bool = False  # written in quotes where it was read: asked only of a default's words
    element: Span = NOWHERE  # the word in an array's definition that it is

    def part(self, first: int, end: int) -> Run:
        """Return some of the characters."""
        return replace(self, text=self.text[first:end], start=self.start + first if self.start >= 0 else -1)

    def used(self, use: Span, splits: bool) -> Run:
        """Return the run as a use of the variable that holds it gives it."""
        uses = (*self.uses[:DEEPEST], use)
        return replace(self, uses=uses, splits=splits and self.known, element=NOWHERE)

    def of_element(self, span: Span) -> Run:
        """Return the run as part of an array's element, which stands at `span`."""
        return replace(self, splits=False, element=span)


Runs = tuple[Run, ...]


@dataclass(frozen=True)
class Text:
    """A script to read: the source itself, or a string in it that is read as a script."""

    source: Source
    string: str
    runs: Runs
    starts: tuple[int, ...]  # where each run begins in `string`

    @classmethod
    def of(cls, source: Source, runs: Sequence[Run]) -> Text:
        """Return the text that `runs` spell."""
        starts, length = [], 0
        for run in runs:
            starts.append(length)
            length += len(run.text)
        return cls(source, "".join(run.text for run in runs), tuple(runs), tuple(starts))

    @classmethod
    def whole(cls, source: Source) -> Text:
        """Return the source as it stands."""
        return cls.of(source, [Run(source.text, 0)])

    def between(self, first: int, end: int) -> Runs:
        """Return the characters from `first` to `end`."""
        found = []
        index = max(bisect_right(self.starts, first) - 1, 0)
        while index < len(self.runs) and self.starts[index] < end:
            begin, run = self.starts[index], self.runs[index]
            part = run.part(max(first - begin, 0), min(end - begin, len(run.text)))
            if part.text:
                found.append(part)
            index += 1
        return tuple(found)

    def span(self, first: int, end: int) -> Span:
        """Return where those characters stand in the source, `NOWHERE` where they come from several places."""
        if len(self.runs) == 1 and self.runs[0].start >= 0 and not self.runs[0].uses:
            return (first + self.runs[0].start, end + self.runs[0].start)
        inside = self.between(first, end)
        here = _lengths(inside)
        start, stop = joined(inside, self.source.text, lambda use: here[use] == self._whole[use])
        return (start - self._escaped(first, start), stop)

    def _escaped(self, first: int, start: int) -> bool:
        """Say whether a backslash in front of the character is gone from this text: it belongs to the character."""
        before = self.between(first - 1, first) if first else ()
        return start > 0 and self.source.text[start - 1] == "\\" and not (before and before[0].start == start - 1)

    @cached_property
    def _whole(self) -> Counter[Span]:
        return _lengths(self.runs)


def _lengths(runs: Iterable[Run]) -> Counter[Span]:
    """Return how many characters each use brought."""
    found: Counter[Span] = Counter()
    for run in runs:
        for use in run.uses:
            found[use] += len(run.text)
    return found


def string(runs: Iterable[Run]) -> str:
    """Return the characters of `runs`."""
    return "".join(run.text for run in runs)


def known(runs: Iterable[Run]) -> bool:
    """Say whether every character is known."""
    return all(run.known for run in runs)


def joined(runs: Iterable[Run], source: str, whole: Callable[[Span], bool]) -> Span:
    """Return the one span that gave all of `runs`, `NOWHERE` where there is none.

    `whole(use)` says whether all that a use brought is in `runs`: then the use stands for it.
    """
    first = end = -1
    last: Span = NOWHERE
    for run in runs:
        piece = next((use for use in reversed(run.uses) if whole(use)), None)
        if piece is None:
            if run.start < 0:
                return NOWHERE
            piece = (run.start, run.start + len(run.text))
        if piece == last:
            continue
        if first < 0:
            first, end = piece
        elif piece[0] == end or (0 < piece[0] - end <= 8 and QUOTING.issuperset(source[end : piece[0]])):
            end = piece[1]
        else:
            return NOWHERE
        last = piece
    return (first, end)
