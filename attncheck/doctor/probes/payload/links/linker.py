"""Links the installed packages of the attention stack: finds names that one imports and another no longer has."""

from __future__ import annotations

import gc
import re
from typing import Any, Callable, Container, Iterable, Iterator

from .conditions import Conditions
from .imports import ImportFollower
from .names import Names
from .packages import PROVIDERS
from .reach import Spread
from .signatures import Signatures
from .source import ModuleFinder, SourceModule, read_takes
from .takes import Failure, Fallback
from .uses import Uses
from .whereabouts import find_patcher, find_whereabouts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .packages import Consumers

MAX_RECORDS = 200
MAX_BREAKS = 200
# Attributes that torch creates at run time, in C++, so that its files decide nothing about them.
_ALWAYS_THERE = re.compile(r"torch(?:\.(?:nn|optim|utils\.data|autograd|cuda|distributed)(?:\.functional)?)?\Z")


class Linker:
    """Links packages and files in the folders of sys.path; `versions` are the installed ones, by normalised name."""

    def __init__(self, folders: list[str], versions: dict[str, str]) -> None:
        self.finder = ModuleFinder(folders)
        self.conditions = Conditions(self.finder, versions)
        self.names = Names(self.finder, self.conditions)
        self.signatures = Signatures(self.names)
        self.providers = [name for name in PROVIDERS if self.finder.kind(name) in ("source", "folder")]
        self.origins: dict[str, Failure] = {}  # modules in which a failure begins
        self.weakened: dict[str, Failure] = {}  # modules that continue after a failed import and may then lack a name
        self._missing: dict[tuple[str, str], bool] = {}
        self.conditions.is_missing = self._make_check(self.providers)

    def link_modules(
        self, modules: list[SourceModule], consumer: str, hidden: Container[str] = ()
    ) -> list[dict[str, Any]]:
        """Return a record for each take in `modules` that cannot be resolved, except from the packages `hidden`."""
        own = modules[0].name.partition(".")[0] if modules else ""
        providers = [name for name in self.providers if name != own and name not in hidden]
        if not providers:
            return []
        records: list[dict[str, Any]] = []
        for module in modules:
            uses = self._suspect(module, providers, consumer)
            if uses is not None:
                failures, later, fallbacks = self._follow(module, providers, uses)
                records += [_describe(consumer, module, failure) for failure in (*failures, *later)]
                records += [_describe_fallback(consumer, module, fallback) for fallback in fallbacks]
                certain = [failure for failure in failures if not failure.conditions]
                if certain:
                    self.origins[module.name] = certain[0]
                elif fallbacks:
                    self.weakened[module.name] = Failure(fallbacks[0].take)
        return records[:MAX_RECORDS]

    def complete(self, records: list[dict[str, Any]], modules: list[SourceModule]) -> None:
        """Add to the records of `modules` their consequences, each missing name's new place, and what restores it."""
        self._note_breaks(records, modules)
        wanted: dict[str, Any] = {}
        for record in records:
            name = record["name"].partition(".")[0]
            if name and record["kind"] != "argument" and "." not in record["name"]:  # class attributes do not move
                wanted.setdefault(record["provider"], set()).add(name)
        places = {provider: find_whereabouts(self.finder, provider, names) for provider, names in wanted.items()}
        for record in records:
            name, own = record["name"].partition(".")[0], record["module"].partition(".")[0] + "."
            now = places.get(record["provider"], {}).get(name, [])
            record["moved_to"] = [module for module in now if module != record["source"]]
            if name and record["kind"] != "argument":
                record["patched_by"] = find_patcher((m for m in modules if (m.name + ".").startswith(own)), name)

    def _note_breaks(self, records: list[dict[str, Any]], modules: list[SourceModule]) -> None:
        """Mark each broken module in the record of the take in which its failure begins."""
        if not self.origins and not self.weakened:
            return
        broken = Spread(self.origins, self.weakened, self.names, self.conditions).run(modules)
        for name in sorted(broken, key=lambda name: (name.count("."), name)):
            origin, failure = broken[name]
            for record in records:
                is_cause = record["module"] == origin and record["line"] == failure.take.line and not record["function"]
                if is_cause and record["name"] == failure.take.name and len(record["breaks"]) < MAX_BREAKS:
                    record["breaks"].append(name)
                    break

    def _suspect(self, module: SourceModule, providers: list[str], consumer: str) -> Uses | None:
        """Return the uses to check in a module; None if its text uses nothing that may be missing.

        Most files end here, because parsing all of them would be expensive.
        """
        text = module.text
        if not any((name if name != "torch" else "from torch.") in text for name in providers):
            return None
        takes = [(source, name) for source, name, _ in read_takes(module) if source.partition(".")[0] in providers]
        if not takes:
            return None
        uses = Uses(module, set(providers), self.names, self.signatures)
        uses.follows_instances = not consumer
        is_suspect = any(
            self._is_missing(source, "") or (name not in ("", "*") and self._is_missing(source, name))
            for source, name in takes
            if not _ALWAYS_THERE.match(source)
        )
        return uses if is_suspect or uses.is_suspect() else None

    def _follow(
        self, module: SourceModule, providers: list[str], uses: Uses
    ) -> tuple[list[Failure], list[Failure], list[Fallback]]:
        is_needed = uses.is_suspect()
        follower = ImportFollower(module, self._make_check(providers), self.conditions, uses if is_needed else None)
        return follower.follow(), follower.later, follower.fallbacks

    def _make_check(self, providers: list[str]) -> Callable[[str, str], bool]:
        return lambda source, name: source.partition(".")[0] in providers and self._is_missing(source, name)

    def _is_missing(self, source: str, name: str) -> bool:
        key = source, name
        if key not in self._missing:
            is_there = self.names.has_name(source, name) if name else self.names.has_module(source)
            self._missing[key] = is_there is False
        return self._missing[key]


def link_distributions(
    installed: list[dict[str, Any]], site_dirs: list[str], consumers: Consumers
) -> dict[str, list[dict[str, Any]]]:
    """Return, by consumer, the records of names that installed packages import and other packages lack.

    `consumers` are distributions, with the packages to read of each.
    """
    versions = {str(d["name"]): str(d["version"]) for d in reversed(installed)}
    enabled = gc.isenabled()
    gc.disable()  # there are millions of syntax nodes, but no reference cycles
    try:
        linker = Linker(site_dirs, versions)
        modules = {name: list(_iter_consumer(linker.finder, packages)) for name, packages in consumers.items()}
        records = {name: linker.link_modules(modules[name], name) for name in consumers}
        linker.complete(
            [record for group in records.values() for record in group],
            [module for group in modules.values() for module in group],
        )
        return records
    finally:
        if enabled:
            gc.enable()


def _iter_consumer(finder: ModuleFinder, packages: Iterable[str]) -> Iterator[SourceModule]:
    for package in packages:
        yield from finder.iter_package(package.replace("/", "."))


def _describe(consumer: str, module: SourceModule, failure: Failure) -> dict[str, Any]:
    take = failure.take
    return {
        "consumer": consumer,
        "module": module.name,
        "path": module.path,
        "line": take.line,
        "provider": take.module.partition(".")[0],
        "source": take.module,
        "name": take.name,
        "kind": take.kind,
        "argument": take.argument,
        "reason": take.reason,
        "function": failure.function,
        "conditions": list(failure.conditions),
        "tried": [tried.target for tried in failure.tried],
        "fallback_line": 0,
        "moved_to": [],
        "patched_by": "",
        "breaks": [],
    }


def _describe_fallback(consumer: str, module: SourceModule, fallback: Fallback) -> dict[str, Any]:
    record = _describe(consumer, module, Failure(fallback.take, function=fallback.function))
    return dict(record, fallback_line=fallback.line)
