"""A fact has three states: known, absent (probed and not found) and unreadable (could not be probed)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar, Union

T = TypeVar("T")


@dataclass(frozen=True)
class Known(Generic[T]):
    """A value that was observed."""

    value: T


@dataclass(frozen=True)
class Absent:
    """The fact was probed and not found; `reason` says what was probed, or why no value is expected."""

    reason: str = ""


@dataclass(frozen=True)
class Unreadable:
    """The fact could not be probed; `reason` says why. No conclusion is possible."""

    reason: str = ""


Fact = Union[Known[T], Absent, Unreadable]


class MissingFact(Exception):
    """A rule needs a fact that is not known; the engine turns this into a `Skip` with the reason.

    `covered_by` are the codes of the rules that report why it is not known: "ATN102" if torch cannot be imported.
    """

    def __init__(self, reason: str, covered_by: Iterable[str] = ()) -> None:
        super().__init__(reason)
        self.covered_by = tuple(covered_by)


def need(fact: Fact[T], what: str) -> T:
    """Return the value of `fact`, or raise `MissingFact` saying that `what` is absent or unreadable."""
    if isinstance(fact, Known):
        return fact.value
    state = "absent" if isinstance(fact, Absent) else "unreadable"
    raise MissingFact(f"{what} is {state}" + (f": {fact.reason}" if fact.reason else ""))


def value_or(fact: Fact[T], default: T) -> T:
    """Return the value of `fact`, or `default` if it is absent or unreadable."""
    return fact.value if isinstance(fact, Known) else default
