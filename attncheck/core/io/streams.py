"""Fits text to the stream that it is written to: to its encoding, and to the program that reads it.

GitHub's runner obeys lines of both streams: "::name …::…" after white space, and "##[name …]…" anywhere in a line
(actions/runner 079cdb1, src/Runner.Common/ActionCommand.cs, `TryParseV2` and `TryParse`; both compare by culture, which
ignores variation selectors). "::stop-commands::" or "::add-mask::" in a message would take effect. Under GitHub Actions
such a line is broken so that a reader still sees it, and a parser of the document still reads the same value.
"""

import codecs
import os
import re
import sys
from collections.abc import Mapping
from typing import Literal

from attncheck.core.io.outgoing import clean_text
from attncheck.core.io.visible import INVISIBLE, show_line_ends

# ASCII replacements for the signs that we use. Any other character that an encoding lacks is escaped.
SIGNS = {
    "·": "-",
    "…": "...",
    "→": "->",
    "×": "x",
    "±": "+-",
    "–": "-",
    "−": "-",
    "≤": "<=",
    "≥": ">=",
    "°": "deg",
    "“": '"',
    "”": '"',
    "²": "^2",
    "³": "^3",
    **dict(zip("▁▂▃▄▅▆▇█", "_.,-=+*#")),
}
Syntax = Literal["text", "json", "xml", "commands"]  # "commands": workflow commands that the runner should obey

SELECTORS = "[\ufe00-\ufe0f]*"
LINE_COMMAND = re.compile(rf"^((?:[^\S\n]|[\ufe00-\ufe0f])*):(?={SELECTORS}:)", re.MULTILINE)
BRACKET_COMMAND = re.compile(rf"#({SELECTORS})(?=#{SELECTORS}\[)")
# Replacement for the first ":" of a command, and for the first "#"; the group is the text before the ":" or after the
# "#". In Markdown a backslash is not shown.
COLONS: Mapping[Syntax, str] = {"text": r"\1\\:", "json": r"\1:", "xml": r"\1&#58;"}
HASHES: Mapping[Syntax, str] = {"text": r"#\1\\", "json": r"\\u0023\1", "xml": r"&#35;\1"}


def fit_text(text: str, encoding: str | None = "utf-8", syntax: Syntax = "text") -> str:
    """Return `text` as a stream with this encoding can hold it, without commands for GitHub's runner.

    Characters that the encoding lacks are replaced as the format requires, so that nothing is lost and no error is
    raised.
    """
    if syntax == "json":
        text = INVISIBLE.sub(_escape_for_json, text)
    if os.environ.get("GITHUB_ACTIONS") == "true" and syntax != "commands":
        text = break_workflow_commands(text, syntax)
    return text if encoding is None or text.isascii() else _make_encodable(text, encoding, syntax)


def replace_signs(error: UnicodeError) -> tuple[str | bytes, int]:
    """Replace characters that an encoding lacks: our own symbols by readable ones, other characters by escapes.

    This is an error handler of `codecs`, called READABLE. Two names that differ only in such a character stay
    different.
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text, parts = error.object, []
    for index in range(error.start, error.end):
        character = text[index]
        is_in_word = text[index - 1 : index].isalpha() and text[index + 1 : index + 2].isalpha()
        if character in SIGNS and not is_in_word:
            parts.append(SIGNS[character])
        else:
            parts.append(character.encode("ascii", "backslashreplace").decode("ascii"))
    return "".join(parts), error.end


READABLE = "attncheck.readable"
printed_messages: list[str] = []
codecs.register_error(READABLE, replace_signs)


def break_workflow_commands(text: str, syntax: Syntax = "text") -> str:
    """Return `text` without lines that GitHub's runner would obey."""
    return BRACKET_COMMAND.sub(HASHES[syntax], LINE_COMMAND.sub(COLONS[syntax], text))


def print_message(text: str) -> None:
    """Print a message, which may contain text from elsewhere, as one line on standard error."""
    printed_messages.append(text)
    if sys.stderr is not None:
        print(fit_text(show_line_ends(clean_text(text)), getattr(sys.stderr, "encoding", None)), file=sys.stderr)


def _make_encodable(text: str, encoding: str, syntax: Syntax) -> str:
    """Return `text` as `encoding` can hold it. JSON and XML are read as UTF-8, so other encodings get them in ASCII."""
    is_document = syntax in ("json", "xml")
    codec = "ascii" if is_document and codecs.lookup(encoding).name != "utf-8" else encoding
    try:
        text.encode(codec)
    except UnicodeEncodeError:
        if syntax == "json":
            return re.sub("[^\x00-\x7f]", _escape_for_json, text)
        return text.encode(codec, "xmlcharrefreplace" if syntax == "xml" else READABLE).decode(codec)
    return text


def _escape_for_json(match: re.Match[str]) -> str:
    """Return a character as a JSON escape: as a surrogate pair above U+FFFF."""
    data = match.group().encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{data[index]:02x}{data[index + 1]:02x}" for index in range(0, len(data), 2))
