"""Finds modules that cannot be imported because a module that they import is broken, starting from the broken file.

Only modules whose text names a broken one are checked again, until no further module breaks.
"""

from __future__ import annotations

from typing import Container, Iterable, NamedTuple

from .imports import ImportFollower
from .names import lazy_structure
from .source import read_takes
from .takes import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .conditions import Conditions
    from .names import Names
    from .source import SourceModule

MAX_ROUNDS = 40


class Broken(NamedTuple):
    """A module whose import fails, with the module and take in which the failure begins."""

    origin: str
    failure: Failure


class Spread:
    """Propagates breaks from module to module.

    A failure begins in each of `origins`. Modules in `weakened` continue after a failed import, but may lack a name
    that depends on it.
    """

    def __init__(
        self, origins: dict[str, Failure], weakened: dict[str, Failure], names: Names, conditions: Conditions
    ) -> None:
        self.broken = {name: Broken(name, failure) for name, failure in origins.items()}
        self.weakened = weakened
        self.names = names
        self.conditions = conditions

    def run(self, modules: list[SourceModule]) -> dict[str, Broken]:
        """Return every module among `modules` whose import fails, with the origin of the failure."""
        fresh = {*self.broken, *self.weakened}
        for _ in range(MAX_ROUNDS):
            if not fresh:
                break
            lazy_names = {name for module_name in fresh for name in self._lazy_names(module_name)}
            words = {name.rpartition(".")[2] for name in fresh} | lazy_names
            candidates = [m for m in modules if m.name not in self.broken and _may_import(m, fresh, lazy_names, words)]
            fresh = {module.name for module in candidates if self._breaks(module)}
        return self.broken

    def _lazy_names(self, name: str) -> set[str]:
        """Return the names that a lazy package imports from a module."""
        package, _, last = name.rpartition(".")
        parent = self.names.finder.find(package) if package else None
        return set() if parent is None else lazy_structure(parent).get(last, set())

    def _breaks(self, module: SourceModule) -> bool:
        cause = self._find_cause(module)
        if cause is not None:
            self.broken[module.name] = cause
        return cause is not None

    def _find_cause(self, module: SourceModule) -> Broken | None:
        parent = _broken_parent(module.name, self.broken)
        if parent:
            return self.broken[parent]

        def is_missing(source: str, name: str) -> bool:
            return source != module.name and self._broken_by(source, name) is not None

        for failure in ImportFollower(module, is_missing, self.conditions).follow_import():
            if not failure.conditions:
                return self._broken_by(failure.take.module, failure.take.name)
        return None

    def _broken_by(self, source: str, name: str) -> Broken | None:
        """Return the broken module that `from source import name` reaches (name "": `import source`), or None."""
        parent = source if source in self.broken else _broken_parent(source, self.broken)
        if parent:
            return self.broken[parent]
        if not name:
            return None
        module = self.names.finder.find(source)
        submodule = source + "." + name
        if submodule in self.broken:
            is_bound = module is not None and module.tree is not None and name in self.names.bindings(module)
            return None if is_bound else self.broken[submodule]
        if source in self.weakened and self.names.has_name(source, name) is False:
            return Broken(source, self.weakened[source])
        if module is not None and "_LazyModule(" in module.text:
            lazy = self.names.lazy_submodule(module, name)
            return self._broken_by(lazy, name) if lazy else None
        return None


def _may_import(module: SourceModule, fresh: Container[str], lazy_names: Container[str], words: Iterable[str]) -> bool:
    """Return whether a module's text seems to import one of the modules `fresh`, or a lazy name from one."""
    if _broken_parent(module.name, fresh):
        return True
    return any(word in module.text for word in words) and any(
        source in fresh or source + "." + name in fresh or name in lazy_names or _broken_parent(source, fresh)
        for source, name, _ in read_takes(module)
    )


def _broken_parent(name: str, broken: Container[str]) -> str:
    """Return the first broken parent package of a module, or ""; parents are imported first."""
    parts = name.split(".")
    parents = (".".join(parts[:end]) for end in range(1, len(parts)))
    return next((parent for parent in parents if parent in broken), "")
