"""How far things reach in a shell script: words, quotes, substitutions, heredocs; nothing is expanded here."""

from __future__ import annotations

import re
from dataclasses import dataclass

PLAIN = re.compile(r"""[^\\'"`$(){}<>;&|#\s]+""")
QUOTED = re.compile(r"""[^\\"`$]+""")
BLANK = re.compile(r"(?:[ \t]|\\\r?\n)+")
ALONE = re.compile(r"<<-?[ \t]*[^\s;&|<>()]+[ \t]*\n")
HERE = re.compile(r"<<(-?)[ \t]*")
ENDS = frozenset(" \t\n;&|<>()")


def end_of_single(text: str, start: int, limit: int) -> tuple[int, bool]:
    """Return where the single quote at `start` ends, and whether it does."""
    found = text.find("'", start + 1, limit)
    return (found + 1, True) if found >= 0 else (limit, False)


def end_of_ansi(text: str, start: int, limit: int) -> tuple[int, bool]:
    """Return where the `$'…'` at `start` ends, and whether it does."""
    at = start + 2
    while at < limit:
        if text[at] == "\\":
            at += 2
        elif text[at] == "'":
            return at + 1, True
        else:
            at += 1
    return limit, False


def end_of_word(text: str, start: int, limit: int, within: str = "") -> tuple[int, bool]:
    """Return where the word at `start` ends, and whether its quotes and brackets are closed.

    `within` are the brackets already open ("(" of a `$(`, "{", '"', "`"): then the end is where the last one closes.
    """
    stack = list(within)
    at = start
    while at < limit:
        plain = (QUOTED if stack and stack[-1] == '"' else PLAIN).match(text, at, limit)
        if plain:
            at = plain.end()
            continue
        at, goes_on = _step(text, at, limit, stack)
        if not goes_on or (within and not stack):
            break
    return min(at, limit), not stack


def _step(text: str, at: int, limit: int, stack: list[str]) -> tuple[int, bool]:
    """Read what is not plain at `at`; return where to go on, and whether to."""
    here, top = text[at], stack[-1] if stack else ""
    if here == "\\":
        return at + 2, True
    if here == "$" and at + 1 < limit and text[at + 1] in "({":
        stack.append(text[at + 1])
        return at + 2, True
    if here in '"`':
        stack.pop() if top == here else stack.append(here)
        return at + 1, True
    if top == '"':
        return at + 1, True
    if here == "$" and text.startswith("$'", at):
        return _closed(end_of_ansi(text, at, limit), stack)
    if here == "'" and not (top == "{" and '"' in stack[:-1]):
        return _closed(end_of_single(text, at, limit), stack)
    if not stack:
        if here in "<>" and text.startswith("(", at + 1):  # a process substitution is a word
            stack.append("(")
            return at + 2, True
        return (at, False) if here in ENDS or here.isspace() else (at + 1, True)
    return _bracketed(text, at, limit, stack), True


def _closed(end: tuple[int, bool], stack: list[str]) -> tuple[int, bool]:
    if not end[1]:
        stack.append("'")
    return end


def _bracketed(text: str, at: int, limit: int, stack: list[str]) -> int:
    here, top = text[at], stack[-1]
    if top == "{" and here == "}":
        stack.pop()
    elif top == "(" and here == "(":
        stack.append("(")
    elif top == "(" and here == ")":
        stack.pop()
    elif top == "(" and here == "#" and text[at - 1] in " \t\n;(":
        newline = text.find("\n", at, limit)
        return newline if newline >= 0 else limit
    elif top == "(" and here == "<" and text.startswith("<<", at) and not text.startswith("<<<", at):
        return _over_body(text, at, limit)
    return at + 1


def _over_body(text: str, at: int, limit: int) -> int:
    """Return the place behind a heredoc: its body is passed over only where it begins on the next line."""
    alone = ALONE.match(text, at, limit)
    document = heredoc(text, at, limit) if alone and text[at - 1] != "<" else None
    return document.after if document else at + 2


@dataclass(frozen=True)
class Heredoc:
    """A heredoc whose operator stands somewhere before its body."""

    word_end: int  # where the delimiter's word ends
    start: int  # of the body
    end: int  # of the body, before the line with the delimiter
    after: int  # the line after the delimiter
    quoted: bool  # nothing in it is expanded
    tabs: bool  # `<<-`: tabs in front of its lines are taken off
    closed: bool


def heredoc(text: str, at: int, limit: int, body: int = -1) -> Heredoc | None:
    """Return the heredoc whose `<<` stands at `at`; its body begins at `body`, or on the next line."""
    operator = HERE.match(text, at, limit)
    if operator is None:
        return None
    word_end, _ = end_of_word(text, operator.end(), limit)
    raw = text[operator.end() : word_end]
    if not raw or raw[0].isspace():
        return None
    delimiter = re.sub(r"[\\'\"]", "", raw)
    newline = text.find("\n", word_end, limit)
    start = body if body >= 0 else (newline + 1 if newline >= 0 else limit)
    dash = bool(operator.group(1))
    tabs = r"\t*" if dash else ""
    line = re.compile(rf"^{tabs}{re.escape(delimiter)}[ \t]*\r?$", re.MULTILINE)
    found = line.search(text, start, limit)
    if not found:
        return Heredoc(word_end, start, limit, limit, raw != delimiter, dash, False)
    return Heredoc(word_end, start, found.start(), min(found.end() + 1, limit), raw != delimiter, dash, True)
