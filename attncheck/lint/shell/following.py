"""Interprets the commands of a script without running them: variables, functions, and which branches are reached."""

import re
from bisect import bisect_left
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from attncheck.core.launch import NOWHERE, Assignment, Setting, Source, SourceLocation, Span, Word
from attncheck.lint.shell.conditions import evaluate_test
from attncheck.lint.shell.grammar import ASSIGNMENT, FUNCTION, LOOP, CompoundCommand, SimpleCommand
from attncheck.lint.shell.reader import ShellParser
from attncheck.lint.shell.scope import Conditions, Field, Scope, Variable
from attncheck.lint.shell.text import ScriptText, Segment, Segments, all_known, join_text
from attncheck.lint.shell.words import expand_fields, expand_heredoc, expand_value

MAX_COMMANDS, MAX_STEPS, MAX_OPEN_COMPOUNDS = 2000, 60_000, 200
KEYED = re.compile(r"\[([^\]]*)\]=")  # an item of an associative array
DECLARED = re.compile(r"[A-Za-z_]\w*")
ARGUMENT = re.compile(r"\$(?:[1-9]|OPTARG|\{(?:[1-9]|OPTARG)\W?[^{}]*\})")  # of the script: $2, ${1#*=}
EMPTY_TEST = re.compile(r'-z "?\$\{?(\w+)(?::?-)?\}?"?(?=\s|$)')
TEST_COMMANDS = {"[", "[[", "test", "true", "false"}


class WrittenFile(NamedTuple):
    """A file that a command writes: its path, and its text with the script's variables expanded."""

    path: str
    text: str | None  # None: known only at run time
    line: int  # line of the script on which the text begins
    appends: bool
    is_certain: bool  # whether it is written depends on no condition


class Command(NamedTuple):
    """One simple command after expansion: its words, its environment, and notes on unreadable parts."""

    words: tuple[Word, ...]
    variables: tuple[Setting, ...]  # exported before it, then set in front of it; for each name the last one counts
    location: SourceLocation
    notes: tuple[str, ...] = ()
    shell: tuple[int, ...] = ()  # the numbers of the nested shells that run it
    prefix_length: int = 0  # number of words before the shell that runs it
    written: WrittenFile | None = None
    exports: tuple[Assignment, ...] = ()  # the variables that a shell must set before it
    outermost: CompoundCommand | None = None  # the compound command around it
    refused: str = ""  # the syntax error because of which bash does not start it

    @property
    def environ(self) -> Mapping[str, str]:
        """Return the values of the command's variables by name."""
        return {variable.name: variable.value for variable in self.variables}


@dataclass
class ShellFunction:
    """A shell function: the extent of its body, and whether it is called."""

    text: ScriptText
    start: int
    end: int
    is_called: bool = False


@dataclass
class ScriptState:
    """The state shared by all texts of one script: the commands and functions so far, and the steps taken."""

    source: Source
    commands: list[tuple[Command, str]] = field(default_factory=list)  # each with the name of the enclosing function
    functions: dict[str, ShellFunction] = field(default_factory=dict)
    steps: int = 0
    exports_all: bool = False
    origin: int = 0  # used for text that cannot be traced to the source
    read_script: Callable[[str], Source | None] = lambda _: None  # reads a file that the script sources
    scripts_read: int = 0
    shells: int = 0  # number started so far
    error: tuple[int, str] | None = None  # the offset and text of the first syntax error
    is_cut_off: bool = False  # it is too long, or too deep, to be read to its end

    def __post_init__(self) -> None:
        self.newline_offsets = [-1, *(match.start() for match in re.finditer("\n", self.source.text))]

    def locate(self, offset: int) -> SourceLocation:
        """Return the same as `Source.location`, without counting the lines again."""
        line = max(bisect_left(self.newline_offsets, offset), 1) if offset > 0 else 1
        return SourceLocation(self.source.name, line, max(offset, 0) - self.newline_offsets[line - 1])


class ScriptInterpreter(ShellParser):
    """Follows the variables, functions and branches of one text; a subclass collects the commands that it starts."""

    def __init__(self, text: ScriptText, state: ScriptState, scope: Scope) -> None:
        super().__init__(text)
        self.state, self.scope = state, scope
        self.outer_variables: list[dict[str, Variable]] = []  # the variables outside the functions being defined
        self.is_function = False  # whether the text is a function's body that is being called
        self.local_names: set[str] = set()  # declared in it

    def count_step(self) -> bool:
        """Count one step of the parser; return whether the script is still short enough to continue."""
        self.state.steps += 1
        if (
            self.state.steps <= MAX_STEPS
            and len(self.state.commands) < MAX_COMMANDS
            and len(self.open_compounds) < MAX_OPEN_COMPOUNDS
        ):
            return True
        self.state.is_cut_off = True
        return False

    def expand_stdin(self, start: int, end: int, is_quoted: bool, is_heredoc: bool) -> Segments:
        """Return the expanded body of a here-document, or the expanded word of a here-string (`<<<`)."""
        if is_quoted:
            return self.text.segments_between(start, end)
        return (expand_heredoc if is_heredoc else expand_value)(self.text, start, end, self.scope)

    def expand_case_word(self, start: int, end: int) -> str | None:
        """Return the word that a `case` compares; None in a loop too: it differs between iterations."""
        segments = expand_value(self.text, start, end, self.scope)
        is_repeated = any(compound.kind == LOOP for compound in self.open_compounds)
        return join_text(segments) if all_known(segments) and not is_repeated else None

    def enter_function(self, function: CompoundCommand) -> None:
        """Save the variables: a function's body is read at its definition but changes them when it is called."""
        self.outer_variables.append(self.scope.variables)
        self.scope.variables = dict(self.scope.variables)

    def leave_compound(self, compound: CompoundCommand, offset: int) -> None:
        """Store a function with the extent of its body."""
        if compound.kind == FUNCTION:
            self.state.functions[compound.name] = ShellFunction(self.text, compound.offset, offset)
            self.scope.variables = self.outer_variables.pop()

    def add_note(self, offset: int, text: str) -> None:
        """Record a part that could not be read, with its line."""
        self.scope.add_note(f"line {self._line_number(offset)}: {text}")

    def _line_number(self, offset: int) -> int:
        span = self.text.source_span(offset, offset + 1)
        return self.state.locate(span[0]).line if span != NOWHERE else 0

    def _is_reachable(self) -> bool:
        """Return whether the current command may run at all."""
        conditionals = (compound.branches for compound in self.open_compounds)
        return self.and_or_list.is_reached is not False and all(
            branches.is_taken is not False for branches in conditionals if branches
        )

    def _is_certain(self, compounds: Sequence[CompoundCommand]) -> bool:
        """Return whether the current command certainly runs, with no undecided condition among those around it."""
        conditionals = (compound.branches for compound in compounds)
        return self.and_or_list.is_reached is True and all(
            branches.is_taken is True for branches in conditionals if branches
        )

    def _is_assigned(self) -> bool:
        """Return whether the current command certainly assigns a variable for the commands after it in its function."""
        return self._is_certain(self.own_compounds() if self.is_function else self.open_compounds)

    def merge_call(self, before: Mapping[str, Variable], local_names: Container[str]) -> None:
        """Restore the variables that a called function declared local; an uncertain call may not set its others."""
        variables = self.scope.variables
        for name in [name for name in variables if variables[name] is not before.get(name)]:
            value, is_restored = variables[name], name in local_names or not self._is_assigned()
            if is_restored:
                variables.pop(name)
                variables.update({name: before[name]} if name in before else {})
            if not is_restored or name in local_names or value.keyed is not None:
                continue
            if value.elements is not None:
                self._store_array(name, before.get(name), value.elements, appends=False, exported=value.exported)
            else:
                self._store_text(name, value.segments, value.exported, value.span)

    def _list_conditions(self) -> Conditions | None:
        """Return the undecided conditions around the current command; None if a `&&` or `||` also decides."""
        if self.and_or_list.is_reached is None:
            return None
        return tuple(
            (compound.offset, compound.branches.number)
            for compound in self.open_compounds
            if compound.branches and compound.branches.is_taken is None
        )

    def _evaluate_test(self, command: SimpleCommand, name: str) -> None:
        """Evaluate a test command, and record its result for the branches and the list that depend on it."""
        fields = [(name, True)]
        for word in command.words[1:]:
            if name == "[[":
                segments = expand_value(self.text, *word, self.scope)
                fields.append((join_text(segments), all_known(segments)))
            else:
                fields += [(field.text, field.known) for field in expand_fields(self.text, *word, self.scope)]
        result = evaluate_test(fields, command.is_negated)
        self.and_or_list.test_result, self.and_or_list.last_was_test = result, True
        branches = self.own_compounds()[-1].branches if self.own_compounds() else None
        if branches is not None and branches.in_condition and not branches.number:
            start, end = command.words[0][0], command.words[-1][1]
            if name == "[[":  # only the first word of `[[ … || … ]]` is read
                end = max(end, self.raw.find("]]", start))
            branches.required_names += EMPTY_TEST.findall(self.raw, start, end)
        self._record_test_result(result)

    def _record_test_result(self, result: bool | None) -> None:
        branches = self.own_compounds()[-1].branches if self.own_compounds() else None
        if branches is not None and branches.in_condition:
            branches.test_results.append(result)

    def _require_values(self) -> None:
        """Forget the empty values that end the script, as in `if [ -z "$NAME" ]; then exit 1; fi`.

        Such a variable comes from the user's environment or arguments, and is not empty afterwards.
        """
        for compound in self.open_compounds:
            for name in compound.branches.required_names if compound.branches else ():
                variable = self.scope.variables.get(name)
                if variable is not None and variable.elements is None and not join_text(variable.segments):
                    segments = (Segment(f"${{{name}}}", -1, known=False),)
                    self.scope.variables[name] = Variable(segments, exported=variable.exported, span=variable.span)

    def _forget_loop_variable(self, command: SimpleCommand) -> None:
        """Remove the variable of a loop, because its value differs between iterations."""
        if len(command.words) > 1:
            self.scope.variables.pop(self.raw[slice(*command.words[1])], None)

    def _parse_assignment(self, word: tuple[int, int]) -> tuple[str, Variable]:
        match = ASSIGNMENT.match(self.raw, *word)
        assert match is not None
        segments = expand_value(self.text, match.end(), word[1], self.scope)
        return match[1], Variable(segments, exported=True, span=self.text.source_span(*word))

    def _apply_assignment(self, command: SimpleCommand, index: int, exported: bool) -> None:
        word = command.words[index]
        match = ASSIGNMENT.match(self.raw, *word)
        if match is None:
            return
        name, subscript, appends = match[1], match[2], bool(match[3])
        previous = self.scope.variables.get(name)
        exported = exported or (previous is not None and previous.exported)
        is_keyed = previous is not None and previous.keyed is not None
        if index in command.arrays and not is_keyed:
            elements = tuple(
                field for element in command.arrays[index] for field in expand_fields(self.text, *element, self.scope)
            )
            self._store_array(name, previous, elements, appends, exported)
            return
        if subscript or is_keyed:
            kept = previous.keyed if previous is not None else None
            self._store_keyed(
                name, kept if subscript or appends else {}, command.arrays.get(index, [(match.end(1), word[1])])
            )
            return
        segments = expand_value(self.text, match.end(), word[1], self.scope)
        if appends and previous is not None and previous.elements is None:
            segments = (*previous.segments, *segments)
        self._store_text(name, segments, exported, self.text.source_span(*word), appends)

    def _store_text(self, name: str, segments: Segments, exported: bool, span: Span, appends: bool = False) -> None:
        """Assign a string to a variable, which has several values afterwards if the assignment is not certain."""
        previous, conditions, is_certain = self.scope.variables.get(name), self._list_conditions(), self._is_assigned()
        may_be_empty = not is_certain and _may_be_empty(previous)
        choices: tuple[Variable, ...] = ()
        if not is_certain and previous is not None and not appends:
            if join_text(previous.segments) == join_text(segments):
                conditions = previous.conditions
            else:
                choices = (*_list_choices(previous), Variable(segments))
            segments = self._merge_uncertain(name, previous, segments)
        elif not is_certain and appends:
            self.scope.add_note(f"{name} is extended under a condition that is known only at run time")
        self._store_variable(name, segments, exported, span, conditions)
        self.scope.variables[name].may_be_empty = may_be_empty
        self.scope.variables[name].choices = choices

    def _store_array(
        self, name: str, previous: Variable | None, elements: tuple[Field, ...], appends: bool, exported: bool
    ) -> None:
        previous_elements = (previous.elements or ()) if previous is not None else ()
        choices: tuple[Variable, ...] = ()
        if not self._is_assigned() and appends:
            self.scope.add_note(f"{name} is extended under a condition that is known only at run time")
        elif (
            not self._is_assigned()
            and previous_elements
            and [field.text for field in previous_elements] != [field.text for field in elements]
        ):
            self.scope.add_note(f"{name} differs between branches, and the branch is known only at run time")
            choices = (*_list_choices(previous), Variable(elements=elements))
            elements = (Field((Segment(f"${{{name}[@]}}", -1, known=False),), NOWHERE),)
        value = (*previous_elements, *elements) if appends else elements
        self.scope.variables[name] = Variable(elements=value, exported=exported, choices=choices)

    def _store_keyed(self, name: str, before: Mapping[str, Segments] | None, items: Sequence[tuple[int, int]]) -> None:
        """Add items `[key]=value` to an associative array, which is unknown if one may not run or cannot be read."""
        self.scope.variables.pop(name, None)
        keyed = dict(before or {})
        for start, end in items:
            match = KEYED.match(self.raw, start, end)
            key = expand_value(self.text, *match.span(1), self.scope) if match else ()
            if match is None or not all_known(key):
                return
            keyed[join_text(key)] = expand_value(self.text, match.end(), end, self.scope)
        if before is not None and self._is_assigned():
            self.scope.variables[name] = Variable(keyed=keyed)

    def _merge_uncertain(self, name: str, previous: Variable, segments: Segments) -> Segments:
        """Return a variable's value after an uncertain assignment: unknown unless it extends one that was read.

        A value that an argument of the script would replace is the default, as that of `${1:-default}` is.
        """
        before, after = join_text(previous.segments), join_text(segments)
        is_read = before and any(segment.known for segment in previous.segments)
        if before == after or (is_read and after.startswith(before) and previous.elements is None):
            return segments
        if is_read and all_known(previous.segments) and self.scope.positional is None and ARGUMENT.fullmatch(after):
            self.scope.add_note(f"{name} is {before[:60]!r}, unless an argument of the script sets it")
            return previous.segments
        if not previous.choices:  # else a note names the first two
            self.scope.add_note(f"{name} is {before[:60]!r} or {after[:60]!r}, which is known only at run time")
        return (Segment(f"${{{name}}}", -1, known=False),)

    def _store_variable(
        self, name: str, segments: Segments, exported: bool, span: Span = NOWHERE, conditions: Conditions | None = ()
    ) -> None:
        if not self.scope.budget.charge(segments):
            self.scope.add_note(f"{name} holds more than can be followed")
            segments = (Segment(f"${name}", -1, known=False),)
        self.scope.variables[name] = Variable(segments, exported=exported, span=span, conditions=conditions)

    def _apply_shift(self, argv: Sequence[Field]) -> None:
        shift_count = int(argv[1].text) if len(argv) > 1 and re.fullmatch(r"\d{1,3}", argv[1].text) else 1
        repeats = any(compound.kind == LOOP for compound in self.own_compounds())
        if self.scope.positional is not None:
            is_counted = self._is_assigned() and not repeats
            self.scope.positional = self.scope.positional[shift_count:] if is_counted else None

    def _apply_declaration(self, command: SimpleCommand, name_index: int, argv: Sequence[Field]) -> None:
        exported = argv[0].text == "export" or any(
            field.text.startswith("-") and "x" in field.text for field in argv[1:]
        )
        is_keyed = any(re.fullmatch(r"-\w*A\w*", field.text) for field in argv[1:])
        is_local = self.is_function and argv[0].text in ("local", "declare", "typeset")
        for index in range(name_index + 1, len(command.words)):
            named = DECLARED.match(self.raw, *command.words[index]) if is_local else None
            self.local_names |= {named[0]} if named else set()
            declared = DECLARED.match(self.raw, *command.words[index]) if is_keyed else None
            if declared and getattr(self.scope.variables.get(declared[0]), "keyed", None) is None:
                self.scope.variables[declared[0]] = Variable(keyed={})
            if ASSIGNMENT.match(self.raw, *command.words[index]):
                self._apply_assignment(command, index, exported)
            else:
                variable = self.scope.variables.get(self.raw[slice(*command.words[index])])
                if variable is not None and exported:
                    variable.exported = True

    def _apply_read(self, argv: Sequence[Field], stdin: Segments | None) -> None:
        """Assign a here-document to the variable of `read`; only with `-d ''`, which reads all of it."""
        names, reads_all, raw, pending_option = [], False, False, ""
        for argument in argv[1:]:
            text = argument.text
            if pending_option:
                reads_all, pending_option = reads_all or (pending_option == "d" and text == ""), ""
            elif text.startswith("-") and len(text) > 1:
                raw = raw or "r" in text
                pending_option = text[-1] if text[-1] in "adinNptu" else ""
            else:
                names.append(text)
        for name in names:
            self.scope.variables.pop(name, None)
        if stdin is not None and len(names) == 1 and reads_all:
            self._store_variable(names[0], stdin if raw else _join_continued_lines(stdin), exported=False)


def _list_choices(variable: Variable | None) -> tuple[Variable, ...]:
    """Return a variable's values in the branches read so far, one of which sets it."""
    if variable is None or variable.choices:
        return variable.choices if variable is not None else ()
    return (variable,) if variable.elements or join_text(variable.segments) else ()


def _may_be_empty(variable: Variable | None) -> bool:
    """Return whether a variable may be unset or empty, as far as it is followed."""
    if variable is None or variable.may_be_empty:
        return True
    return variable.elements is None and not join_text(variable.segments)


def _join_continued_lines(segments: Segments) -> Segments:
    """Return a here-document as `read` without `-r` reads it: a backslash at the end of a line joins the lines."""
    parts: list[Segment] = []
    for segment in segments:
        offset = 0
        for match in re.finditer(r"\\\n", segment.text):
            parts.append(segment.substring(offset, match.start()))
            offset = match.end()
        parts.append(segment.substring(offset, len(segment.text)))
    return tuple(segment for segment in parts if segment.text)
