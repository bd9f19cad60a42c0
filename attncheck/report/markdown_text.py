"""Writes text as Markdown that shows it unchanged: escaping, tables, code blocks.

Escaping follows GitHub Flavored Markdown 0.29, https://github.github.com/gfm/. GitHub also searches the finished text
for mentions, references to issues and commits, emoji (https://docs.github.com/get-started/writing-on-github) and bare
addresses. Backslashes do not prevent that, because they no longer exist at that point, but a code span does. Only words
that could be affected are put into one, so that most text stays unchanged.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

MARKUP = re.compile(
    r"[\\|`*<]"
    r"|(?<![^\W_])_|_(?![^\W_])"  # an underscore within a word is shown unchanged
    r"|(?<=\S)~"  # strikethrough can end only here: "~/env" is shown unchanged
    r"|&(?=#?\w+;)"  # an entity
    r"|(?<=\])[(:]"  # a link, or the definition of one
    r"|(?<!\S)#(?=#*$)"  # the end of a heading
)
WORD = re.compile(r"[^\s\\|`]+")
REFERENCE = re.compile(
    r"://|www\.|@\w|#\d|\bgh-\d"
    r"|:(?:[+-]1|100|1234|(?=[\d_+-]{0,40}[a-z])[\w+-]{1,40}):"  # emoji; not the line number in "run.sh:12:5"
    r"|(?<![0-9a-f])[0-9a-f]{40}(?![0-9a-f])",  # a commit
    re.IGNORECASE,
)
FORMULA_START, FORMULA_END = re.compile(r"\$\S"), re.compile(r"\S\$(?!\w)")
# What begins a block at the start of a line: quotes, lists, headings, underlines of headings and tables, tasks.
BLOCK_START = re.compile(
    r"^(?:(\d{1,9})(?=[.)](?!\S))|(?=>|\+(?!\S)|-(?:[\s:-]|$)|=+$|#{1,6}(?!\S)|:-|\[[ xX]\](?!\S)))"
)


def escape_markdown(text: str) -> str:
    """Return `text` on one line with Markdown's markup escaped; not for the start of a line."""
    text = " ".join(text.split())
    start = FORMULA_START.search(text)
    has_formula = start is not None and FORMULA_END.search(text, start.start()) is not None
    parts, end = [], 0
    for word in WORD.finditer(text):
        if REFERENCE.search(word.group()) or (has_formula and "$" in word.group()):
            parts += [_escape_markup(text[end : word.start()]), f"`{word.group()}`"]
            end = word.end()
    return "".join((*parts, _escape_markup(text[end:])))


def _escape_markup(text: str) -> str:
    return MARKUP.sub(r"\\\g<0>", text)


def escape_line(text: str) -> str:
    """Return `text` on one line that starts no heading, list or quote: for the start of a paragraph or list item."""
    return BLOCK_START.sub(r"\g<1>\\", escape_markdown(text))


def format_table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table; short rows are padded with empty cells."""
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
