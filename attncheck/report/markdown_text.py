"""Text as Markdown shows it: escaping, tables, code blocks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

MARKUP = r"[\\|`*<]|(?<!\w)_|_(?!\w)"  # an underscore within a word is shown as it is


def escaped(text: str) -> str:
    """Return `text` on one line, with what Markdown would take for markup written so that it is shown."""
    return re.sub(MARKUP, r"\\\g<0>", " ".join(text.split()))


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a Markdown table; a row with fewer cells is filled up."""
    yield "| " + " | ".join(map(escaped, heads)) + " |"
    yield "|" + "---|" * len(heads)
    for row in rows:
        cells = [escaped(cell) for cell in row] + [""] * (len(heads) - len(row))
        yield "| " + " | ".join(cells) + " |"


def code_block(text: str, language: str = "") -> Iterator[str]:
    """Yield `text` in a fence that it does not contain."""
    fence = "```"
    while fence in text:
        fence += "`"
    yield from (fence + language, *text.splitlines(), fence)
