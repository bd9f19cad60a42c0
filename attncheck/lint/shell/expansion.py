"""Expands what a script writes with `$`, quotes and backslashes; what only running tells stays as it is written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from attncheck.core.launch import NOWHERE
from attncheck.lint.shell import extents
from attncheck.lint.shell.arithmetic import value_of
from attncheck.lint.shell.scope import Field, Scope, Variable, together
from attncheck.lint.shell.text import Run, Runs, Text, known, string

PARAMETER = re.compile(r"\$(?:[A-Za-z_]\w*|[0-9@*#?$!-])")
BRACED = re.compile(r"([A-Za-z_]\w*|[0-9]+|[@*])(?:\[([^\]]*)\])?(.*)", re.DOTALL)
ALL = re.compile(r"\$(?:@|\{@[^}]*\}|\{\w+\[@\]\})")  # no element: no word, even in quotes
BLANKS = re.compile(r"[ \t\n]+")
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "f": "\f", "v": "\v"}
TOO_MUCH = "the script puts more together than can be followed; some of its words stay unknown"
NESTED = 12  # `${A:-${B:-…}}`
BREAK = Run("\0break", -1, splits=True)  # divides words, from "${ARRAY[@]}"


class Expansion:
    """Expands parts of one text in one scope."""

    def __init__(self, text: Text, scope: Scope, depth: int = 0) -> None:
        self.text, self.scope, self.depth = text, scope, depth
        self.raw = text.string

    def word(self, first: int, end: int) -> list[Run]:
        """Return the runs of a raw word; empty quotes leave an empty run, for the word is there."""
        found: list[Run] = []
        at = first
        while at < end:
            here = self.raw[at]
            if here == "\\":
                found += [] if self.raw.startswith("\n", at + 1) else self._literal(at + 1, min(at + 2, end))
                at += 2
            elif here == "'":
                close, closed = extents.end_of_single(self.raw, at, end)
                found += _quoted(self._literal(at + 1, close - closed)) or [Run("", -1)]
                at = close
            elif here == '"' or self.raw.startswith('$"', at):
                at += here == "$"
                close, closed = extents.end_of_word(self.raw, at + 1, end, '"')
                inner = self.quoted(at + 1, close - closed)
                found += _quoted(inner) or ([] if ALL.fullmatch(self.raw, at + 1, close - closed) else [Run("", -1)])
                at = close
            elif self.raw.startswith("$'", at):
                close, closed = extents.end_of_ansi(self.raw, at, end)
                found.append(self._ansi(at, close, closed))
                at = close
            elif here in "$`":
                at, runs = self._expanded(at, end, splits=True)
                found += runs
            else:
                plain = extents.PLAIN.match(self.raw, at, end)
                close = plain.end() if plain else at + 1
                found += self._literal(at, close)
                at = close
        return found

    def quoted(self, first: int, end: int, heredoc: bool = False) -> list[Run]:
        """Return the runs of what stands in double quotes, or in a heredoc."""
        found: list[Run] = []
        at = first
        escaped = "$`\\\n" if heredoc else '$`"\\\n'
        while at < end:
            here = self.raw[at]
            if here == "\\" and at + 1 < end and self.raw[at + 1] in escaped:
                found += [] if self.raw[at + 1] == "\n" else self._literal(at + 1, at + 2)
                at += 2
            elif here in "$`":
                at, runs = self._expanded(at, end, splits=False)
                found += runs
            else:
                plain = extents.QUOTED.match(self.raw, at, end)
                close = plain.end() if plain else at + 1
                found += self._literal(at, close)
                at = close
        return found

    def _literal(self, first: int, end: int) -> list[Run]:
        return list(self.text.between(first, end))

    def _ansi(self, first: int, end: int, closed: bool) -> Run:
        inner = self.raw[first + 2 : end - closed]
        if "\\" not in inner and len(self.text.between(first + 2, end - closed)) == 1:
            return self.text.between(first + 2, end - closed)[0]
        made = re.sub(r"\\(.)", lambda escape: ESCAPES.get(escape[1], escape[1]), inner, flags=re.DOTALL)
        return Run(made, -1, uses=(self.text.span(first, end),))

    def _expanded(self, at: int, end: int, splits: bool) -> tuple[int, list[Run]]:
        """Return where the expansion at `at` ends, and its runs."""
        if self.raw[at] == "`":
            close, closed = extents.end_of_word(self.raw, at + 1, end, "`")
            return close, self._substituted(at, at + 1, close - closed, close, splits)
        if self.raw.startswith("$((", at):
            close, _ = extents.end_of_word(self.raw, at + 2, end, "(")
            if self.raw.startswith("))", close - 2):
                return close, self._arithmetic(at, close)
        if self.raw.startswith("$(", at):
            close, closed = extents.end_of_word(self.raw, at + 2, end, "(")
            return close, self._substituted(at, at + 2, close - closed, close, splits)
        if self.raw.startswith("${", at):
            close, closed = extents.end_of_word(self.raw, at + 2, end, "{")
            return close, self._braced(at, close - closed, close, splits)
        parameter = PARAMETER.match(self.raw, at, end)
        if parameter is None:
            return at + 1, self._literal(at, at + 1)
        return parameter.end(), self._parameter(parameter[0][1:], at, parameter.end(), splits)

    def _unknown(self, first: int, end: int) -> list[Run]:
        """Return the use as it is written."""
        use = self.text.span(first, end)
        start = use[0] if use != NOWHERE else -1
        text = self.raw[first:end]
        if start >= 0 and self.text.source.text[start : start + len(text)] == text:
            return [Run(text, start, known=False)]
        return [Run(text, -1, known=False, uses=(use,) if use != NOWHERE else ())]

    def _substituted(self, first: int, begin: int, finish: int, end: int, splits: bool) -> list[Run]:
        printed = self.scope.substitute(self.text.between(begin, finish)) if self.depth < NESTED else None
        return self._unknown(first, end) if printed is None else self._used(printed, first, end, splits)

    def _arithmetic(self, first: int, end: int) -> list[Run]:
        words = string(self.quoted(first + 3, end - 2))
        number = value_of(words, lambda name: self._number(name))
        if number is None:
            return self._unknown(first, end)
        return [Run(str(number), -1, uses=(self.text.span(first, end),))]

    def _number(self, name: str) -> str:
        variable = self.scope.variables.get(name)
        return string(variable.runs) if variable and known(variable.runs) else ""

    def _used(self, runs: Sequence[Run], first: int, end: int, splits: bool) -> list[Run]:
        """Return what a variable holds, as this use of it gives it."""
        if not self.scope.budget.affords(runs):
            self.scope.remark(TOO_MUCH)
            return self._unknown(first, end)
        use = self.text.span(first, end)
        return [run.used(use, splits) for run in runs]

    def _parameter(self, name: str, first: int, end: int, splits: bool) -> list[Run]:
        if name in ("@", "*"):
            return self._arguments(first, end, splits, name == "@")
        if name.isdigit() and self.scope.positional is not None and 0 < int(name) <= len(self.scope.positional):
            return self._used(self.scope.positional[int(name) - 1].runs, first, end, splits)
        variable = self.scope.variables.get(name)
        return self._unknown(first, end) if variable is None else self._used(_scalar(variable), first, end, splits)

    def _arguments(self, first: int, end: int, splits: bool, each: bool) -> list[Run]:
        """Return the arguments of the function; those of the script itself, which it may well be given none, go."""
        return self._elements(self.scope.positional or (), first, end, splits, each)

    def _elements(self, elements: Sequence[Field], first: int, end: int, splits: bool, each: bool) -> list[Run]:
        if not each and not splits:
            return self._used(together(elements), first, end, splits)
        use = self.text.span(first, end)
        if self.scope.budget.spent or not self.scope.budget.affords(together(elements)):
            self.scope.remark(TOO_MUCH)
            return self._unknown(first, end)
        found: list[Run] = []
        for index, element in enumerate(elements):
            runs = [run.used(use, splits) for run in element.runs] or [Run("", -1)]
            fixed = not (splits and any(BLANKS.search(run.text) for run in runs if run.splits))
            found += [BREAK] if index else []
            found += [run.of_element(element.span) for run in runs] if fixed else runs
        return found

    def _braced(self, first: int, finish: int, end: int, splits: bool) -> list[Run]:
        parts = BRACED.fullmatch(self.raw, first + 2, finish)
        if parts is None:
            return self._unknown(first, end)
        name, index, operator = parts.groups()
        if name in ("@", "*") and (not operator or self.scope.positional is None):
            return self._arguments(first, end, splits, name == "@")
        variable = self.scope.variables.get(name)
        if index in ("@", "*") and variable is not None and not operator:
            elements = variable.elements if variable.elements is not None else (Field(variable.runs, NOWHERE),)
            return self._elements(elements, first, end, splits, index == "@")
        if index is not None:
            return self._indexed(variable, index, operator, first, end, splits)
        if not operator:
            return self._parameter(name, first, end, splits)
        return self._operated(name, operator, parts.start(3), finish, first, end, splits)

    def _indexed(
        self, variable: Variable | None, index: str, operator: str, first: int, end: int, splits: bool
    ) -> list[Run]:
        elements = variable.elements if variable else None
        if elements is None or operator or not index.isdigit() or int(index) >= len(elements):
            return self._unknown(first, end)
        return self._used(elements[int(index)].runs, first, end, splits)

    def _operated(
        self, name: str, operator: str, begin: int, finish: int, first: int, end: int, splits: bool
    ) -> list[Run]:
        """Return `${NAME:-default}` and its kin; an unset NAME may be set outside: the default is taken, and said."""
        kind = operator.lstrip(":")[:1]
        if kind not in "-=+?" or not kind or operator.startswith("::"):
            return self._unknown(first, end)
        begin += 2 if operator.startswith(":") else 1
        variable = self.scope.variables.get(name)
        held = _scalar(variable) if variable else ()
        is_set = variable is not None and (bool(held) or not operator.startswith(":"))
        if kind == "+":
            return self._default(begin, finish, first, end, splits) if is_set else []
        if is_set:
            return self._used(held, first, end, splits)
        if kind == "?" or self.depth >= NESTED:
            return self._unknown(first, end)
        runs = self._default(begin, finish, first, end, splits)
        if variable is None and not name.isdigit():
            self.scope.assumed.setdefault(name, string(runs))
        if kind == "=":
            self.scope.variables[name] = Variable(tuple(runs))
        return runs

    def _default(self, begin: int, finish: int, first: int, end: int, splits: bool) -> list[Run]:
        inner = Expansion(self.text, self.scope, self.depth + 1)
        runs = plain(inner.word(begin, finish))
        if not self.scope.budget.affords(runs):
            self.scope.remark(TOO_MUCH)
            return self._unknown(first, end)
        use = self.text.span(first, end)
        return [run.used(use, splits and not run.quoted) for run in runs]


def _quoted(runs: Sequence[Run]) -> list[Run]:
    return [run if run is BREAK else replace(run, quoted=True) for run in runs]


def plain(pieces: Sequence[Run]) -> list[Run]:
    """Return the runs of a text that is not divided into words."""
    return [Run(" ", -1, uses=run.uses) if run is BREAK else run for run in pieces if run.text or run is BREAK]


def _scalar(variable: Variable) -> Runs:
    if variable.elements is None:
        return variable.runs
    return variable.elements[0].runs if variable.elements else ()
