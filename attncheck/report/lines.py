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
Words = tuple[tuple[str, str], ...]  # (text, style) side by side


@dataclass(frozen=True)
class Line:
    """One line: styled words at its head, then text that is wrapped below it. `paste`: nothing of it is wrapped."""

    head: Words = ()
    text: str = ""
    paste: bool = False


def sentence(text: str) -> Line:
    """Return a line of running text, which is wrapped where the terminal is narrow."""
    return Line(text=text)


def columns(*words: tuple[str, str]) -> Line:
    """Return a line of styled pieces that stand in columns, which is never wrapped."""
    return Line(words, paste=True)


def style_of(answer: str) -> str:
    """Return the style of a severity or of a verdict's answer."""
    return STYLES.get(answer, "dim")
