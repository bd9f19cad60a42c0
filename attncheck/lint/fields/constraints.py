"""A framework's constraints by range of releases: the source of each, its first release, and its last.

A constraint applies only in the releases that have it. Each framework's `constraints.toml` lists them by name, with one
`Constraint` for each form of the code. A check is silent if none of its constraints applies.
"""

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from attncheck.lint.fields.releases import is_at_least


class Constraint(NamedTuple):
    """The effect of a setting in a range of releases, and the place where that was read."""

    source: str  # package, release, file and line: "verl 0.9.1 workers/config/actor.py:208"
    since: str  # the first release read that has the constraint
    until: str = ""  # the first release without it; "": the newest release still has it
    quote: str = ""  # the framework's own text

    def holds_in(self, version: str) -> bool:
        """Return whether the constraint applies in a release."""
        return is_at_least(version, self.since) and not (self.until and is_at_least(version, self.until))

    @property
    def evidence(self) -> str:
        """The place, the range and the quote: "verl 0.9.1 utils/config.py:125, since 0.4.0: must be …"."""
        until = f", until {self.until}" if self.until else ""
        return f"{self.source}, since {self.since}{until}" + (f": {self.quote}" if self.quote else "")


Constraints = tuple[Constraint, ...]  # the constraints of one check, in ranges that do not overlap


def find_constraint(constraints: Constraints, version: str) -> Constraint | None:
    """Return the constraint that applies in a release; None if there is none."""
    return next((constraint for constraint in constraints if constraint.holds_in(version)), None)


@cache
def _read_constraints(module_file: str) -> dict[str, Constraints]:
    document = tomllib.loads(Path(module_file).with_suffix(".toml").read_text(encoding="utf-8"))
    return {name: tuple(Constraint(**row) for row in rows) for name, rows in document.items()}


def read_table(module_file: str) -> Callable[[str], Constraints]:
    """Return the function that finds constraints by name in the table next to a framework's `constraints.py`."""

    def find_by_name(name: str) -> Constraints:
        try:
            return _read_constraints(module_file)[name]
        except KeyError:
            raise AttributeError(f"{module_file} and the table next to it have no {name}") from None

    return find_by_name
