"""Writes text as Markdown: escaping, tables, code blocks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

MARKUP = r"[\\|`*<]|(?<!\w)_|_(?!\w)"  # an underscore within a word is shown as it is


def escape_markdown(text: str) -> str:
    """Return `text` on one line, with what Markdown would take for markup escaped."""
    return re.sub(MARKUP, r"\\\g<0>", " ".join(text.split()))


def format_table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table; a row with fewer cells is filled up."""
    yield "| " + " | ".join(map(escape_markdown, headers)) + " |"
    yield "|" + "---|" * len(headers)
    for row in rows:
        cells = [escape_markdown(cell) for cell in row] + [""] * (len(headers) - len(row))
        yield "| " + " | ".join(cells) + " |"


def format_code_block(text: str, language: str = "") -> Iterator[str]:
    """Yield the lines of a code block, in a fence that `text` does not contain."""
    fence = "```"
    while fence in text:
        fence += "`"
    yield from (fence + language, *text.splitlines(), fence)
