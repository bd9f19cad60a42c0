"""A bash launch script, or a command, read as text and never run: the commands it would start, in their order.

What is followed: quotes, continuations, variables and arrays that the script sets itself, heredocs, functions,
`eval`, `bash -c`, arithmetic over known integers. What only running can tell (`$(nproc)`, a variable of the user's
environment) stays as it is written. A condition over known words is followed; of any other both branches are read,
the commands in them say so, and a variable that they set differently is not known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from attncheck.core.launch import NOWHERE, Source, Word
from attncheck.lint.shell.arithmetic import value_of
from attncheck.lint.shell.following import TESTS, Command, Following, Function, State
from attncheck.lint.shell.grammar import ASSIGNMENT, FUNCTION, LOOP, Gathered
from attncheck.lint.shell.scope import Field, Scope, Variable, together
from attncheck.lint.shell.text import Run, Runs, Text, string
from attncheck.lint.shell.words import fields

__all__ = ["Command", "commands"]


DIRECTIVE = re.compile(r"^#SBATCH[ \t]+(-\S.*)$", re.MULTILINE)
DECLARING = {"export", "declare", "typeset", "local", "readonly"}
SHELLS = {"bash", "sh", "zsh", "dash", "ksh"}
DEEPEST = 8  # scripts within scripts, and functions that call functions


def commands(source: Source) -> list[Command]:
    """Return the commands of a script or a command line, in the order in which they are written."""
    state = State(source)
    script = _Script(Text.whole(source), state)
    script.scope.variables.update(_directives(source))
    script.run()
    called = {name for name, function in state.functions.items() if function.called}
    return [command for command, function in state.found if function not in called]


class _Script(Following):
    """Follows one text, and keeps the commands that it starts."""

    def __init__(
        self, text: Text, state: State, scope: Scope | None = None, prefix: Sequence[Field] = (), depth: int = 0
    ) -> None:
        super().__init__(text, state, scope or Scope())
        self.prefix, self.depth = prefix, depth
        self.scope.substitute = self._printed

    def finished(self, gathered: Gathered) -> None:
        """Do what a simple command does to the variables, or keep it; unless it is known not to be reached."""
        if not self._reached():
            self.guard.tested = False
            return
        first = self.raw[slice(*gathered.words[0])]
        if first in TESTS:
            self._tested(gathered, first)
            return
        self._said(None)
        if first in ("for", "select", "case"):
            self._loop(gathered)
            return
        count = 0
        while count < len(gathered.words) and ASSIGNMENT.match(self.raw, *gathered.words[count]):
            count += 1
        if count == len(gathered.words):
            for index in range(count):
                self._assign(gathered, index, exported=self.state.exports_all)
            return
        local: dict[str, str] = {}
        for index in range(count):
            name, runs = self._assignment(gathered.words[index])
            local[name] = string(runs)
        self._command(gathered, count, local)

    def _command(self, gathered: Gathered, count: int, local: Mapping[str, str]) -> None:
        found = [one for word in gathered.words[count:] for one in fields(self.text, *word, self.scope)]
        if not found:
            return
        name = found[0].text
        if name in DECLARING:
            self._declare(gathered, count, found)
        elif name in ("read", "mapfile", "readarray"):
            self._read(found, gathered.heredoc)
        elif name == "shift":
            self._shift(found)
        elif name == "unset":
            for one in found[1:]:
                self.scope.variables.pop(one.text, None)
        elif name == "set" and len(found) > 1 and found[1].text == "-a":
            self.state.exports_all = True
        elif name == "eval":
            self._nested(together(found[1:]), self.scope, self.prefix)
        elif name in ("source", "."):
            what = found[1].text if len(found) > 1 else "nothing"
            self.scope.remark(f"line {self._line(gathered.words[count][0])}: what {what} sets is not followed")
        elif name in self.state.functions and self.depth < DEEPEST:
            self._call(self.state.functions[name], found[1:])
        elif not self._shell(found, local):
            self._emit(found, local, gathered.words[count][0])

    def _call(self, function: Function, arguments: Sequence[Field]) -> None:
        function.called = True
        scope = replace(self.scope, positional=tuple(arguments))
        inner = _Script(function.text, self.state, scope, self.prefix, self.depth + 1)
        inner.open, inner.around = list(self.open), len(self.open)
        inner.run(function.start, function.end)
        self.scope.substitute = self._printed

    def _shell(self, found: Sequence[Field], local: Mapping[str, str]) -> bool:
        """Read the string of a `bash -c` in the command as a script; what stands in front of it starts each command."""
        for index, one in enumerate(found[:-2]):
            if one.text.rsplit("/", 1)[-1] not in SHELLS:
                continue
            at = index + 1
            while at < len(found) - 1 and re.fullmatch(r"[-+][A-Za-z]+|--\w+", found[at].text):
                if "c" in found[at].text and not found[at].text.startswith("--"):
                    scope = Scope({key: one for key, one in self.scope.variables.items() if one.exported})
                    scope.variables |= {key: Variable((Run(text, -1),), exported=True) for key, text in local.items()}
                    scope.remarks, scope.assumed, scope.budget = (
                        self.scope.remarks,
                        self.scope.assumed,
                        self.scope.budget,
                    )
                    self._nested(found[at + 1].runs, scope, (*self.prefix, *found[:index]))
                    return True
                at += 1
        return False

    def _nested(self, runs: Runs, scope: Scope, prefix: Sequence[Field]) -> None:
        if self.depth >= DEEPEST or not runs:
            return
        inner = _Script(Text.of(self.state.source, runs), self.state, scope, prefix, self.depth + 1)
        inner.open, inner.around = list(self.open), len(self.open)
        inner.run()
        self.scope.substitute = self._printed

    def _printed(self, script: Runs) -> Runs | None:
        """Return what `$(cat <<EOF …)`, `$(echo …)` or `$(expr 16 / 8)` prints, None for anything else."""
        text = Text.of(self.state.source, script)
        if self.depth >= DEEPEST or not re.match(r"\s*(cat\s*<<|echo\s|expr\s)", text.string):
            return None
        state = State(Source("", ""))
        inner = _Script(text, state, self.scope, (), self.depth + 1)
        inner.limit = len(text.string)
        at, printed = 0, None
        while at < inner.limit and state.steps < 2000:
            state.steps += 1
            if text.string[at] in "|;&\n" and inner.gathered.words:
                break
            at = inner.next(at)
        self.scope.substitute = self._printed
        rest = text.string[at:].strip(" \t\n;")
        if rest and (inner.body < 0 or rest[0] in "|&"):
            return None
        if inner.gathered.heredoc is not None and len(inner.gathered.words) == 1:
            printed = _stripped(inner.gathered.heredoc)
        elif inner.gathered.words and text.string[slice(*inner.gathered.words[0])] == "echo":
            found = [one for word in inner.gathered.words[1:] for one in fields(text, *word, self.scope)]
            printed = None if any(one.text.startswith("-") for one in found[:1]) else together(found)
        elif inner.gathered.words and text.string[slice(*inner.gathered.words[0])] == "expr":
            found = [one for word in inner.gathered.words[1:] for one in fields(text, *word, self.scope)]
            number = value_of(string(together(found)), lambda _: "") if all(one.known for one in found) else None
            printed = None if number is None else (Run(str(number), -1),)
        return printed

    def _emit(self, found: Sequence[Field], local: Mapping[str, str], at: int) -> None:
        variables = self.scope.variables.items()
        environ = {name: string(one.runs) for name, one in variables if one.exported and one.elements is None}
        place = self.state.place(max(self.text.span(at, at + 1)[0], 0))
        words = tuple(
            Word(one.text, one.span, self.state.place(one.span[0]) if one.span != NOWHERE else place, one.known)
            for one in (*self.prefix, *found)
        )
        function = next((one.name for one in self.open if one.kind == FUNCTION), "")
        command = Command(words, {**environ, **local}, place, tuple(self._notes()))
        self.state.found.append((command, function))

    def _notes(self) -> Iterator[str]:
        for one in self.open:
            if one.kind == LOOP or (one.branches and one.branches.taken is None):
                yield f"it stands under {one.kind}: `{one.keyword}` of line {self._line(one.at)}"
        if self.scope.assumed:
            taken = ", ".join(f"{name}={text!r}" for name, text in list(self.scope.assumed.items())[:20])
            yield f"variables that the script does not set are taken at their defaults: {taken}"
        yield from self.scope.remarks


def _stripped(runs: Runs) -> Runs:
    """Return runs without the newlines at their end."""
    kept = list(runs)
    while kept and not (text := kept[-1].text.rstrip("\n")):
        kept.pop()
    if kept:
        kept[-1] = kept[-1].part(0, len(text))
    return tuple(kept)


def _directives(source: Source) -> dict[str, Variable]:
    """Return what Slurm sets from the `#SBATCH` lines of a script: nodes, tasks and GPUs."""
    found: dict[str, Variable] = {}
    names = {
        "--nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
        "-N": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
        "--ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
        "--gpus-per-node": ("SLURM_GPUS_PER_NODE",),
    }
    for line in DIRECTIVE.finditer(source.text):
        for option in re.finditer(r"(--?[A-Za-z-]+?)(?:=|\s+|(?<=^-N))(\d+)(?=\s|$)", line[1]):
            for name in names.get(option[1], ()):
                start = line.start(1) + option.start(2)
                found[name] = Variable((Run(option[2], start),), exported=True)
    return found
