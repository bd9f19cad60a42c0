"""Quotes words for a shell on one line: line ends and what cannot be seen are written by bash's $'…'."""

from __future__ import annotations

import shlex

from attncheck.core.visible import INVISIBLE


def quote_on_one_line(text: str) -> str:
    """Return `text` quoted for a shell; bash reads the same word, whatever it holds."""
    if "\n" not in text and not INVISIBLE.search(text):
        return shlex.quote(text)
    escaped = INVISIBLE.sub(lambda match: _escape_for_bash(ord(match.group())), _escape_quotes(text))
    return "$'" + escaped.replace("\r\n", "\\r\\n").replace("\n", "\\n") + "'"


def _escape_quotes(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")


def _escape_for_bash(code: int) -> str:
    """Return a character as bash writes it; a surrogate stands for a byte that is no UTF-8 (PEP 383)."""
    if code < 0x80:
        return f"\\x{code:02x}"
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
