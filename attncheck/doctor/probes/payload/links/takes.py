"""What a statement takes from another package, and how taking it fails."""

from __future__ import annotations

from typing import NamedTuple


class Take(NamedTuple):
    """What a statement takes from another package's module; name "": the module itself."""

    module: str
    name: str
    line: int
    kind: str = "import"  # "attribute" of what was imported; "argument" of a call
    argument: str = ""
    reason: str = ""  # why a call does not fit

    @property
    def target(self) -> str:
        """What is taken, as "module:name"."""
        return self.module + ":" + self.name if self.name else self.module


class Failure(NamedTuple):
    """A take that cannot be served: under which open conditions, in which function ("": at import), after what else."""

    take: Take
    conditions: tuple[str, ...] = ()
    function: str = ""
    tried: tuple[Take, ...] = ()  # the failed alternatives of a `try` before it


class Fallback(NamedTuple):
    """A take that cannot be served and is caught: the line where the module goes on."""

    take: Take
    line: int
    function: str = ""
