"""Expands parameters, arrays, substitutions, arithmetic and quotes; values known only at run time stay as written."""

import re
from collections.abc import Sequence

from attncheck.core.launch import NOWHERE
from attncheck.lint.shell import extents
from attncheck.lint.shell.arithmetic import evaluate_arithmetic
from attncheck.lint.shell.scope import Field, Scope, Variable, join_fields
from attncheck.lint.shell.text import ScriptText, Segment, Segments, all_known, join_text

PARAMETER = re.compile(r"\$(?:[A-Za-z_]\w*|[0-9@*#?$!-])")
BRACED_PARAMETER = re.compile(r"([A-Za-z_]\w*|[0-9]+|[@*])(?:\[([^\]]*)\])?(.*)", re.DOTALL)
ALL_ELEMENTS = re.compile(r"\$(?:@|\{@[^}]*\}|\{\w+\[@\]\})")  # without elements it gives no word, even in quotes
BLANKS = re.compile(r"[ \t\n]+")
ANSI_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "f": "\f", "v": "\v"}
BUDGET_NOTE = "the script builds too many words to follow, so some of them are unknown"
MAX_DEPTH = 12  # `${A:-${B:-…}}`
WORD_BREAK = Segment("\0break", -1, splittable=True)  # between the words of "${ARRAY[@]}"


class Expander:
    """Expands parts of one text in one scope."""

    def __init__(self, text: ScriptText, scope: Scope, depth: int = 0) -> None:
        self.text, self.scope, self.depth = text, scope, depth
        self.raw = text.string

    def expand_word(self, start: int, end: int) -> list[Segment]:
        """Return the segments of a raw word; empty quotes give an empty segment, because they form a word."""
        expanded: list[Segment] = []
        offset = start
        while offset < end:
            character = self.raw[offset]
            if character == "\\":
                expanded += (
                    []
                    if self.raw.startswith("\n", offset + 1)
                    else _mark_quoted(self._copy_literal(offset + 1, min(offset + 2, end)))
                )
                offset += 2
            elif character == "'":
                word_end, is_closed = extents.find_single_quote_end(self.raw, offset, end)
                expanded += _mark_quoted(self._copy_literal(offset + 1, word_end - is_closed)) or [Segment("", -1)]
                offset = word_end
            elif character == '"' or self.raw.startswith('$"', offset):
                offset += character == "$"
                word_end, is_closed = extents.find_word_end(self.raw, offset + 1, end, '"')
                quoted = self.expand_quoted(offset + 1, word_end - is_closed)
                expanded += _mark_quoted(quoted) or (
                    [] if ALL_ELEMENTS.fullmatch(self.raw, offset + 1, word_end - is_closed) else [Segment("", -1)]
                )
                offset = word_end
            elif self.raw.startswith("$'", offset):
                word_end, is_closed = extents.find_ansi_quote_end(self.raw, offset, end)
                expanded.append(self._decode_ansi_quote(offset, word_end, is_closed))
                offset = word_end
            elif character in "$`":
                offset, segments = self._expand_at(offset, end, splittable=True)
                expanded += segments
            elif placeholder := extents.PLACEHOLDER.match(self.raw, offset):
                expanded += self._keep_as_written(offset, placeholder.end())
                offset = placeholder.end()
            else:
                plain = extents.PLAIN_CHARACTERS.match(self.raw, offset, end)
                word_end = plain.end() if plain else offset + 1
                expanded += self._copy_literal(offset, word_end)
                offset = word_end
        return expanded

    def expand_quoted(self, start: int, end: int, is_heredoc: bool = False) -> list[Segment]:
        """Return the segments of the text inside double quotes, or of a here-document."""
        expanded: list[Segment] = []
        offset = start
        escapable = "$`\\\n" if is_heredoc else '$`"\\\n'
        while offset < end:
            character = self.raw[offset]
            if character == "\\" and offset + 1 < end and self.raw[offset + 1] in escapable:
                expanded += [] if self.raw[offset + 1] == "\n" else self._copy_literal(offset + 1, offset + 2)
                offset += 2
            elif character in "$`":
                offset, segments = self._expand_at(offset, end, splittable=False)
                expanded += segments
            else:
                plain = extents.QUOTED_CHARACTERS.match(self.raw, offset, end)
                plain_end = plain.end() if plain else offset + 1
                expanded += self._copy_literal(offset, plain_end)
                offset = plain_end
        return expanded

    def _copy_literal(self, start: int, end: int) -> list[Segment]:
        return list(self.text.segments_between(start, end))

    def _decode_ansi_quote(self, start: int, end: int, is_closed: bool) -> Segment:
        inner = self.raw[start + 2 : end - is_closed]
        if "\\" not in inner and len(self.text.segments_between(start + 2, end - is_closed)) == 1:
            return self.text.segments_between(start + 2, end - is_closed)[0]
        decoded = re.sub(r"\\(.)", lambda escape: ANSI_ESCAPES.get(escape[1], escape[1]), inner, flags=re.DOTALL)
        return Segment(decoded, -1, expansions=(self.text.source_span(start, end),))

    def _expand_at(self, offset: int, end: int, splittable: bool) -> tuple[int, list[Segment]]:
        """Return the offset after the expansion at `offset`, and its segments."""
        if self.raw[offset] == "`":
            close, is_closed = extents.find_word_end(self.raw, offset + 1, end, "`")
            return close, self._expand_command(offset, offset + 1, close - is_closed, close, splittable)
        if self.raw.startswith("$((", offset):
            close, _ = extents.find_word_end(self.raw, offset + 2, end, "(")
            if self.raw.startswith("))", close - 2):
                return close, self._expand_arithmetic(offset, close)
        if self.raw.startswith("$(", offset):
            close, is_closed = extents.find_word_end(self.raw, offset + 2, end, "(")
            return close, self._expand_command(offset, offset + 2, close - is_closed, close, splittable)
        if self.raw.startswith("${", offset):
            close, is_closed = extents.find_word_end(self.raw, offset + 2, end, "{")
            return close, self._expand_braced(offset, close - is_closed, close, splittable)
        parameter = PARAMETER.match(self.raw, offset, end)
        if parameter is None:
            return offset + 1, self._copy_literal(offset, offset + 1)
        return parameter.end(), self._expand_parameter(parameter[0][1:], offset, parameter.end(), splittable)

    def _keep_as_written(self, start: int, end: int) -> list[Segment]:
        """Return an expansion whose value is known only at run time, as written."""
        span = self.text.source_span(start, end)
        source_start = span[0] if span != NOWHERE else -1
        text = self.raw[start:end]
        if source_start >= 0 and self.text.source.text[source_start : source_start + len(text)] == text:
            return [Segment(text, source_start, known=False)]
        return [Segment(text, -1, known=False, expansions=(span,) if span != NOWHERE else ())]

    def _expand_command(
        self, start: int, inner_start: int, inner_end: int, end: int, splittable: bool
    ) -> list[Segment]:
        output = (
            self.scope.substitute_command(self.text.segments_between(inner_start, inner_end))
            if self.depth < MAX_DEPTH
            else None
        )
        return (
            self._keep_as_written(start, end) if output is None else self._insert_value(output, start, end, splittable)
        )

    def _expand_arithmetic(self, start: int, end: int) -> list[Segment]:
        expression = join_text(self.expand_quoted(start + 3, end - 2))
        value = evaluate_arithmetic(expression, lambda name: self._read_parameter(name))
        if value is None:
            return self._keep_as_written(start, end)
        return [Segment(str(value), -1, expansions=(self.text.source_span(start, end),))]

    def _read_parameter(self, name: str) -> str:
        variable = self.scope.variables.get(name)
        return join_text(variable.segments) if variable and all_known(variable.segments) else ""

    def _insert_value(self, segments: Sequence[Segment], start: int, end: int, splittable: bool) -> list[Segment]:
        """Return the segments of a value in the form that this expansion inserts."""
        if not self.scope.budget.charge(segments):
            self.scope.add_note(BUDGET_NOTE)
            return self._keep_as_written(start, end)
        expansion = self.text.source_span(start, end)
        return [segment.with_expansion(expansion, splittable) for segment in segments]

    def _expand_parameter(self, name: str, start: int, end: int, splittable: bool) -> list[Segment]:
        if name in ("@", "*"):
            return self._expand_positional(start, end, splittable, name == "@")
        if name.isdecimal() and self.scope.positional is not None and 0 < int(name) <= len(self.scope.positional):
            return self._insert_value(self.scope.positional[int(name) - 1].segments, start, end, splittable)
        variable = self.scope.variables.get(name)
        return (
            self._keep_as_written(start, end)
            if variable is None
            else self._insert_value(_scalar_value(variable), start, end, splittable)
        )

    def _expand_positional(self, start: int, end: int, splittable: bool, separate: bool) -> list[Segment]:
        """Return the positional parameters of the function; those of the script, possibly none, stay as written."""
        if self.scope.positional is None:
            return self._keep_as_written(start, end)
        return self._expand_elements(self.scope.positional, start, end, splittable, separate)

    def _expand_elements(
        self, elements: Sequence[Field], start: int, end: int, splittable: bool, separate: bool
    ) -> list[Segment]:
        if not separate and not splittable:
            return self._insert_value(join_fields(elements), start, end, splittable)
        expansion = self.text.source_span(start, end)
        if self.scope.budget.is_spent or not self.scope.budget.charge(join_fields(elements)):
            self.scope.add_note(BUDGET_NOTE)
            return self._keep_as_written(start, end)
        expanded: list[Segment] = []
        for index, element in enumerate(elements):
            segments = [segment.with_expansion(expansion, splittable) for segment in element.segments] or [
                Segment("", -1)
            ]
            is_unsplit = not (
                splittable and any(BLANKS.search(segment.text) for segment in segments if segment.splittable)
            )
            expanded += [WORD_BREAK] if index else []
            expanded += [segment.with_element(element.span) for segment in segments] if is_unsplit else segments
        return expanded

    def _expand_braced(self, start: int, inner_end: int, end: int, splittable: bool) -> list[Segment]:
        parts = BRACED_PARAMETER.fullmatch(self.raw, start + 2, inner_end)
        if parts is None:
            return self._keep_as_written(start, end)
        name, index, operator = parts.groups()
        if name in ("@", "*") and (not operator or self.scope.positional is None):
            return self._expand_positional(start, end, splittable, name == "@")
        variable = self.scope.variables.get(name)
        if index in ("@", "*") and variable is not None and variable.keyed is None and not operator:
            elements = variable.elements if variable.elements is not None else (Field(variable.segments, NOWHERE),)
            return self._expand_elements(elements, start, end, splittable, index == "@")
        if index is not None:
            keyed = variable.keyed if variable is not None else None
            if keyed is None or operator:
                return self._expand_element(variable, index, operator, start, end, splittable)
            key = self.expand_word(*parts.span(2))
            is_unread = join_text(key) not in keyed and (index in ("@", "*") or self.scope.has_unread_scripts)
            if not all_known(key) or is_unread:
                return self._keep_as_written(start, end)
            if join_text(key) not in keyed:
                self.scope.add_note(f"{name} has no key {join_text(key)!r}: {self.raw[start:end]} is empty")
            return self._insert_value(keyed.get(join_text(key), ()), start, end, splittable)
        if not operator:
            return self._expand_parameter(name, start, end, splittable)
        return self._expand_with_operator(name, operator, parts.start(3), inner_end, start, end, splittable)

    def _expand_element(
        self, variable: Variable | None, index: str, operator: str, start: int, end: int, splittable: bool
    ) -> list[Segment]:
        elements = variable.elements if variable else None
        if elements is None or operator or not index.isdecimal() or int(index) >= len(elements):
            return self._keep_as_written(start, end)
        return self._insert_value(elements[int(index)].segments, start, end, splittable)

    def _expand_with_operator(
        self, name: str, operator: str, inner_start: int, inner_end: int, start: int, end: int, splittable: bool
    ) -> list[Segment]:
        """Return `${NAME:-default}`, `${NAME:=…}`, `${NAME:+…}` or `${NAME:?…}`.

        A NAME that the script does not set may be set outside; its default is used and noted.
        """
        kind = operator.lstrip(":")[:1]
        if kind not in "-=+?" or not kind or operator.startswith("::"):
            return self._keep_as_written(start, end)
        inner_start += 2 if operator.startswith(":") else 1
        variable = self.scope.variables.get(name)
        value = _scalar_value(variable) if variable else ()
        is_set = variable is not None and (bool(value) or not operator.startswith(":"))
        if variable is not None and variable.may_be_empty and not all_known(value):
            is_set = is_set and kind in "+?"  # `--gpus) gpus="$2"` in a loop over the arguments: the script has none
        if kind == "+":
            return self._expand_default(inner_start, inner_end, start, end, splittable) if is_set else []
        if is_set:
            return self._insert_value(value, start, end, splittable)
        is_slurms = variable is None and name.startswith("SLURM_") and "#SBATCH" in self.raw  # which sets it
        if kind == "?" or is_slurms or self.depth >= MAX_DEPTH:
            return self._keep_as_written(start, end)
        segments = self._expand_default(inner_start, inner_end, start, end, splittable)
        if (variable is None or variable.may_be_empty) and not name.isdecimal():
            self.scope.assumed_defaults.setdefault(name, join_text(segments))
        if kind == "=":
            self.scope.variables[name] = Variable(tuple(segments))
        return segments

    def _expand_default(
        self, inner_start: int, inner_end: int, start: int, end: int, splittable: bool
    ) -> list[Segment]:
        expander = Expander(self.text, self.scope, self.depth + 1)
        segments = join_breaks(expander.expand_word(inner_start, inner_end))
        if not self.scope.budget.charge(segments):
            self.scope.add_note(BUDGET_NOTE)
            return self._keep_as_written(start, end)
        expansion = self.text.source_span(start, end)
        return [segment.with_expansion(expansion, splittable and not segment.quoted) for segment in segments]


def _mark_quoted(segments: Sequence[Segment]) -> list[Segment]:
    return [segment if segment is WORD_BREAK else segment._replace(quoted=True) for segment in segments]


def join_breaks(segments: Sequence[Segment]) -> list[Segment]:
    """Return the segments of a text without word splitting: spaces for the breaks, and no empty segments."""
    return [
        Segment(" ", -1, expansions=segment.expansions) if segment is WORD_BREAK else segment
        for segment in segments
        if segment.text or segment is WORD_BREAK
    ]


def _scalar_value(variable: Variable) -> Segments:
    if variable.elements is None:
        return variable.segments
    return variable.elements[0].segments if variable.elements else ()
