"""What is known where a script has been read to: variables, arguments, and how much work may still be done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from attncheck.core.launch import Span
from attncheck.lint.shell.text import Run, Runs, known, string

LONGEST = 1 << 18  # characters of one value
WORK = 60_000  # runs handled in one script; a real one needs some thousands


@dataclass(frozen=True)
class Field:
    """One word after expansion."""

    runs: Runs
    span: Span

    @property
    def text(self) -> str:
        """Return its characters."""
        return string(self.runs)

    @property
    def known(self) -> bool:
        """Say whether all of it is known."""
        return known(self.runs)


@dataclass
class Variable:
    """What a script put in a variable: one string, or the elements of an array."""

    runs: Runs = ()
    elements: tuple[Field, ...] | None = None
    exported: bool = False


@dataclass
class Budget:
    """How much of the work that one script may cost is done."""

    work: int = 0

    @property
    def spent(self) -> bool:
        """Say whether nothing more may be put together."""
        return self.work > WORK

    def affords(self, runs: Sequence[Run]) -> bool:
        """Say whether `runs` may be put somewhere once more."""
        self.work += len(runs) + 1
        return not self.spent and sum(len(run.text) for run in runs) <= LONGEST


@dataclass
class Scope:
    """What is known where the script has been read to."""

    variables: dict[str, Variable] = field(default_factory=dict)
    positional: tuple[Field, ...] | None = None  # None: the script's own arguments, which nobody knows
    assumed: dict[str, str] = field(default_factory=dict)  # defaults taken for what the script does not set
    remarks: list[str] = field(default_factory=list)
    budget: Budget = field(default_factory=Budget)
    substitute: Callable[[Runs], Runs | None] = lambda _: None  # what a `$(…)` prints, where it can be told

    def remark(self, text: str) -> None:
        """Keep something that could not be read, once."""
        if text not in self.remarks and len(self.remarks) < 20:
            self.remarks.append(text)


def together(elements: Sequence[Field]) -> Runs:
    """Return the words of a list with blanks between them."""
    return tuple(run for index, one in enumerate(elements) for run in (*([Run(" ", -1)] if index else []), *one.runs))
