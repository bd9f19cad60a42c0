"""Constraints of a framework by range of releases: where each was read, from which release on, and up to which.

An objection to a launch holds in the releases that make it and nowhere else. Each framework's `constraints.toml`
has them by name, one `Constraint` for each form of the code, and an objection is silent if none of them holds.
"""

import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from attncheck.lint.fields.releases import is_at_least


@dataclass(frozen=True)
class Constraint:
    """What a range of releases does with a setting, and the place where that was read."""

    source: str  # package, release, file and line: "verl 0.9.1 workers/config/actor.py:208"
    since: str  # the first release that does so, of those that were read
    until: str = ""  # the first release that no longer does so; "": the newest one does
    quote: str = ""  # the framework's own text

    def holds_in(self, version: str) -> bool:
        """Return whether a release does so."""
        return is_at_least(version, self.since) and not (self.until and is_at_least(version, self.until))

    @property
    def evidence(self) -> str:
        """The place, the range and the quote: "verl 0.9.1 utils/config.py:125, since 0.4.0: must be …"."""
        until = f", until {self.until}" if self.until else ""
        return f"{self.source}, since {self.since}{until}" + (f": {self.quote}" if self.quote else "")


Constraints = tuple[Constraint, ...]  # of one objection, in ranges that do not overlap


def find_constraint(constraints: Constraints, version: str) -> Constraint | None:
    """Return the constraint that holds in a release, None if none does."""
    return next((constraint for constraint in constraints if constraint.holds_in(version)), None)


@cache
def _read_constraints(path: Path) -> dict[str, Constraints]:
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    return {name: tuple(Constraint(**row) for row in rows) for name, rows in document.items()}


def find_by_name(module_file: str, name: str) -> Constraints:
    """Return the constraints of a name from the table next to a framework's `constraints.py`."""
    try:
        return _read_constraints(Path(module_file).with_suffix(".toml"))[name]
    except KeyError:
        raise AttributeError(f"{module_file} and the table next to it have no {name}") from None
