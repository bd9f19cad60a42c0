"""Follows what the commands of a script do to its variables, and which of its branches are reached."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from attncheck.core.launch import NOWHERE, Source, SourceLocation, Word
from attncheck.lint.shell.conditions import truth
from attncheck.lint.shell.grammar import ASSIGNMENT, FUNCTION, Gathered, Open
from attncheck.lint.shell.reader import Reader
from attncheck.lint.shell.scope import Field, Scope, Variable
from attncheck.lint.shell.text import Run, Runs, Text, known, string
from attncheck.lint.shell.words import document, fields, value

MOST_COMMANDS, MOST_STEPS, MOST_OPEN = 2000, 60_000, 200
TESTS = {"[", "[[", "test", "true", "false"}


@dataclass(frozen=True)
class Command:
    """One simple command: its words, the environment given to it, and what could not be read."""

    words: tuple[Word, ...]
    environ: Mapping[str, str]
    place: SourceLocation
    notes: tuple[str, ...] = ()


@dataclass
class Function:
    """A function: where its body stands, and whether anything calls it."""

    text: Text
    start: int
    end: int
    called: bool = False


@dataclass
class State:
    """What all parts of one script share."""

    source: Source
    found: list[tuple[Command, str]] = field(default_factory=list)  # with the function whose definition it stands in
    functions: dict[str, Function] = field(default_factory=dict)
    steps: int = 0
    exports_all: bool = False

    def __post_init__(self) -> None:
        self.newlines = [-1, *(match.start() for match in re.finditer("\n", self.source.text))]

    def place(self, offset: int) -> SourceLocation:
        """Return what `Source.place` does, at once."""
        line = max(bisect_left(self.newlines, offset), 1) if offset > 0 else 1
        return SourceLocation(self.source.name, line, max(offset, 0) - self.newlines[line - 1])


class Following(Reader):
    """Follows one text; what is done with the commands that it starts is another's."""

    def __init__(self, text: Text, state: State, scope: Scope) -> None:
        super().__init__(text)
        self.state, self.scope = state, scope
        self.saved: list[dict[str, Variable]] = []  # the variables outside the functions being defined

    def step(self) -> bool:
        """Say whether the script is short enough to read on."""
        self.state.steps += 1
        if self.state.steps <= MOST_STEPS and len(self.state.found) < MOST_COMMANDS and len(self.open) < MOST_OPEN:
            return True
        self.scope.remark("the script is too long, or too deep, to be read to its end")
        return False

    def given(self, first: int, end: int, quoted: bool, heredoc: bool) -> Runs:
        """Return what a heredoc or a `<<<` brings."""
        if quoted:
            return self.text.between(first, end)
        return (document if heredoc else value)(self.text, first, end, self.scope)

    def opened(self, what: Open) -> None:
        """Keep the variables: a function's body is read where it is defined, and changes them where it is called."""
        self.saved.append(self.scope.variables)
        self.scope.variables = dict(self.scope.variables)

    def closed(self, what: Open, at: int) -> None:
        """Keep the body of a function."""
        if what.kind == FUNCTION:
            self.state.functions[what.name] = Function(self.text, what.at, at)
            self.scope.variables = self.saved.pop()

    def remark(self, at: int, what: str) -> None:
        """Keep what could not be read."""
        self.scope.remark(f"line {self._line(at)}: {what}")

    def _line(self, at: int) -> int:
        span = self.text.span(at, at + 1)
        return self.state.place(span[0]).line if span != NOWHERE else 0

    def _reached(self) -> bool:
        """Say whether what is read may run at all."""
        branches = (one.branches for one in self.open)
        return self.guard.reached is not False and all(one.taken is not False for one in branches if one)

    def _sure(self) -> bool:
        """Say whether what is read runs whatever only running tells."""
        branches = (one.branches for one in self.open)
        return self.guard.reached is True and all(one.taken is True for one in branches if one)

    def _tested(self, gathered: Gathered, first: str) -> None:
        """Follow a test, without keeping it as a command."""
        words = [(first, True)]
        for raw in gathered.words[1:]:
            if first == "[[":
                runs = value(self.text, *raw, self.scope)
                words.append((string(runs), known(runs)))
            else:
                words += [(one.text, one.known) for one in fields(self.text, *raw, self.scope)]
        said = truth(words, gathered.negated)
        self.guard.test, self.guard.tested = said, True
        self._said(said)

    def _said(self, said: bool | None) -> None:
        branches = self.own()[-1].branches if self.own() else None
        if branches is not None and branches.testing:
            branches.tests.append(said)

    def _loop(self, gathered: Gathered) -> None:
        """Forget what the variable of a loop held: it differs from turn to turn."""
        if len(gathered.words) > 1:
            self.scope.variables.pop(self.raw[slice(*gathered.words[1])], None)

    def _assignment(self, word: tuple[int, int]) -> tuple[str, Runs]:
        match = ASSIGNMENT.match(self.raw, *word)
        assert match is not None
        return match[1], value(self.text, match.end(), word[1], self.scope)

    def _assign(self, gathered: Gathered, index: int, exported: bool) -> None:
        word = gathered.words[index]
        match = ASSIGNMENT.match(self.raw, *word)
        if match is None:
            return
        name, subscript, more = match[1], match[2], bool(match[3])
        old = self.scope.variables.get(name)
        exported = exported or (old is not None and old.exported)
        if index in gathered.arrays:
            elements = tuple(one for raw in gathered.arrays[index] for one in fields(self.text, *raw, self.scope))
            self._keep_array(name, old, elements, more, exported)
            return
        if subscript:
            self.scope.variables.pop(name, None)
            return
        runs = value(self.text, match.end(), word[1], self.scope)
        if more and old is not None and old.elements is None:
            runs = (*old.runs, *runs)
        if not self._sure() and old is not None and not more:
            runs = self._unsure(name, old, runs)
        elif not self._sure() and more:
            self.scope.remark(f"{name} is added to under a condition that only running decides")
        self._keep(name, runs, exported)

    def _keep_array(
        self, name: str, old: Variable | None, elements: tuple[Field, ...], more: bool, exported: bool
    ) -> None:
        before = (old.elements or ()) if old is not None else ()
        if not self._sure() and more:
            self.scope.remark(f"{name} is added to under a condition that only running decides")
        elif not self._sure() and before and [one.text for one in before] != [one.text for one in elements]:
            self.scope.remark(f"{name} holds other words in another branch, and only running tells which")
            elements = (Field((Run(f"${{{name}[@]}}", -1, known=False),), NOWHERE),)
        kept = (*before, *elements) if more else elements
        self.scope.variables[name] = Variable(elements=kept, exported=exported)

    def _unsure(self, name: str, old: Variable, runs: Runs) -> Runs:
        """Return what a variable holds after an assignment that only running decides on."""
        before, after = string(old.runs), string(runs)
        if before == after or (before and after.startswith(before) and old.elements is None):
            return runs
        self.scope.remark(f"{name} is {before[:60]!r} or {after[:60]!r}, which only running tells")
        return (Run(f"${{{name}}}", -1, known=False),)

    def _keep(self, name: str, runs: Runs, exported: bool) -> None:
        if not self.scope.budget.affords(runs):
            self.scope.remark(f"{name} holds more than can be followed")
            runs = (Run(f"${name}", -1, known=False),)
        self.scope.variables[name] = Variable(runs, exported=exported)

    def _shift(self, found: Sequence[Field]) -> None:
        number = int(found[1].text) if len(found) > 1 and re.fullmatch(r"\d{1,3}", found[1].text) else 1
        if self.scope.positional is not None:
            self.scope.positional = self.scope.positional[number:]

    def _declare(self, gathered: Gathered, count: int, found: Sequence[Field]) -> None:
        exported = found[0].text == "export" or any(one.text.startswith("-") and "x" in one.text for one in found[1:])
        for index in range(count + 1, len(gathered.words)):
            if ASSIGNMENT.match(self.raw, *gathered.words[index]):
                self._assign(gathered, index, exported)
            else:
                variable = self.scope.variables.get(self.raw[slice(*gathered.words[index])])
                if variable is not None and exported:
                    variable.exported = True

    def _read(self, found: Sequence[Field], given: Runs | None) -> None:
        """Put a heredoc into the variable that `read` names: all of it with `-d ''`, else its first line."""
        names, whole, raw, takes = [], False, False, ""
        for one in found[1:]:
            text = one.text
            if takes:
                whole, takes = whole or (takes == "d" and text == ""), ""
            elif text.startswith("-") and len(text) > 1:
                raw = raw or "r" in text
                takes = text[-1] if text[-1] in "adinNptu" else ""
            else:
                names.append(text)
        for name in names:
            self.scope.variables.pop(name, None)
        if given is not None and len(names) == 1 and whole:
            self._keep(names[0], given if raw else _continued(given), exported=False)


def _continued(runs: Runs) -> Runs:
    """Return a heredoc as `read` without `-r` gives it: a backslash at a line's end joins the lines."""
    found: list[Run] = []
    for run in runs:
        at = 0
        for match in re.finditer(r"\\\n", run.text):
            found.append(run.part(at, match.start()))
            at = match.end()
        found.append(run.part(at, len(run.text)))
    return tuple(run for run in found if run.text)
