"""The settings of one launch by field, in the words that the readings of all frameworks share."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, TypeVar

from attncheck.core.job import Consequence, SettingProblem
from attncheck.core.launch import Setting, SourceLocation
from attncheck.core.model import Model
from attncheck.core.snapshot import Known, Snapshot
from attncheck.lint.fields.constraints import Constraint, Constraints, find_constraint
from attncheck.lint.fields.releases import is_at_least
from attncheck.lint.fields.written import NULL_WORDS, get_nested, is_true, parse_value, to_int

AnyReading = TypeVar("AnyReading")


class Reading:
    """The settings of one launch as one release reads them; a framework's class adds what its fields mean."""

    by_field: Mapping[str, Setting]  # the settings that take effect, as written

    def has_any(self, *names: str) -> bool:
        """Return whether the launch sets any of the fields."""
        return any(name in self.by_field for name in names)

    def find_location(self, *names: str) -> SourceLocation:
        """Return the location of the first of the fields that the launch sets."""
        return next((self.by_field[name].location for name in names if name in self.by_field), SourceLocation())

    def get_text(self, name: str) -> str:
        """Return the value of a field; "" if it is null, not set, or known only at run time."""
        setting = self.by_field.get(name)
        return setting.value if setting is not None and setting.known and setting.value not in NULL_WORDS else ""

    def is_on(self, name: str) -> bool:
        """Return whether a field is true."""
        return is_true(parse_value(self.get_text(name)))

    def get_int(self, name: str, fallback: int = 0) -> int:
        """Return a field as a positive int; `fallback` if it is not one."""
        return max(to_int(parse_value(self.get_text(name)), 0), 0) or fallback


class VersionedReading:
    """A reading of one release."""

    version: str
    find_location: Callable[..., SourceLocation]  # of the first of the fields that the launch sets

    def is_at_least(self, boundary: str) -> bool:
        """Return whether the release is `boundary` or newer."""
        return is_at_least(self.version, boundary)

    def find_constraint(self, constraints: Constraints) -> Constraint | None:
        """Return the constraint that applies in this release; None if there is none."""
        return find_constraint(constraints, self.version)

    def setting_problem(
        self, consequence: Consequence, message: str, ranges: Constraints, *fields: str, **options: Any
    ) -> Iterator[SettingProblem]:
        """Yield a problem if one of `ranges` applies, located at the first of `fields` that the launch sets.

        The first field is the cause: if the launch does not set it, its default is.
        """
        constraint = self.find_constraint(ranges)
        if constraint is not None:
            is_absent = self.find_location(*fields[:1]) == self.find_location()
            options = {"assumes_absence": is_absent, **options}
            yield SettingProblem(consequence, message, (constraint.evidence,), self.find_location(*fields), **options)


class DefaultedReading(Reading, VersionedReading, ABC):
    """A reading whose release has defaults; a framework's subclass parses the values and knows the defaults."""

    snapshot: Snapshot | None

    @cached_property
    @abstractmethod
    def parsed_values(self) -> dict[str, Any]:
        """Return the parsed value of each setting by field."""

    @abstractmethod
    def default_value(self, name: str) -> Any:
        """Return the release's default of a setting; None if it has none."""

    def get(self, name: str) -> Any:
        """Return the value of a setting: from the launch, or else the release's default."""
        value = get_nested(self.parsed_values, name)
        return value if value is not None else self.default_value(name)

    def is_on(self, name: str) -> bool:
        """Return whether a setting is on."""
        return is_true(self.get(name))

    def get_int(self, name: str, fallback: int = 1) -> int:
        """Return a setting as an int; `fallback` if it is 0 or not a number."""
        return to_int(self.get(name), fallback) or fallback

    @cached_property
    def model(self) -> Model | None:
        """Return the model; None if its configuration could not be read."""
        fact = self.snapshot.model if self.snapshot is not None else None
        return fact.value if isinstance(fact, Known) else None


def collect_problems(
    behaviours: Iterable[Callable[[AnyReading], Iterator[SettingProblem]]], reading: AnyReading
) -> tuple[SettingProblem, ...]:
    """Return the problems that a release has with the settings of a launch."""
    return tuple(problem for behaviour in behaviours for problem in behaviour(reading))
