"""Quotes words for a shell on one line; line ends and invisible characters are written in bash's $'…'."""

import re
import shlex
from collections.abc import Sequence
from itertools import groupby

from attncheck.core.io.visible import INVISIBLE
from attncheck.lint.shell.text import Segment

# Text besides `$` that bash expands outside quotes: patterns, braces with a comma or a range, a leading `~`.
EXPANDING = re.compile(r"[*?]|\{[^{}\s'\"]*(?:,|\.\.)[^{}\s'\"]*\}")
HOME = re.compile(r"~[\w.-]*(?=/|$)")
SCRIPT_PATH = re.compile(r"\$(?:0(?!\w)|\{0\}|BASH_SOURCE\b|\{BASH_SOURCE(?:\[0\])?\})")
EXPANDING_CHARACTERS = frozenset("*?{~")
PLAIN_PATH = re.compile(r"[\w@%+=:,./-]+")


def quote_on_one_line(text: str) -> str:
    """Return `text` quoted for a shell; bash reads the same word, for any content."""
    if "\n" not in text and not INVISIBLE.search(text):
        return shlex.quote(text)
    quoted = text.replace("\\", "\\\\").replace("'", "\\'")
    escaped = INVISIBLE.sub(lambda match: _escape_for_bash(ord(match.group())), quoted)
    return "$'" + escaped.replace("\r\n", "\\r\\n").replace("\n", "\\n") + "'"


def _escape_for_bash(code: int) -> str:
    """Return a character in bash's notation; a surrogate represents a byte that is not UTF-8 (PEP 383)."""
    if code < 0x80:
        return f"\\x{code:02x}"
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def format_segments(segments: Sequence[Segment], script: str = "") -> str:
    """Return a word in a form that a shell can read again; "" if nothing in it is left to expand.

    `script` is the path of the script that contains the word, which `$0` and `$BASH_SOURCE` refer to there.
    """
    if all(segment.known and EXPANDING_CHARACTERS.isdisjoint(segment.text) for segment in segments):
        return ""
    path = script if PLAIN_PATH.fullmatch(script) else ""
    runs = [
        (known, quoted, "".join(segment.text for segment in run))
        for (known, quoted), run in groupby(segments, lambda segment: (segment.known, segment.quoted))
    ]
    is_home = not runs[0][1] and bool(HOME.match(runs[0][2]))
    if not is_home and all(known and (quoted or not EXPANDING.search(text)) for known, quoted, text in runs):
        return ""
    if path:
        runs = [(known, quoted, text if known else SCRIPT_PATH.sub(path, text)) for known, quoted, text in runs]
    if all(_fits_double_quotes(*run) for run in runs) and not is_home:
        inner = "".join(re.sub(r'([\\"$`])', r"\\\1", text) if known else text for known, _, text in runs)
        return f'"{inner}"'
    parts = [_format_run(known, quoted, text, index == 0) for index, (known, quoted, text) in enumerate(runs)]
    return "".join(parts)


def _fits_double_quotes(known: bool, quoted: bool, text: str) -> bool:
    """Return whether characters have the same meaning in double quotes; `!` does not if a user pastes it."""
    if not known:
        return quoted
    return not (re.search(r"[!\n]", text) or INVISIBLE.search(text)) and (quoted or not EXPANDING.search(text))


def _format_run(known: bool, quoted: bool, text: str, is_first: bool) -> str:
    """Return the text for adjacent characters of a word that are of one kind."""
    if not known:
        return f'"{text}"' if quoted else text
    if quoted or not text:
        return quote_on_one_line(text) if text else ""
    home = HOME.match(text) if is_first else None
    written, end = (home[0], home.end()) if home else ("", 0)
    for match in EXPANDING.finditer(text, end):
        written += (quote_on_one_line(text[end : match.start()]) if match.start() > end else "") + match[0]
        end = match.end()
    return written + (quote_on_one_line(text[end:]) if end < len(text) else "")
