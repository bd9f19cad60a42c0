"""Expands raw words of a script into the fields that result from word splitting, each with its span."""

from collections import Counter
from collections.abc import Callable, Sequence

from attncheck.core.launch import NOWHERE, Span
from attncheck.lint.shell.expansion import BLANKS, WORD_BREAK, Expander, join_breaks
from attncheck.lint.shell.scope import Field, Scope
from attncheck.lint.shell.text import ScriptText, Segment, Segments, merge_spans


def expand_fields(text: ScriptText, start: int, end: int, scope: Scope) -> list[Field]:
    """Return the fields that the raw word from `start` to `end` expands to: none, one or several."""
    segments = Expander(text, scope).expand_word(start, end)
    fields, from_array = _split_fields(segments)
    if len(fields) == 1 and not from_array:
        return [Field(fields[0], text.source_span(start, end))]
    counts: Counter[Span] = Counter(
        expansion
        for field in fields
        for expansion in {expansion for segment in field for expansion in segment.expansions}
    )
    return [Field(field, _find_field_span(field, text, lambda expansion: counts[expansion] == 1)) for field in fields]


def expand_value(text: ScriptText, start: int, end: int, scope: Scope) -> Segments:
    """Return the value of the raw word in an assignment: expanded, without word splitting."""
    return tuple(join_breaks(Expander(text, scope).expand_word(start, end)))


def expand_heredoc(text: ScriptText, start: int, end: int, scope: Scope) -> Segments:
    """Return the expanded body of a here-document."""
    return tuple(join_breaks(Expander(text, scope).expand_quoted(start, end, is_heredoc=True)))


def _find_field_span(segments: Segments, text: ScriptText, is_complete: Callable[[Span], bool]) -> Span:
    for segment in segments:
        if segment.element_span != NOWHERE:
            return (
                segment.element_span
                if all(other.element_span == segment.element_span for other in segments)
                else NOWHERE
            )
    return merge_spans(segments, text.source.text, is_complete)


def _split_fields(segments: Sequence[Segment]) -> tuple[list[Segments], bool]:
    """Return the fields formed by `segments`, and whether an array produced some of them."""
    fields: list[list[Segment]] = []
    current: list[Segment] | None = None
    from_array = False
    for segment in segments:
        from_array = from_array or segment is WORD_BREAK or segment.element_span != NOWHERE
        if segment is WORD_BREAK or (segment.splittable and BLANKS.search(segment.text)):
            current = _split_segment(segment, fields, current)
        else:
            current = current if current is not None else []
            current.append(segment)
    if current is not None:
        fields.append(current)
    return [tuple(segment for segment in field if segment.text) for field in fields], from_array


def _split_segment(
    segment: Segment, fields: list[list[Segment]], current: list[Segment] | None
) -> list[Segment] | None:
    """Append the fields that end within a splittable segment to `fields`; return the field that is still open."""
    if segment is WORD_BREAK:
        if current is not None:
            fields.append(current)
        return None
    offset = 0
    for blank in BLANKS.finditer(segment.text):
        if blank.start() > offset:
            current = [*(current or []), segment.substring(offset, blank.start())]
        if current is not None:
            fields.append(current)
        current, offset = None, blank.end()
    return [segment.substring(offset, len(segment.text))] if offset < len(segment.text) else current
