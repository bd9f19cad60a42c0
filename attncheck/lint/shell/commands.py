"""Parses a bash launch script or command as text, without running it, and lists the commands it would start.

It follows quotes, continuations, here-documents, functions, sourced files, arithmetic with known integers, and
variables and arrays that the script sets itself. It also follows `eval`, `bash -c`, and scripts passed to ssh, tmux and
sbatch. Values known only at run time (`$(nproc)`, a variable of the user's environment) stay as written. A condition
over known words is decided. For other conditions both branches are read. Their commands get a note that says so, and a
variable that they set differently becomes unknown.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from attncheck.core.io.errors import Unanswered
from attncheck.core.launch import NOWHERE, Assignment, Setting, Source, SourceLocation, Span, Word
from attncheck.lint.shell.arithmetic import evaluate_arithmetic
from attncheck.lint.shell.carriers import CarriedScript, find_carried_script
from attncheck.lint.shell.following import (
    MAX_COMMANDS,
    MAX_OPEN_COMPOUNDS,
    TEST_COMMANDS,
    Command,
    ScriptInterpreter,
    ScriptState,
    ShellFunction,
    WrittenFile,
)
from attncheck.lint.shell.grammar import ASSIGNMENT, FUNCTION, LOOP, SimpleCommand
from attncheck.lint.shell.quoting import format_segments, quote_on_one_line
from attncheck.lint.shell.scope import NOT_FOLLOWED, Field, Scope, Variable, join_fields
from attncheck.lint.shell.text import ScriptText, Segment, Segments, all_known, join_text
from attncheck.lint.shell.words import expand_fields

__all__ = ["Command", "ScriptStart", "WrittenFile", "parse_commands"]


SBATCH_COUNT = re.compile(r"(--gres=gpu|--?[A-Za-z-]+?)(?:[=:]|\s+|(?<=^-N))(?:[a-zA-Z]\w*:)?(\d+)(?=\s|$)")
SBATCH_DIRECTIVE = re.compile(r"^#SBATCH[ \t]+(-\S.*)$", re.MULTILINE)
DECLARATION_BUILTINS = {"export", "declare", "typeset", "local", "readonly"}
WHOLE_VARIABLE = re.compile(r'"?\$\{?(\w+)(?:\[[@*]\])?\}?"?')
# $(cd "$SCRIPT_DIR/.." && pwd), if the variable itself holds such a path
FOLDER_OF_VARIABLE = re.compile(
    r'\s*(?P<command>cd|dirname|realpath|readlink -f) "?\$\{?(?P<name>[A-Za-z_]\w*)\}?(?P<rest>[\w./-]*)"?'
    r"(?P<tail> ?(?:&&|;) ?pwd(?: -P)?)?\s*"
)
# ID=$(sbatch --parsable train.sh), OUT="$(kubectl exec pod -- bash -c "$CMD")"
STARTS_JOB = "sbatch|srun|ray job submit|kubectl exec|ssh|torchrun|accelerate launch|deepspeed"
STARTED_JOB = re.compile(rf'\w+="?\$\(((?:\s*\w+=\S+)*\s*(?:{STARTS_JOB})\s.*)\)"?', re.DOTALL)
MAX_CHOICES = 4
MAX_NESTING = 8  # nested scripts, and functions that call functions
MAX_SCRIPTS = 20  # files that one script sources


@dataclass(frozen=True)
class ScriptStart:
    """How a script is started: its part of the source, its variables, its arguments, and its reader of files."""

    text: ScriptText | None = None  # None: the whole source
    origin: int = 0  # the offset used for text that cannot be traced to the source
    environ: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[Word, ...] | None = None  # None: unknown
    prefix: tuple[Word, ...] = ()  # words before it, such as `srun -N 2`
    read_script: Callable[[str], Source | None] = lambda _: None


def parse_commands(source: Source, start: ScriptStart = ScriptStart()) -> list[Command]:
    """Return the commands of a script or a command line, in the order in which they are written.

    Raises `Unanswered` for a script that is not read to its end, because the launch may be in the rest.
    """
    state = ScriptState(source, origin=start.origin, read_script=start.read_script)
    prefix = [Field((Segment(word.text, -1, word.known),), NOWHERE) for word in start.prefix]
    script = _CommandCollector(start.text or ScriptText.from_source(source), state, prefix=prefix)
    script.scope.variables.update(_parse_sbatch_directives(source.text, 0))
    for name, text in start.environ.items():
        segment = Segment(text, -1, known=not re.search(r"[$`]", text))
        script.scope.variables[name] = Variable((segment,), exported=True)
    if start.arguments is not None:
        script.scope.positional = tuple(
            Field((Segment(word.text, -1, word.known),), NOWHERE) for word in start.arguments
        )
    script.parse()
    if state.is_cut_off:
        raise Unanswered(
            f"{source.name}: too long, or nested too deeply, to be read to its end ({MAX_COMMANDS} commands, "
            f"{MAX_OPEN_COMPOUNDS} levels): split it"
        )
    called = {name for name, function in state.functions.items() if function.is_called}
    commands = [command for command, function in state.commands if function not in called]
    if state.error is None:
        return commands
    offset, text = state.error
    error = state.locate(script.text.source_span(offset, offset + 1)[0])
    text = f"line {error.line}: {text}"
    return [item._replace(refused=text) if _is_refused(item, offset, error) else item for item in commands]


def _is_refused(command: Command, offset: int, error: SourceLocation) -> bool:
    """Return whether bash has not read a command, or the end of the compound command around it, before an error."""
    around = command.outermost
    is_open = around is not None and (around.end < 0 or around.end >= offset)
    return is_open or command.location.line >= error.line


class _CommandCollector(ScriptInterpreter):
    """Interprets one text, and collects the commands that it starts."""

    def __init__(
        self,
        text: ScriptText,
        state: ScriptState,
        scope: Scope | None = None,
        prefix: Sequence[Field] = (),
        depth: int = 0,
        shell: tuple[int, ...] = (),
    ) -> None:
        super().__init__(text, state, scope or Scope())
        self.prefix, self.depth, self.shell = prefix, depth, shell
        self.scope.substitute_command = self._substitute_command

    def refuse(self, offset: int, text: str) -> None:
        """Record the first syntax error of a script itself, if it was read to that place."""
        if self.depth == 0 and self.state.source.kind == "shell" and not self.state.is_cut_off:
            self.state.error = self.state.error or (offset, text)

    def handle_command(self, command: SimpleCommand) -> None:
        """Apply a simple command's effect on variables, or collect it, unless it is certainly not reached."""
        if not self._is_reachable():
            self.and_or_list.last_was_test = False
            return
        first_word = self.raw[slice(*command.words[0])]
        if first_word in TEST_COMMANDS:
            self._evaluate_test(command, first_word)
            return
        self._record_test_result(None)
        if first_word in ("for", "select", "case"):
            self._forget_loop_variable(command)
            return
        assignment_count = 0
        while assignment_count < len(command.words) and ASSIGNMENT.match(self.raw, *command.words[assignment_count]):
            assignment_count += 1
        if assignment_count == len(command.words):
            for index in range(assignment_count):
                self._parse_substitution(command.words[index])
                self._apply_assignment(command, index, exported=self.state.exports_all)
            return
        assignments = dict(self._parse_assignment(word) for word in command.words[:assignment_count])
        self._interpret_command(command, assignment_count, assignments)

    def _interpret_command(self, command: SimpleCommand, name_index: int, assignments: Mapping[str, Variable]) -> None:
        chosen = self._find_chosen(command.words[name_index:])
        if chosen:  # $LAUNCH or $SCRIPT, set in several branches: a command each
            variable = self.scope.variables[chosen]
            for choice in _without_longer(variable.choices):
                self.scope.variables[chosen] = choice
                self._interpret_command(command, name_index, assignments)
            self.scope.variables[chosen] = variable
            return
        argv = [field for word in command.words[name_index:] for field in expand_fields(self.text, *word, self.scope)]
        if not argv:
            return
        name = argv[0].text
        if name in DECLARATION_BUILTINS:
            self._apply_declaration(command, name_index, argv)
        elif name in ("read", "mapfile", "readarray"):
            self._apply_read(argv, command.stdin)
        elif name == "exit":
            self._require_values()
        elif name == "shift":
            self._apply_shift(argv)
        elif name == "unset":
            for field in argv[1:]:
                self.scope.variables.pop(field.text, None)
        elif name == "set" and len(argv) > 1 and argv[1].text == "-a":
            self.state.exports_all = True
        elif name == "eval":
            self._parse_nested(join_fields(argv[1:]), self.scope, self.prefix)
        elif name in ("source", "."):
            self._source_file(argv[1:], command.words[name_index][0])
        elif name in self.state.functions and self.depth < MAX_NESTING:
            self._call_function(self.state.functions[name], argv[1:])
        elif carried := find_carried_script(argv, command.stdin, self._find_exported("COMMAND", assignments)):
            self._parse_carried(carried, assignments)
        else:
            self._collect_command(argv, assignments, command.words[name_index][0], self._find_written(command, argv))

    def _find_exported(self, name: str, assignments: Mapping[str, Variable]) -> Segments:
        """Return the value of a variable that a command gets; () if it gets none."""
        variable = assignments.get(name) or self.scope.variables.get(name)
        return variable.segments if variable is not None and variable.exported else ()

    def _find_chosen(self, words: Sequence[tuple[int, int]]) -> str:
        """Return the variable of several values that is a command's first word, or its program; "" if none is."""
        for index, word in enumerate(words):
            match = WHOLE_VARIABLE.fullmatch(self.raw, *word)
            choices = self.scope.variables[match[1]].choices if match and match[1] in self.scope.variables else ()
            if match and choices and (not index or all(map(_is_program, choices))):
                return match[1]
        return ""

    def _call_function(self, function: ShellFunction, arguments: Sequence[Field]) -> None:
        function.is_called = True
        scope = replace(self.scope, positional=tuple(arguments))
        inner = _CommandCollector(function.text, self.state, scope, self.prefix, self.depth + 1, self.shell)
        inner.open_compounds, inner.inherited_count = list(self.open_compounds), len(self.open_compounds)
        before, inner.is_function = dict(self.scope.variables), True
        inner.parse(function.start, function.end)
        self.merge_call(before, inner.local_names)
        self.scope.substitute_command = self._substitute_command

    def _parse_carried(self, carried: CarriedScript, assignments: Mapping[str, Variable]) -> None:
        """Parse a script for another shell; its commands begin with the words before that shell."""
        variables: dict[str, Variable] = {}
        if carried.inherits:
            variables = {name: value for name, value in self.scope.variables.items() if value.exported}
            variables |= assignments
        directives = " ".join(field.text for field in carried.slurm_options) + "\n"
        variables |= _parse_sbatch_directives(f"#SBATCH {directives}{join_text(carried.segments)}", -1)
        scope = Scope(variables)
        scope.notes, scope.assumed_defaults = self.scope.notes, self.scope.assumed_defaults
        scope.budget = self.scope.budget
        self.state.shells += 1
        shell = (*self.shell, self.state.shells if carried.inherits else -self.state.shells)
        self._parse_nested(carried.segments, scope, (*self.prefix, *carried.prefix), shell)

    def _parse_substitution(self, word: tuple[int, int]) -> None:
        """Parse the job that `ID=$(sbatch --parsable train.sh)` starts, in its own shell."""
        match = STARTED_JOB.fullmatch(self.raw, *word)
        if match is None:
            return
        self.state.shells += 1
        scope = replace(self.scope, variables=dict(self.scope.variables))
        shell = (*self.shell, self.state.shells)
        self._parse_nested(self.text.segments_between(*match.span(1)), scope, self.prefix, shell)

    def _source_file(self, arguments: Sequence[Field], offset: int) -> None:
        """Parse a file that is sourced into this shell: its variables stay set, and its words have no location."""
        name = arguments[0].text if arguments else "nothing"
        file = None
        if arguments and self.depth < MAX_NESTING and self.state.scripts_read < MAX_SCRIPTS:
            file = self.state.read_script(name)
        if file is None:
            self.scope.add_note(f"line {self._line_number(offset)}: the settings of {name} {NOT_FOLLOWED}")
            return
        self.state.scripts_read += 1
        outer_origin, outer_positional = self.state.origin, self.scope.positional
        self.state.origin = max(self.text.source_span(offset, offset + 1)[0], 0) or outer_origin
        if len(arguments) > 1:
            self.scope.positional = tuple(arguments[1:])
        self._parse_nested((Segment(file.text, -1),), self.scope, self.prefix, self.shell)
        self.state.origin, self.scope.positional = outer_origin, outer_positional

    def _find_written(self, command: SimpleCommand, argv: Sequence[Field]) -> WrittenFile | None:
        """Return the file that a command writes; its text is known for `cat > FILE <<EOF`, `tee` and `echo`."""
        name = argv[0].text.rsplit("/", 1)[-1]
        if self.depth >= MAX_NESTING:
            return None
        operands = [field for field in argv[1:] if not field.text.startswith("-")]
        text, path, appends = command.stdin, "", command.appends
        if name == "tee":
            path = operands[0].text if operands else ""
            appends = any(field.text in ("-a", "--append") for field in argv[1:])
        elif command.output is not None:
            is_copied = name == "cat" and not operands
            text = (*join_fields(operands), Segment("\n", -1)) if name == "echo" else text if is_copied else None
            targets = expand_fields(self.text, *command.output, self.scope)
            path = targets[0].text if len(targets) == 1 else ""
        if not path:
            return None
        start = command.stdin_start if name != "echo" and text is not None else command.words[0][0]
        span = self.text.source_span(start, start + 1) if start >= 0 else NOWHERE
        line = self.state.locate(span[0] if span != NOWHERE else self.state.origin).line
        return WrittenFile(
            path, None if text is None else join_text(text), line, appends, self._is_certain(self.open_compounds)
        )

    def _parse_nested(
        self, segments: Segments, scope: Scope, prefix: Sequence[Field], shell: tuple[int, ...] | None = None
    ) -> None:
        if self.depth >= MAX_NESTING or not segments:
            return
        inner = _CommandCollector(
            ScriptText.from_segments(self.state.source, segments),
            self.state,
            scope,
            prefix,
            self.depth + 1,
            self.shell if shell is None else shell,
        )
        inner.open_compounds, inner.inherited_count = list(self.open_compounds), len(self.open_compounds)
        inner.parse()
        self.scope.substitute_command = self._substitute_command

    def _substitute_command(self, segments: Segments) -> Segments | None:
        """Return the output of `$(cat <<EOF …)`, `$(echo …)` or `$(expr 16 / 8)`; None for other commands."""
        text = ScriptText.from_segments(self.state.source, segments)
        folder = FOLDER_OF_VARIABLE.fullmatch(text.string)
        held = self.scope.variables.get(folder["name"]) if folder else None
        if folder and held is not None and held.elements is None and not all_known(held.segments):
            path = f'"{join_text(held.segments)}{folder["rest"]}"'
            return (Segment(f"$({folder['command']} {path}{folder['tail'] or ''})", -1, known=False),)
        if self.depth >= MAX_NESTING or not re.match(r"\s*(cat\s*<<|echo\s|expr\s|printf\s)", text.string):
            return None
        state = ScriptState(Source("", ""))
        inner = _CommandCollector(text, state, self.scope, (), self.depth + 1)
        inner.limit = len(text.string)
        offset, output = 0, None
        while offset < inner.limit and state.steps < 2000:
            state.steps += 1
            if text.string[offset] in "|;&\n" and inner.command.words:
                break
            offset = inner.parse_next(offset)
        self.scope.substitute_command = self._substitute_command
        rest = text.string[offset:].strip(" \t\n;")
        if rest and (inner.next_heredoc_body < 0 or rest[0] in "|&"):
            return None
        if inner.command.stdin is not None and len(inner.command.words) == 1:
            return _strip_trailing_newlines(inner.command.stdin)
        name, *argv = [field for word in inner.command.words for field in expand_fields(text, *word, self.scope)] or [
            Field((), NOWHERE)
        ]
        if name.text == "echo":
            output = None if any(field.text.startswith("-") for field in argv[:1]) else join_fields(argv)
        elif name.text == "printf" and argv and argv[0].text in ("%q ", "%s "):
            quotes = argv[0].text == "%q "
            output = join_fields([_quote(field) if quotes and field.known else field for field in argv[1:]])
        elif name.text == "expr":
            number = (
                evaluate_arithmetic(join_text(join_fields(argv)), lambda _: "")
                if all(field.known for field in argv)
                else None
            )
            output = None if number is None else (Segment(str(number), -1),)
        return output

    def _collect_command(
        self, argv: Sequence[Field], assignments: Mapping[str, Variable], offset: int, written: WrittenFile | None
    ) -> None:
        location = self._locate_span(self.text.source_span(offset, offset + 1))
        words = tuple(
            Word(
                field.text,
                field.span,
                self.state.locate(field.span[0]) if field.span != NOWHERE else location,
                field.known,
                self._format_for_shell(field.segments),
                () if field.known else self._list_choices(field.text),
            )
            for field in (*self.prefix, *argv)
        )
        function_name = next((compound.name for compound in self.open_compounds if compound.kind == FUNCTION), "")
        variables = tuple(self._iter_variables(assignments))
        exports = tuple(self._iter_exports(variables, assignments))
        notes = tuple(self._iter_notes())
        around = self.open_compounds[0] if self.open_compounds else None
        command = Command(words, variables, location, notes, self.shell, len(self.prefix), written, exports, around)
        self.state.commands.append((command, function_name))

    def _list_choices(self, text: str) -> tuple[tuple[str, ...], ...]:
        """Return the words of each value that branches give a variable; () unless two or more values are known."""
        match = WHOLE_VARIABLE.fullmatch(text)
        choices = self.scope.variables[match[1]].choices if match and match[1] in self.scope.variables else ()
        is_listed = len(choices) > 1 and all(map(_is_known, choices))
        return tuple(map(_split_choice, choices[:MAX_CHOICES])) if is_listed else ()

    def _locate_span(self, span: Span) -> SourceLocation:
        """Return the location of a span; for text in another file, the location of the command that reads it."""
        return self.state.locate(span[0] if span != NOWHERE else self.state.origin)

    def _iter_variables(self, assignments: Mapping[str, Variable]) -> Iterator[Setting]:
        """Yield the variables exported at the current command, then those set in front of it."""
        conditions = set(self._list_conditions() or ())
        for name, variable in (*self.scope.variables.items(), *assignments.items()):
            if variable.exported and variable.elements is None:
                is_certain = variable.conditions is not None and conditions.issuperset(variable.conditions)
                key = name, is_certain, self.state.origin
                if key not in variable.settings:
                    text, is_known = join_text(variable.segments), is_certain and all_known(variable.segments)
                    location = self._locate_span(variable.span)
                    variable.settings[key] = Setting(name, text, location, variable.span, known=is_known)
                yield variable.settings[key]

    def _iter_exports(self, variables: Sequence[Setting], assignments: Mapping[str, Variable]) -> Iterator[Assignment]:
        """Yield the variables that the script itself sets, in a form that a shell can set again."""
        for setting in variables:
            variable = assignments.get(setting.name) or self.scope.variables[setting.name]
            if variable.is_slurms:
                continue
            if variable.shell is None:
                text = join_text(variable.segments)
                variable.shell = self._format_for_shell(variable.segments) or (quote_on_one_line(text) if text else "")
            yield Assignment(setting.name, variable.shell, setting.known or not all_known(variable.segments))

    def _format_for_shell(self, segments: Segments) -> str:
        """Return a word in a form that a shell can read again; "" if quoting its text is enough."""
        source = self.state.source
        script = source.name if source.kind == "shell" and source.name != "-" else ""
        return format_segments(segments, script)

    def _iter_notes(self) -> Iterator[str]:
        for compound in self.open_compounds:
            if compound.kind == LOOP or (compound.branches and compound.branches.is_taken is None):
                line = self._line_number(compound.offset)
                yield f"it depends on {compound.kind}: `{compound.keyword}` of line {line}"
        if self.scope.assumed_defaults:
            defaults = ", ".join(f"{name}={text!r}" for name, text in list(self.scope.assumed_defaults.items())[:20])
            yield f"defaults are used for variables that the script does not set: {defaults}"
        yield from self.scope.notes


def _quote(field: Field) -> Field:
    """Return a field in a form that a shell reads as one word."""
    text = quote_on_one_line(field.text)
    return field if text == field.text else Field((Segment(text, -1),), NOWHERE)


def _is_program(choice: Variable) -> bool:
    return choice.elements is None and join_text(choice.segments).endswith(".py")


def _is_known(choice: Variable) -> bool:
    return choice.elements is not None or all_known(choice.segments)


def _split_choice(choice: Variable) -> tuple[str, ...]:
    return tuple(field.text for field in choice.elements or ()) or tuple(join_text(choice.segments).split())


def _without_longer(choices: Sequence[Variable]) -> list[Variable]:
    """Return the choices, except those that only put words in front of another choice: `uv run` before `python3`.

    If any is known, one that is known only at run time is left out: `$(command -v swift)` is another way to it.
    """
    choices = list(filter(_is_known, choices)) or choices
    texts = list(map(_split_choice, choices))
    return [
        choice
        for choice, words in zip(choices, texts)
        if not any(len(other) < len(words) and words[len(words) - len(other) :] == other for other in texts if other)
    ][:MAX_CHOICES]


def _strip_trailing_newlines(segments: Segments) -> Segments:
    """Return segments without the newlines at their end."""
    kept = list(segments)
    while kept and not (text := kept[-1].text.rstrip("\n")):
        kept.pop()
    if kept:
        kept[-1] = kept[-1].substring(0, len(text))
    return tuple(kept)


def _parse_sbatch_directives(text: str, text_start: int) -> dict[str, Variable]:
    """Return the variables that Slurm sets from the `#SBATCH` lines of a script: nodes, tasks and GPUs.

    The text is at `text_start` of the source; -1 if it is not in the source. sbatch(1), OUTPUT ENVIRONMENT VARIABLES.
    """
    variables: dict[str, Variable] = {}
    variable_names = {
        "--nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
        "-N": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
        "--ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
        "--gpus-per-node": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
        "--gres=gpu": ("SLURM_GPUS_ON_NODE",),
    }
    for line in SBATCH_DIRECTIVE.finditer(text):
        for option in SBATCH_COUNT.finditer(line[1]):
            for name in variable_names.get(option[1], ()):
                start = text_start + line.start(1) + option.start(2) if text_start >= 0 else -1
                variables[name] = Variable((Segment(option[2], start),), exported=True, is_slurms=True)
    return variables
