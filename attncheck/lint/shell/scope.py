"""The scope of a command: the variables and positional parameters known there, and the budget of the expansions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from attncheck.core.launch import NOWHERE, Span
from attncheck.lint.shell.text import Segment, Segments, all_known, join_text

MAX_VALUE_LENGTH = 1 << 18  # characters of one value
MAX_WORK = 60_000  # segments handled in one script; a real one needs some thousands


Conditions = tuple[tuple[int, int], ...]  # the offset and the branch of each `if` and `case` that is undecided


@dataclass(frozen=True)
class Field:
    """One word after expansion and word splitting, as POSIX names it."""

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
    choices: "tuple[Variable, ...]" = ()  # what it is in each of several branches
    exported: bool = False
    span: Span = NOWHERE  # of the assignment
    is_slurms: bool = False  # Slurm sets it for the script
    shell: str | None = None  # the value as a shell must read it again, once it is made
    conditions: Conditions | None = ()  # under which it is assigned, where only running decides; None: other ones
    may_be_empty: bool = False  # no condition that is known assigns it, and before it is not set or empty


@dataclass
class Budget:
    """The work that the expansions of one script have cost, in segments."""

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
    """The parameters known where a command is, and the notes on what could not be read up to there."""

    variables: dict[str, Variable] = field(default_factory=dict)
    positional: tuple[Field, ...] | None = None  # None: the script's own arguments, which are not known
    assumed_defaults: dict[str, str] = field(default_factory=dict)  # of `${NAME:-default}` where NAME is not set
    notes: list[str] = field(default_factory=list)
    budget: Budget = field(default_factory=Budget)
    # Returns the output of a command substitution `$(…)`, None if that is known only at run time.
    substitute_command: Callable[[Segments], Segments | None] = lambda _: None

    def add_note(self, text: str) -> None:
        """Note something that could not be read, each text once."""
        if text not in self.notes and len(self.notes) < 20:
            self.notes.append(text)


def join_fields(fields: Sequence[Field]) -> Segments:
    """Return the fields joined by blanks, as `"$*"` joins them."""
    return tuple(
        segment
        for index, word in enumerate(fields)
        for segment in (*([Segment(" ", -1)] if index else []), *word.segments)
    )
