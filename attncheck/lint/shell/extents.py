"""Finds where words, quotes, substitutions and here-documents of a shell script end; nothing is expanded here."""

import re
from typing import NamedTuple

PLAIN_CHARACTERS = re.compile(r"""[^\\'"`$(){}<>;&|#\s]+""")
QUOTED_CHARACTERS = re.compile(r"""[^\\"`$]+""")
BLANK = re.compile(r"(?:[ \t]|\\\r?\n)+")
HEREDOC_ALONE = re.compile(r"<<-?[ \t]*[^\s;&|<>()]+[ \t]*\n")
HEREDOC_OPERATOR = re.compile(r"<<(-?)[ \t]*")
# "<your model>/config.json", which a user is to replace; bash takes it for redirections, with a word after it
PLACEHOLDER = re.compile(r"<([A-Za-z](?:[\w ./:-]*\w)?)>(?![&(>]|[ \t]*(?:[\n;&|]|$))")
METACHARACTERS = frozenset(" \t\n;&|<>()")


def find_single_quote_end(text: str, start: int, limit: int) -> tuple[int, bool]:
    """Return the offset after the single-quoted string at `start`, and whether it is closed before `limit`."""
    quote = text.find("'", start + 1, limit)
    return (quote + 1, True) if quote >= 0 else (limit, False)


def find_ansi_quote_end(text: str, start: int, limit: int) -> tuple[int, bool]:
    """Return the offset after the `$'…'` at `start`, and whether it is closed before `limit`."""
    offset = start + 2
    while offset < limit:
        if text[offset] == "\\":
            offset += 2
        elif text[offset] == "'":
            return offset + 1, True
        else:
            offset += 1
    return limit, False


def find_word_end(text: str, start: int, limit: int, open_brackets: str = "") -> tuple[int, bool]:
    """Return the offset where the word at `start` ends, and whether its quotes and brackets are closed.

    `open_brackets` are those already open ("(" of a `$(`, "{", '"', "`"); the end is then where the last one closes.
    """
    stack = list(open_brackets)
    offset = start
    while offset < limit:
        plain = (QUOTED_CHARACTERS if stack and stack[-1] == '"' else PLAIN_CHARACTERS).match(text, offset, limit)
        if plain:
            offset = plain.end()
            continue
        offset, continues = _scan_special(text, offset, limit, stack)
        if not continues or (open_brackets and not stack):
            break
    return min(offset, limit), not stack


def _scan_special(text: str, offset: int, limit: int, stack: list[str]) -> tuple[int, bool]:
    """Scan the special character at `offset`; return where to continue, and whether the word continues."""
    character, top = text[offset], stack[-1] if stack else ""
    if character == "\\":
        return offset + 2, True
    if character == "$" and offset + 1 < limit and text[offset + 1] in "({":
        stack.append(text[offset + 1])
        return offset + 2, True
    if character in '"`':
        stack.pop() if top == character else stack.append(character)
        return offset + 1, True
    if top == '"':
        return offset + 1, True
    if character == "$" and text.startswith("$'", offset):
        return _track_unclosed(find_ansi_quote_end(text, offset, limit), stack)
    if character == "'" and not (top == "{" and '"' in stack[:-1]):
        return _track_unclosed(find_single_quote_end(text, offset, limit), stack)
    if not stack:
        if character in "<>" and text.startswith("(", offset + 1):  # a process substitution is a word
            stack.append("(")
            return offset + 2, True
        if placeholder := PLACEHOLDER.match(text, offset, limit):
            return placeholder.end(), True
        return (offset, False) if character in METACHARACTERS or character.isspace() else (offset + 1, True)
    return _scan_in_brackets(text, offset, limit, stack), True


def _track_unclosed(end: tuple[int, bool], stack: list[str]) -> tuple[int, bool]:
    if not end[1]:
        stack.append("'")
    return end


def _scan_in_brackets(text: str, offset: int, limit: int, stack: list[str]) -> int:
    character, top = text[offset], stack[-1]
    if top == "{" and character == "}":
        stack.pop()
    elif top == "(" and character == "(":
        stack.append("(")
    elif top == "(" and character == ")":
        stack.pop()
    elif top == "(" and character == "#" and text[offset - 1] in " \t\n;(":
        newline = text.find("\n", offset, limit)
        return newline if newline >= 0 else limit
    elif top == "(" and character == "<" and text.startswith("<<", offset) and not text.startswith("<<<", offset):
        return _skip_heredoc(text, offset, limit)
    return offset + 1


def _skip_heredoc(text: str, offset: int, limit: int) -> int:
    """Return the offset after a here-document; its body is skipped only if it begins on the next line."""
    operator = HEREDOC_ALONE.match(text, offset, limit)
    heredoc = find_heredoc(text, offset, limit) if operator and text[offset - 1] != "<" else None
    return heredoc.next_line if heredoc else offset + 2


class Heredoc(NamedTuple):
    """The offsets of a here-document, whose operator is somewhere before its body."""

    delimiter_end: int  # end of the delimiter's word
    body_start: int
    body_end: int  # start of the line with the delimiter
    next_line: int  # start of the line after the delimiter
    is_quoted: bool  # the delimiter is quoted, so nothing in the body is expanded
    is_closed: bool


def find_heredoc(text: str, offset: int, limit: int, body_start: int = -1) -> Heredoc | None:
    """Return the here-document whose `<<` is at `offset`; its body begins at `body_start`, or on the next line."""
    operator = HEREDOC_OPERATOR.match(text, offset, limit)
    if operator is None:
        return None
    delimiter_end, _ = find_word_end(text, operator.end(), limit)
    delimiter_word = text[operator.end() : delimiter_end]
    if not delimiter_word or delimiter_word[0].isspace():
        return None
    delimiter = re.sub(r"[\\'\"]", "", delimiter_word)
    newline = text.find("\n", delimiter_end, limit)
    begin = body_start if body_start >= 0 else (newline + 1 if newline >= 0 else limit)
    tabs = r"\t*" if operator.group(1) else ""  # `<<-`: leading tabs of its lines are stripped
    delimiter_line = re.compile(rf"^{tabs}{re.escape(delimiter)}[ \t]*\r?$", re.MULTILINE)
    match = delimiter_line.search(text, begin, limit)
    if not match:
        return Heredoc(delimiter_end, begin, limit, limit, delimiter_word != delimiter, False)
    return Heredoc(delimiter_end, begin, match.start(), min(match.end() + 1, limit), delimiter_word != delimiter, True)
