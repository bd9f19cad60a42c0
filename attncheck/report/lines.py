"""The lines of text that sections yield and a terminal shows."""

from __future__ import annotations

from dataclasses import dataclass

STYLES = {
    "error": "bold red",
    "warning": "yellow",
    "note": "cyan",
    "ok": "green",
    "-": "dim",
    "pass": "green",
    "warn": "yellow",
    "fail": "bold red",
    "lost": "bold red",
}
StyledText = tuple[tuple[str, str], ...]  # (text, style) side by side


@dataclass(frozen=True)
class Line:
    """One line: styled text at its head, then text that is wrapped below it. `no_wrap`: nothing of it is wrapped."""

    head: StyledText = ()
    text: str = ""
    no_wrap: bool = False


def text_line(text: str) -> Line:
    """Return a line of running text, which is wrapped where the terminal is narrow."""
    return Line(text=text)


def column_line(*cells: tuple[str, str]) -> Line:
    """Return a line of styled texts that stand in columns, which is never wrapped."""
    return Line(cells, no_wrap=True)


def style_of_answer(answer: str) -> str:
    """Return the style of a severity or of a verdict's answer."""
    return STYLES.get(answer, "dim")
