"""The scope of a command: the variables and positional parameters known there, and the budget of expansions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from attncheck.core.launch import NOWHERE, Setting, Span
from attncheck.lint.shell.text import Segment, Segments, all_known, join_text

MAX_VALUE_LENGTH = 1 << 18  # characters per value
NOT_FOLLOWED = "are not followed"  # in the note about a sourced file
MAX_WORK = 60_000  # segments handled per script; a real one needs a few thousand


Conditions = tuple[tuple[int, int], ...]  # the offset and the branch of each undecided `if` and `case`


class Field(NamedTuple):
    """One word after expansion and word splitting; POSIX calls it a field."""

    segments: Segments
    span: Span

    @property
    def text(self) -> str:
        """Return the characters of the field."""
        return join_text(self.segments)

    @property
    def known(self) -> bool:
        """Return whether every character of the field is known."""
        return all_known(self.segments)


@dataclass
class Variable:
    """The value of a variable: one string (`segments`), or the elements of an array."""

    segments: Segments = ()
    elements: tuple[Field, ...] | None = None
    keyed: Mapping[str, Segments] | None = None  # the values of an associative array, `declare -A`
    choices: "tuple[Variable, ...]" = ()  # its values in several branches
    exported: bool = False
    span: Span = NOWHERE  # span of the assignment
    is_slurms: bool = False  # set by Slurm for the script
    shell: str | None = None  # the value in a form that a shell can read again, computed on first use
    settings: dict[tuple[str, bool, int], Setting] = field(default_factory=dict)  # of commands so far
    conditions: Conditions | None = ()  # undecided conditions of the assignment; None: other ones
    may_be_empty: bool = False  # no known condition assigns it, and before that it is unset or empty


@dataclass
class Budget:
    """The cost of one script's expansions so far, in segments."""

    work: int = 0

    @property
    def is_spent(self) -> bool:
        """Return whether no further expansion is allowed."""
        return self.work > MAX_WORK

    def charge(self, segments: Sequence[Segment]) -> bool:
        """Add the cost of inserting `segments` once more; return whether it is still allowed."""
        self.work += len(segments) + 1
        return not self.is_spent and sum(len(segment.text) for segment in segments) <= MAX_VALUE_LENGTH


@dataclass
class Scope:
    """The parameters known at a command, and the notes on unreadable parts before it."""

    variables: dict[str, Variable] = field(default_factory=dict)
    positional: tuple[Field, ...] | None = None  # None: the script's own arguments, which are unknown
    assumed_defaults: dict[str, str] = field(default_factory=dict)  # from `${NAME:-default}` if NAME is not set
    notes: list[str] = field(default_factory=list)
    budget: Budget = field(default_factory=Budget)
    # Returns the output of a command substitution `$(…)`; None if that is known only at run time.
    substitute_command: Callable[[Segments], Segments | None] = lambda _: None

    @property
    def has_unread_scripts(self) -> bool:
        """Whether a script was sourced that was not read: it may set anything."""
        return any(NOT_FOLLOWED in note for note in self.notes)

    def add_note(self, text: str) -> None:
        """Record something that could not be read, each text once."""
        if text not in self.notes and len(self.notes) < 20:
            self.notes.append(text)


def join_fields(fields: Sequence[Field]) -> Segments:
    """Return the fields joined by spaces, as `"$*"` joins them."""
    return tuple(
        segment
        for index, word in enumerate(fields)
        for segment in (*([Segment(" ", -1)] if index else []), *word.segments)
    )
