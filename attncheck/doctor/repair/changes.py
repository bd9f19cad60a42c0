"""Predicts the environment after a repair, limited to what rules can judge without an import."""

import re
from collections.abc import Iterable
from dataclasses import replace

from packaging.specifiers import SpecifierSet

from attncheck.core.results.repair import RepairStep
from attncheck.core.snapshot import Absent, Distribution, Known, Snapshot, Torch, Unreadable
from attncheck.doctor.knowledge import transformers
from attncheck.doctor.queries.requirements import is_version_allowed, parse_project_name
from attncheck.doctor.repair.choices import find_removed_packages, parse_requirement

NOT_IMPORTED = "imports cannot be tested in a planned environment"
FLASH_ATTN_REQUIRES = ("torch", "einops")
_BOUND = re.compile(r"(?:===|==|>=|<=|~=)\s*([\w.+!-]+)")


def changed_names(steps: Iterable[RepairStep]) -> set[str]:
    """Return the packages that the steps install or remove."""
    installed = {parse_requirement(text)[0] for step in steps for text in step.installs}
    return {*installed, *(name for step in steps for name in find_removed_packages(step.command))} - {""}


def forget_imports(snapshot: Snapshot, names: Iterable[str] = ()) -> Snapshot:
    """Return the snapshot without results of imports and source reads, and without the files of `names`.

    A finding that the rules no longer make here depends on those facts alone. Its absence after a repair proves
    nothing."""
    forgotten = set(names)
    distributions = tuple(
        replace(entry, files_missing=(), files_altered=(), missing_modules=(), problem="")
        if entry.name in forgotten
        else entry
        for entry in snapshot.distributions
    )
    model = snapshot.model
    return replace(
        snapshot,
        model=Known(replace(model.value, links=Absent(NOT_IMPORTED))) if isinstance(model, Known) else model,
        imports=Absent(NOT_IMPORTED),
        interfaces=Absent(NOT_IMPORTED),
        links=Absent(NOT_IMPORTED),
        distributions=distributions,
        binaries=tuple(entry for entry in snapshot.binaries if entry.distribution not in forgotten),
        clashes=tuple(entry for entry in snapshot.clashes if forgotten.isdisjoint(entry.owners)),
    )


def apply_steps(snapshot: Snapshot, steps: Iterable[RepairStep]) -> Snapshot:
    """Return the snapshot as the rules would see it after the steps."""
    steps = tuple(steps)
    changed = forget_imports(snapshot, changed_names(steps))
    for step in steps:
        for name in find_removed_packages(step.command):
            changed = _without(changed, name)
        for text in step.installs:
            changed = _with_requirement(
                changed, *parse_requirement(text), with_dependencies="--no-deps" not in step.command
            )
        changed = replace(changed, environ=_apply_variables(dict(changed.environ), step.command))
    return changed


def _without(snapshot: Snapshot, name: str) -> Snapshot:
    return replace(snapshot, distributions=tuple(entry for entry in snapshot.distributions if entry.name != name))


def _with_requirement(snapshot: Snapshot, name: str, specifier: str, with_dependencies: bool) -> Snapshot:
    """Return the snapshot with a version of a package that the specifier allows, optionally with its requirements."""
    if not name:
        return snapshot
    installed = snapshot.package(name)
    present = installed.value if isinstance(installed, Known) else None
    version = _choose_version(name, specifier, present)
    if present is not None and present.version == version:
        new = present
    else:
        requires = FLASH_ATTN_REQUIRES if name == "flash-attn" else ()
        new = Distribution(name, version, present.location if present else snapshot.host.prefix, requires=requires)
    changed = replace(_without(snapshot, name), distributions=(*_without(snapshot, name).distributions, new))
    if name == "torch" and (present is None or present.version != version):
        unknown = Unreadable("this torch is not installed yet")
        changed = replace(changed, torch=Known(Torch(version, unknown, unknown, unknown)))
    if with_dependencies:
        for line in new.requires:
            required = parse_project_name(line)
            if not changed.lists(required) and "extra" not in line:
                changed = _with_requirement(changed, required, "", False)
    return changed


def _choose_version(name: str, specifier: str, present: Distribution | None) -> str:
    """Return the version that an installer would keep or choose; "" if only a package index decides."""
    allowed = SpecifierSet(specifier)
    if present is not None and present.version:
        from packaging.version import InvalidVersion, Version

        try:
            if is_version_allowed(allowed, Version(present.version)):
                return present.version
        except InvalidVersion:
            pass
    if name == "transformers":
        releases = transformers.known_releases(allowed)
        if releases:
            return str(releases[-1])
    bounds = [bound for bound in _BOUND.findall(specifier) if allowed.contains(bound, prereleases=True)]
    return str(bounds[0]) if bounds else ""


def _apply_variables(environ: dict[str, str], command: str) -> dict[str, str]:
    for line in command.splitlines():
        word, _, rest = line.partition(" ")
        if word == "export":
            environ |= dict(re.findall(r"([A-Za-z_]\w*)=(\S*)", rest))
        elif word == "unset":
            for name in rest.split():
                environ.pop(name, None)
    return environ
