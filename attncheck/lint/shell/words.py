"""The words that a script's raw words become: expanded, divided at blanks, each with the place it came from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from attncheck.core.launch import NOWHERE, Span
from attncheck.lint.shell.expansion import BLANKS, BREAK, Expansion, plain
from attncheck.lint.shell.scope import Field, Scope
from attncheck.lint.shell.text import Run, Runs, Text, joined


def fields(text: Text, first: int, end: int, scope: Scope) -> list[Field]:
    """Return the words that the raw word from `first` to `end` becomes: one, several or none."""
    pieces = Expansion(text, scope).word(first, end)
    divided, arrays = _divided(pieces)
    if len(divided) == 1 and not arrays:
        return [Field(divided[0], text.span(first, end))]
    counts: Counter[Span] = Counter(use for runs in divided for use in {use for run in runs for use in run.uses})
    return [Field(runs, _span(runs, text, lambda use: counts[use] == 1)) for runs in divided]


def value(text: Text, first: int, end: int, scope: Scope) -> Runs:
    """Return what an assignment of the raw word gives: nothing is divided."""
    return tuple(plain(Expansion(text, scope).word(first, end)))


def document(text: Text, first: int, end: int, scope: Scope) -> Runs:
    """Return what a heredoc's body becomes."""
    return tuple(plain(Expansion(text, scope).quoted(first, end, heredoc=True)))


def _span(runs: Runs, text: Text, whole: Callable[[Span], bool]) -> Span:
    for run in runs:
        if run.element != NOWHERE:
            return run.element if all(other.element == run.element for other in runs) else NOWHERE
    return joined(runs, text.source.text, whole)


def _divided(pieces: Sequence[Run]) -> tuple[list[Runs], bool]:
    """Return the words that `pieces` make, and whether an array gave some of them."""
    words: list[list[Run]] = []
    current: list[Run] | None = None
    arrays = False
    for run in pieces:
        arrays = arrays or run is BREAK or run.element != NOWHERE
        if run is BREAK or (run.splits and BLANKS.search(run.text)):
            current = _divide(run, words, current)
        else:
            current = current if current is not None else []
            current.append(run)
    if current is not None:
        words.append(current)
    return [tuple(run for run in word if run.text) for word in words], arrays


def _divide(run: Run, words: list[list[Run]], current: list[Run] | None) -> list[Run] | None:
    """Put the words of a run that divides into `words`; return the word that is still open."""
    if run is BREAK:
        if current is not None:
            words.append(current)
        return None
    at = 0
    for gap in BLANKS.finditer(run.text):
        if gap.start() > at:
            current = [*(current or []), run.part(at, gap.start())]
        if current is not None:
            words.append(current)
        current, at = None, gap.end()
    return [run.part(at, len(run.text))] if at < len(run.text) else current
