"""Makes control and invisible characters visible; text from elsewhere passes through here before it is shown.

Replaced by Python's escapes ("\x1b", "\u202e", "\r"): control characters (C0, DEL, C1) except tab and line end, format
characters (category Cf: bidirectional controls, zero-width ones, tags), separators that only some readers treat as a
line end, characters that Unicode calls default-ignorable, lone surrogates and noncharacters. Variation selectors 1 to
16 stay: they belong to ordinary emoji. Source code hidden by such characters is CVE-2021-42574,
https://trojansource.codes/. The categories are those of Unicode 16.0,
https://www.unicode.org/Public/16.0.0/ucd/DerivedCoreProperties.txt.
"""

import re

INVISIBLE = re.compile(
    "\r(?!\n)|["
    "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160"
    "\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufdd0-\ufdef\ufeff\uffa0"
    "\ufff0-\ufffb\ufffe\uffff\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)


def show_control_characters(text: str) -> str:
    """Return `text` with every control or invisible character escaped; tabs and line breaks stay."""
    if text.isascii() and text.isprintable():
        return text
    return INVISIBLE.sub(_escape, text) if INVISIBLE.search(text) else text


def show_on_one_line(text: str) -> str:
    """Return `text` with line breaks escaped too: for a cell, a name or a one-line message."""
    return show_line_ends(show_control_characters(text))


def show_line_ends(text: str) -> str:
    """Return `text` with its line breaks written as escapes."""
    return text.replace("\r\n", "\\n").replace("\n", "\\n") if "\n" in text else text


def indent_continuation(text: str, columns: int) -> str:
    """Return `text` with all lines but the first indented, so that they do not look like lines of ours."""
    return text.replace("\r\n", "\n").replace("\n", "\n" + " " * columns) if "\n" in text else text


def _escape(match: re.Match[str]) -> str:
    return match.group().encode("unicode_escape").decode("ascii")
