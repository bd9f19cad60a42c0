"""The lines of text that a terminal shows."""

from dataclasses import dataclass

StyledText = tuple[tuple[str, str], ...]  # (text, style) next to one another


@dataclass(frozen=True)
class Line:
    """One line: styled text at its head, then text that is wrapped below it. `no_wrap`: nothing of it is wrapped."""

    head: StyledText = ()
    text: str = ""
    no_wrap: bool = False


def column_line(*cells: tuple[str, str]) -> Line:
    """Return a line of styled texts in columns, which is never wrapped."""
    return Line(cells, no_wrap=True)
