"""Reads bash's grammar: where commands, keywords, arrays and heredocs begin and end; nothing is expanded or done."""

from __future__ import annotations

import re

from attncheck.lint.shell import extents
from attncheck.lint.shell.conditions import Branches, Guard
from attncheck.lint.shell.grammar import (
    ASSIGNMENT,
    BODY,
    CALLABLE,
    CLOSING,
    FUNCTION,
    KEYWORDS,
    NAMED,
    OPENING,
    REDIRECTION,
    SEPARATOR,
    TEST_END,
    TURNS,
    Gathered,
    Open,
)
from attncheck.lint.shell.text import Runs, Text


class Reader:
    """Reads one text from its beginning to its end; what is done with what it finds is another's."""

    def __init__(self, text: Text) -> None:
        self.text, self.raw, self.limit = text, text.string, len(text.string)
        self.open: list[Open] = []  # those of the text around this one first
        self.around = 0  # how many of them are of the text around
        self.body = -1  # where the next heredoc of this line begins
        self.gathered = Gathered()
        self.guard = Guard()
        self.patterns = False  # between `in` or `;;` and `)` of a case

    def finished(self, gathered: Gathered) -> None:
        """Do what a simple command does."""
        raise NotImplementedError

    def given(self, first: int, end: int, quoted: bool, heredoc: bool) -> Runs:
        """Return what a heredoc or a `<<<` brings."""
        raise NotImplementedError

    def opened(self, what: Open) -> None:
        """Take note that a function's body begins."""

    def closed(self, what: Open, at: int) -> None:
        """Take note that a compound command ends."""

    def remark(self, at: int, what: str) -> None:
        """Take note of what could not be read."""

    def step(self) -> bool:
        """Say whether to read on."""
        return True

    def run(self, start: int = 0, end: int | None = None) -> None:
        """Read the text, or a part of it."""
        self.limit = len(self.raw) if end is None else end
        at = start
        while at < self.limit:
            if not self.step():
                break
            at = self.next(at)
        self.flush()

    def own(self) -> list[Open]:
        """Return the compound commands that this text opened."""
        return self.open[self.around :]

    def flush(self) -> None:
        """Finish the command that is being read."""
        gathered, self.gathered = self.gathered, Gathered()
        if gathered.words:
            self.finished(gathered)

    def next(self, at: int) -> int:
        """Read one thing at `at` and return where the next begins."""
        raw = self.raw
        blank = extents.BLANK.match(raw, at, self.limit)
        if blank:
            return blank.end()
        if raw[at] == "#":
            newline = raw.find("\n", at, self.limit)
            return newline if newline >= 0 else self.limit
        if self.patterns:
            return self._pattern(at)
        if raw.startswith("((", at) and self._counting():
            return extents.end_of_word(raw, at + 1, self.limit, "(")[0]
        if raw.startswith("<<", at) and not raw.startswith("<<<", at):
            document_end = self._heredoc(at)
            if document_end:
                return document_end
        if not (raw[at] in "<>" and raw.startswith("(", at + 1)):
            redirection = REDIRECTION.match(raw, at, self.limit)
            if redirection:
                return self._redirection(redirection)
        separator = SEPARATOR.match(raw, at, self.limit)
        if separator:
            return self._separator(separator[0], separator.end())
        if raw[at] in "()":
            return self._bracket(at)
        return self._word(at)

    def _counting(self) -> bool:
        """Say whether `((` begins arithmetic here: as a command, or behind `for`."""
        words = self.gathered.words
        return not words or (len(words) == 1 and self.raw[slice(*words[0])] == "for")

    def _separator(self, text: str, end: int) -> int:
        self.flush()
        self.guard.turn(text)
        if text == "\n" and self.body >= 0:
            end, self.body = max(self.body, end), -1
        if text.startswith(";;") or text == ";&":
            self.patterns = any(one.keyword == "case" for one in self.own())
        return end

    def _pattern(self, at: int) -> int:
        """Pass over one piece of a case's pattern, or its `esac`."""
        if self.raw[at] == ")":
            self.patterns = False
            return at + 1
        end, _ = extents.end_of_word(self.raw, at, self.limit)
        if self.raw[at:end] == "esac":
            self.patterns = False
            self._close(end)
        return max(end, at + 1)

    def _redirection(self, operator: re.Match[str]) -> int:
        blank = extents.BLANK.match(self.raw, operator.end(), self.limit)
        at = blank.end() if blank else operator.end()
        end, _ = extents.end_of_word(self.raw, at, self.limit)
        if operator[0] == "<<<":
            self.gathered.heredoc = self.given(at, end, quoted=False, heredoc=False)
        return max(end, at)

    def _heredoc(self, at: int) -> int:
        found = extents.heredoc(self.raw, at, self.limit, self.body)
        if found is None:
            return 0
        if not found.closed:
            self.remark(at, "the heredoc that begins here has no end")
        self.gathered.heredoc = self.given(found.start, found.end, found.quoted, heredoc=True)
        self.body = found.after
        return found.word_end

    def _bracket(self, at: int) -> int:
        """Read `(` or `)`: a subshell, or the `()` of a function."""
        words = self.gathered.words
        empty = CALLABLE.match(self.raw, at, self.limit)
        if empty and len(words) == 1 and not self.gathered.arrays:
            name = self.raw[slice(*words[0])]
            self.gathered = Gathered()
            return self._define(name, empty.end())
        self.flush()
        return at + 1

    def _define(self, name: str, at: int) -> int:
        """Begin a function, whose body is read here and again where it is called."""
        begin = BODY.match(self.raw, at, self.limit)
        if begin is None:
            return at
        self.open.append(Open(FUNCTION, "{", begin.end(), name))
        self.opened(self.open[-1])
        return begin.end()

    def _word(self, at: int) -> int:
        """Read one word; a keyword where a command begins is none."""
        end, closed = extents.end_of_word(self.raw, at, self.limit)
        if not closed:
            self.remark(at, "a quote or a bracket that opens here is never closed")
        raw = self.raw[at:end]
        words = self.gathered.words
        if not words and raw in KEYWORDS:
            return self._after_keyword(raw, at, end)
        if words and raw == "in" and self.raw[slice(*words[0])] == "case":
            self.gathered, self.patterns = Gathered(), True
            return end
        words.append((at, end))
        if raw.endswith("=") and self.raw.startswith("(", end) and ASSIGNMENT.fullmatch(raw):
            return self._array(len(words) - 1, end + 1)
        return max(end, at + 1)

    def _array(self, index: int, at: int) -> int:
        """Read the elements of `NAME=( … )`, with comments and newlines between them."""
        elements = self.gathered.arrays.setdefault(index, [])
        while at < self.limit and self.raw[at] != ")":
            if self.raw[at].isspace() or self.raw.startswith("\\\n", at):
                at += 1 + (self.raw[at] == "\\")
            elif self.raw[at] == "#":
                newline = self.raw.find("\n", at, self.limit)
                at = newline if newline >= 0 else self.limit
            else:
                end, _ = extents.end_of_word(self.raw, at, self.limit)
                if end > at:
                    elements.append((at, end))
                at = max(end, at + 1)
        if at >= self.limit:
            self.remark(at, "an array that is never closed")
        return at + 1

    def _after_keyword(self, raw: str, at: int, end: int) -> int:
        if raw == "[[":
            return self._test(at, end)
        if raw == "!":
            self.gathered.negated = not self.gathered.negated
        if raw == "function":
            named = NAMED.match(self.raw, end, self.limit)
            return self._define(named[1], named.end()) if named else end
        if raw in CLOSING:
            self._close(at)
        elif raw in TURNS:
            branches = self.own()[-1].branches if self.own() else None
            if branches is not None:
                branches.turn(raw)
        elif raw in OPENING:
            self.open.append(Open(OPENING[raw], raw, at, branches=_branches(raw)))
            if raw in ("for", "select", "case"):
                self.gathered.words.append((at, end))  # its words are taken where the line ends
        return end

    def _test(self, at: int, begin: int) -> int:
        """Read `[[ … ]]`; where it is more than one comparison only its first word is kept."""
        close = TEST_END.search(self.raw, begin, self.limit)
        end = close.end() if close else self.limit
        words = [(at, begin)]
        while begin < end:
            blank = re.compile(r"[\s\\]+").match(self.raw, begin, end)
            begin = blank.end() if blank else begin
            after, _ = extents.end_of_word(self.raw, begin, end)
            if after == begin:
                words = words[:1] if begin < end else words
                break
            words.append((begin, after))
            begin = after
        self.gathered.words = words
        return end

    def _close(self, at: int) -> None:
        if self.own():
            self.closed(self.open.pop(), at)


def _branches(keyword: str) -> Branches | None:
    if keyword == "if":
        return Branches()
    return Branches(taken=None, testing=False) if keyword == "case" else None
