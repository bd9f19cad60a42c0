"""Finds the values that a shell script gives to environment variables, in any notation."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from attncheck.core.launch import NOWHERE, Source, Span
from attncheck.lint.shell.carriers import find_carried_script
from attncheck.lint.shell.following import ScriptInterpreter, ScriptState
from attncheck.lint.shell.grammar import ASSIGNMENT, SimpleCommand
from attncheck.lint.shell.scope import Scope, join_fields
from attncheck.lint.shell.text import ScriptText, Segments
from attncheck.lint.shell.words import expand_fields

MAX_DEPTH = 4  # levels of nested shells; deeper text is hidden completely
EXPORTS = re.compile(r"(?:export|(?:declare|typeset)\s+-\w*x\w*)\b")
ALL_EXPORTS = re.compile(r"-[a-z]*a[a-z]*|allexport")
# `env A=b`, `sudo A=b`; `docker run -e A=b`, `mpirun -x A=b`, `srun --export=ALL,A=b`; Ray's `env_vars.A=b` and JSON.
SETTERS = frozenset({"env", "sudo", "doas"})
ENVIRONMENT_OPTIONS = frozenset({"-e", "-x", "-v", "--env", "--environment", "-genv", "--export"})
OPTION = re.compile(r"""["']?(?:--(?:env|export|environment|container-env)=|[\w.+]*env_vars\.(?=\w+=))""")
ENTRY = re.compile(r"""(?:\A|,)["']?([A-Za-z_]\w*)=((?:"[^"]*"|'[^']*'|\$\{[^}]*\}|[^\s,"'])*)""")
ENV_VARS = re.compile(r"env_vars\W{1,12}?(\{(?:[^{}]|\$\{[^{}]*\})*)")
MAPPING = re.compile(
    r"""[{,]\s*\\?["']?([A-Za-z_]\w*)\\?["']?\s*:\s*(\\?"(?:[^"\\]|\\[^"])*\\?"|'[^']*'|[^\s,}"'{][^,}]*)"""
)


@dataclass(frozen=True)
class Value:
    """The value of a variable: its name and its place."""

    name: str
    span: Span


def find_values(script: str, exported: Collection[str] = ()) -> list[Value]:
    """Return the values of environment variables that a script sets; the whole script if it is too long to be read.

    `exported` are names of exported variables whose export is not in the script, which may be a fragment.
    """
    source = Source("", script)
    finder = _ValueFinder(ScriptText.from_source(source), ScriptState(source), (0, len(script)))
    finder.parse()
    if finder.state.is_cut_off:
        return [Value("", (0, len(script)))]
    exported = finder.exported.union(exported)
    is_exported = finder.state.exports_all
    return [*finder.values, *(value for value in finder.assigned if is_exported or value.name in exported)]


class _ValueFinder(ScriptInterpreter):
    """Finds the values that a script gives to environment variables; every branch is read, nothing is expanded."""

    def __init__(self, text: ScriptText, state: ScriptState, whole: Span, depth: int = 0) -> None:
        super().__init__(text, state, Scope())
        self.whole, self.depth = whole, depth
        self.values: list[Value] = []  # values of environment variables
        self.assigned: list[Value] = []  # values of shell variables
        self.exported: set[str] = set()  # names of those that are exported separately

    def handle_command(self, command: SimpleCommand) -> None:
        """Record the values that a command sets, and those of a script that it passes to another shell."""
        words = [self.raw[slice(*span)] for span in command.words]
        count = next((index for index, word in enumerate(words) if not ASSIGNMENT.match(word)), len(words))
        leading = [self._make_value(command, index) for index in range(count)]
        (self.values if count < len(words) else self.assigned).extend(leading)
        if count == len(words):
            return
        if words[count] == "set" and any(ALL_EXPORTS.fullmatch(word) for word in words[count + 1 :]):
            self.state.exports_all = True
        if EXPORTS.match(" ".join(words[count : count + 2])):
            self._note_declaration(command, words, count)
            return
        self._note_arguments(command, words, count)
        self._note_carried(command, count)

    def _make_value(self, command: SimpleCommand, index: int) -> Value:
        """Return the value of an assignment; for an array, all of its elements."""
        start, end = command.words[index]
        before = self.raw[start:end].partition("=")[0]
        elements = command.arrays.get(index) or [(start + len(before) + 1, end)]
        return self._place(before.rstrip("+").partition("[")[0], elements[0][0], elements[-1][1])

    def _place(self, name: str, start: int, end: int) -> Value:
        """Return a value if it is in the source, or the whole command if quoting hides its place."""
        span = self.text.source_span(start, end) if start < end else (0, 0)
        return Value("", self.whole) if span == NOWHERE else Value(name, span)

    def _note_declaration(self, command: SimpleCommand, words: Sequence[str], first: int) -> None:
        for index in range(first + 1, len(words)):
            if ASSIGNMENT.match(words[index]):
                self.values.append(self._make_value(command, index))
            else:
                self.exported.add(words[index])

    def _note_arguments(self, command: SimpleCommand, words: Sequence[str], first: int) -> None:
        """Record the values set by `env`, an option or a runtime environment among a command's words."""
        takes_assignments = False
        for index in range(first, len(words)):
            word, before, (start, end) = words[index], words[index - 1] if index > first else "", command.words[index]
            is_assignment = bool(ASSIGNMENT.match(word))
            option = OPTION.match(word)
            if is_assignment and takes_assignments:
                self.values.append(self._make_value(command, index))
            elif option or before in ENVIRONMENT_OPTIONS:
                self._note_entries(ENTRY, start + (option.end() if option else 0), end)
            for mapping in ENV_VARS.finditer(word):
                self._note_entries(MAPPING, start + mapping.start(1), start + mapping.end(1))
            if word.rsplit("/", 1)[-1] in SETTERS:
                takes_assignments = True
            elif takes_assignments and not is_assignment and not word.startswith("-") and not before.startswith("-"):
                takes_assignments = False

    def _note_entries(self, pattern: re.Pattern[str], start: int, end: int) -> None:
        text = self.raw[start:end]
        self.values += [
            self._place(match[1], start + match.start(2), start + match.end(2)) for match in pattern.finditer(text)
        ]

    def _note_carried(self, command: SimpleCommand, first: int) -> None:
        argv = [field for word in command.words[first:] for field in expand_fields(self.text, *word, self.scope)]
        if not argv:
            return
        carried = find_carried_script(argv, command.stdin)
        if carried is not None:
            self._read_nested(carried.segments, command)
        elif argv[0].text == "eval":
            self._read_nested(join_fields(argv[1:]), command)

    def _read_nested(self, segments: Segments, command: SimpleCommand) -> None:
        if self.depth >= MAX_DEPTH:
            self.values.append(Value("", self.whole))
            return
        text = ScriptText.from_segments(self.state.source, segments)
        whole = self.text.source_span(command.words[0][0], command.words[-1][1])
        inner = _ValueFinder(text, self.state, self.whole if whole == NOWHERE else whole, self.depth + 1)
        inner.parse()
        self.values += inner.values
        self.assigned += inner.assigned
        self.exported |= inner.exported
