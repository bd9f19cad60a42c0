"""Lines of text for a terminal."""

from dataclasses import dataclass

StyledText = tuple[tuple[str, str], ...]  # pairs of (text, style), side by side


@dataclass(frozen=True)
class Line:
    """One line: a styled head, then text that is wrapped below it; with `no_wrap` nothing is wrapped."""

    head: StyledText = ()
    text: str = ""
    no_wrap: bool = False


def column_line(*cells: tuple[str, str]) -> Line:
    """Return a line of styled texts in columns, which is never wrapped."""
    return Line(cells, no_wrap=True)
