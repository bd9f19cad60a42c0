"""The settings of one launch by field, as one release understands them: what axolotl and ms-swift have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from attncheck.core.facts import Known
from attncheck.core.launch import Setting, SourceLocation
from attncheck.core.model import Model
from attncheck.core.snapshot import Snapshot
from attncheck.lint.fields.releases import reaches
from attncheck.lint.fields.written import inside, number, truth


class Given(ABC):
    """What was written, by field. A framework says how values are parsed, and what a release's defaults are."""

    version: str
    snapshot: Snapshot | None
    given: Mapping[str, Setting]

    @cached_property
    @abstractmethod
    def parsed(self) -> dict[str, Any]:
        """Return name -> value."""

    @abstractmethod
    def default(self, name: str) -> Any:
        """Return the release's default of a setting, None where it has none."""

    def reaches(self, boundary: str) -> bool:
        """Say whether the release is `boundary` or newer."""
        return reaches(self.version, boundary)

    def get(self, name: str) -> Any:
        """Return the value of a setting: as written, or the release's default."""
        found = inside(self.parsed, name)
        return found if found is not None else self.default(name)

    def on(self, name: str) -> bool:
        """Say whether a setting is on."""
        return truth(self.get(name))

    def number(self, name: str, otherwise: int = 1) -> int:
        """Return a setting that counts."""
        return number(self.get(name), otherwise) or otherwise

    def wrote(self, *names: str) -> bool:
        """Say whether any of the settings is written."""
        return any(name in self.given for name in names)

    def place(self, *names: str) -> SourceLocation:
        """Return where the first of the settings stands that is written."""
        return next((self.given[name].location for name in names if name in self.given), SourceLocation())

    @cached_property
    def model(self) -> Model | None:
        """Return the model, where its configuration could be read."""
        fact = self.snapshot.model if self.snapshot is not None else None
        return fact.value if isinstance(fact, Known) else None
