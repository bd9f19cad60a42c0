"""Fixes of the frameworks that releases do not have yet: the rows of later_fixes.json, from their git histories.

tools/later_fixes.py writes the table. A release has the fault if it has the code that the fix replaces.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from typing import Any

from packaging.version import InvalidVersion, Version


@dataclass(frozen=True)
class LaterFix:
    """A fix by its title, with the releases whose code it changes, and what a launch must have to run that code."""

    number: int  # of the pull request
    title: str
    since: str
    until: str  # the first release with the fix; "": not in a release yet when the table was written
    trainers: Sequence[str]  # one of them; (): any
    needs: Sequence[str]  # all of them: "liger", "fsdp", "model:gemma3"

    def is_missing_in(self, version: Version) -> bool:
        """Return whether a release has the code that the fix changes."""
        since, until = self._range
        return since <= version and (until is None or version < until)

    @cached_property
    def _range(self) -> tuple[Version, Version | None]:
        return Version(self.since), Version(self.until) if self.until else None

    @cached_property
    def words(self) -> frozenset[str]:
        """The words of the title, in lower case."""
        return frozenset(re.split(r"[\W_]+", self.title.lower()))


def list_missing_fixes(package: str, version: str) -> list[LaterFix]:
    """Return the known fixes that a release of a package does not have, the newest first."""
    try:
        parsed = Version(version)
    except InvalidVersion:
        return []
    return [fix for fix in _load_fixes().get(package, ()) if fix.is_missing_in(parsed)]


@cache
def _load_fixes() -> dict[str, list[LaterFix]]:
    text = files(__package__).joinpath("later_fixes.json").read_text(encoding="utf-8")
    table: dict[str, list[dict[str, Any]]] = json.loads(text)
    return {package: [LaterFix(**row) for row in rows] for package, rows in table.items()}
