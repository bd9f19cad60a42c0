"""Text that records its origin: segments of characters, each with its offset in the source and its expansions."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from attncheck.core.launch import NOWHERE, Source, Span

MAX_EXPANSIONS = 24  # kept per segment: a variable that is extended repeatedly in a long script has this many
QUOTING_CHARACTERS = frozenset("\\'\"\n")


class Segment(NamedTuple):
    """Adjacent characters of the source, starting at offset `start`; or the result of an expansion (`start` is -1)."""

    text: str
    start: int
    known: bool = True
    expansions: tuple[Span, ...] = ()  # spans of the `$NAME`s through which it was expanded, innermost first
    splittable: bool = False  # expanded outside quotes, so word splitting divides it at spaces
    quoted: bool = False  # written in quotes at the place where it was read
    element_span: Span = NOWHERE  # span of the word in an array's definition that contains it

    def substring(self, start: int, end: int) -> Segment:
        """Return the characters from `start` to `end`, counted within the segment."""
        if start == 0 and end >= len(self.text):
            return self
        return Segment(
            self.text[start:end], self.start + start if self.start >= 0 else -1, self.known, self.expansions,
            self.splittable, self.quoted, self.element_span,
        )  # fmt: skip

    def with_expansion(self, expansion: Span, splittable: bool) -> Segment:
        """Return the segment in the form that the expansion with the span `expansion` inserts."""
        expansions = (*self.expansions[:MAX_EXPANSIONS], expansion)
        return self._replace(expansions=expansions, splittable=splittable and self.known, element_span=NOWHERE)

    def with_element(self, span: Span) -> Segment:
        """Return the segment as part of an array's element, which is at `span`."""
        return self._replace(splittable=False, element_span=span)


Segments = tuple[Segment, ...]


@dataclass(frozen=True)
class ScriptText:
    """The text of a script: the whole source, or a string in it that is read as a script (`bash -c`, `eval`)."""

    source: Source
    string: str
    segments: Segments
    segment_starts: tuple[int, ...]  # where each segment begins in `string`

    @classmethod
    def from_segments(cls, source: Source, segments: Sequence[Segment]) -> ScriptText:
        """Return the text formed by `segments`."""
        starts, length = [], 0
        for segment in segments:
            starts.append(length)
            length += len(segment.text)
        return cls(source, "".join(segment.text for segment in segments), tuple(segments), tuple(starts))

    @classmethod
    def from_source(cls, source: Source) -> ScriptText:
        """Return the whole source as one text."""
        return cls.from_segments(source, [Segment(source.text, 0)])

    def segments_between(self, start: int, end: int) -> Segments:
        """Return the characters from `start` to `end`."""
        parts = []
        index = max(bisect_right(self.segment_starts, start) - 1, 0)
        while index < len(self.segments) and self.segment_starts[index] < end:
            segment_start, segment = self.segment_starts[index], self.segments[index]
            part = segment.substring(max(start - segment_start, 0), min(end - segment_start, len(segment.text)))
            if part.text:
                parts.append(part)
            index += 1
        return tuple(parts)

    def source_span(self, start: int, end: int) -> Span:
        """Return the span of those characters in the source; `NOWHERE` if they come from several places."""
        if len(self.segments) == 1 and self.segments[0].start >= 0 and not self.segments[0].expansions:
            return (start + self.segments[0].start, end + self.segments[0].start)
        segments = self.segments_between(start, end)
        lengths = _measure_expansions(segments)
        span_start, span_end = merge_spans(
            segments, self.source.text, lambda expansion: lengths[expansion] == self._expansion_lengths[expansion]
        )
        return (span_start - self._is_escaped(start, span_start), span_end)

    def _is_escaped(self, start: int, source_start: int) -> bool:
        """Return whether the source has a backslash before the characters that is not part of this text."""
        previous = self.segments_between(start - 1, start) if start else ()
        return (
            source_start > 0
            and self.source.text[source_start - 1] == "\\"
            and not (previous and previous[0].start == source_start - 1)
        )

    @cached_property
    def _expansion_lengths(self) -> Counter[Span]:
        return _measure_expansions(self.segments)


def _measure_expansions(segments: Iterable[Segment]) -> Counter[Span]:
    """Return how many characters each expansion inserted."""
    lengths: Counter[Span] = Counter()
    for segment in segments:
        for expansion in segment.expansions:
            lengths[expansion] += len(segment.text)
    return lengths


def join_text(segments: Iterable[Segment]) -> str:
    """Return the characters of `segments` as one string."""
    return "".join(segment.text for segment in segments)


def all_known(segments: Iterable[Segment]) -> bool:
    """Return whether every character is known."""
    return all(segment.known for segment in segments)


def merge_spans(segments: Iterable[Segment], source_text: str, is_complete: Callable[[Span], bool]) -> Span:
    """Return the one span of the source that all of `segments` come from; `NOWHERE` if there is none.

    `is_complete(expansion)` returns whether `segments` contain all that an expansion inserted; its span then represents
    it.
    """
    start = end = -1
    previous: Span = NOWHERE
    for segment in segments:
        piece = next((expansion for expansion in reversed(segment.expansions) if is_complete(expansion)), None)
        if piece is None:
            if segment.start < 0:
                return NOWHERE
            piece = (segment.start, segment.start + len(segment.text))
        if piece == previous:
            continue
        if start < 0:
            start, end = piece
        elif piece[0] == end or (
            0 < piece[0] - end <= 8 and QUOTING_CHARACTERS.issuperset(source_text[end : piece[0]])
        ):
            end = piece[1]
        else:
            return NOWHERE
        previous = piece
    return (start, end)
