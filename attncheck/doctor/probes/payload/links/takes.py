"""A take: something that a statement uses from another package, and how that fails."""

from __future__ import annotations

from typing import NamedTuple


class Take(NamedTuple):
    """Something that a statement uses from another package's module; name "": the module itself."""

    module: str
    name: str
    line: int
    kind: str = "import"  # also "attribute" of an imported object, "argument" of a call
    argument: str = ""
    reason: str = ""  # why a call does not fit

    @property
    def target(self) -> str:
        """The target of the take, as "module:name"."""
        return self.module + ":" + self.name if self.name else self.module


class Failure(NamedTuple):
    """A take that fails, with its undecided conditions, its function ("": at import), and alternatives tried before."""

    take: Take
    conditions: tuple[str, ...] = ()
    function: str = ""
    tried: tuple[Take, ...] = ()  # the alternatives of a `try` that failed before it


class Fallback(NamedTuple):
    """A take that fails and is caught, with the line where the module continues."""

    take: Take
    line: int
    function: str = ""
