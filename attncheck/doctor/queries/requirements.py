"""What the installed distributions ask of one another: their Requires-Dist, read for the examined interpreter."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from attncheck.core.environment import Distribution
from attncheck.core.facts import Known
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.knowledge import liger, transformers

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def normalised(name: str) -> str:
    """Return `name` as PEP 503 spells it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def marker_environment(snapshot: Snapshot) -> dict[str, str]:
    """Return the values that markers are evaluated with: the examined interpreter's, no extra asked for."""
    host = snapshot.host
    system = {"linux": "Linux", "darwin": "Darwin", "win32": "Windows"}.get(host.platform, host.platform)
    return {
        "python_version": ".".join(host.python_version.split(".")[:2]),
        "python_full_version": host.python_version,
        "implementation_name": host.python_implementation,
        "platform_python_implementation": {"cpython": "CPython", "pypy": "PyPy"}.get(host.python_implementation, ""),
        "sys_platform": host.platform,
        "platform_system": system,
        "platform_machine": host.machine,
        "os_name": "nt" if host.platform == "win32" else "posix",
        "extra": "",
    }


def demands_of(snapshot: Snapshot, distribution: Distribution, *names: str) -> Iterator[Requirement]:
    """Yield what `distribution` requires here without extras; of the projects `names` alone, if any are given."""
    lines = [line for line in distribution.requires if not names or _project(line) in names]
    environment = marker_environment(snapshot) if lines else {}
    for line in lines:
        try:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate(environment):
                yield requirement
        except (InvalidRequirement, ValueError, KeyError):
            continue  # metadata that cannot be read is another rule's finding


@cache
def _project(line: str) -> str:
    """Return the project that a Requires-Dist speaks of; asked for every line once per package that matters."""
    found = _NAME.match(line.strip())
    return normalised(found.group()) if found else ""


def demands(snapshot: Snapshot, name: str) -> list[tuple[Distribution, SpecifierSet]]:
    """Return every installed distribution that restricts the version of project `name`, and how."""
    return [
        (distribution, requirement.specifier)
        for distribution in snapshot.distributions
        for requirement in demands_of(snapshot, distribution, name)
        if str(requirement.specifier)
    ]


def allowed(specifier: SpecifierSet | str, version: Version) -> bool:
    """Say whether `version` satisfies `specifier`; an installed pre-release or local build may."""
    wanted = SpecifierSet(specifier) if isinstance(specifier, str) else specifier
    return wanted.contains(version, prereleases=True)


def transformers_in(snapshot: Snapshot, wanted: str) -> tuple[str, ...]:
    """Return the requirements, for one install command, that bring transformers into the releases `wanted`.

    Whatever else is installed here has its say: other distributions' pins, the torch that a release needs, and
    liger-kernel. Empty where no release pleases all. `kernels` moves along, because each transformers wants its own.
    """
    ranges = [specifier for _, specifier in demands(snapshot, "transformers")]
    ranges += [SpecifierSet(text) for text in (_liger(snapshot),) if text]
    torch = snapshot.version("torch")
    within = transformers.releases(SpecifierSet(wanted))
    fitting = [
        release
        for release in within
        if all(release in each for each in ranges) and (not isinstance(torch, Known) or _runs(release, torch.value))
    ]
    if not fitting:
        return ()
    chosen = f"transformers{wanted}" if fitting == within else f"transformers=={fitting[-1]}"
    kernels = transformers.row(transformers.KERNELS, fitting[-1])
    installed = snapshot.version("kernels")
    if kernels is None or not isinstance(installed, Known) or allowed(kernels, installed.value):
        return (chosen,)
    return (f"transformers=={fitting[-1]}", f"kernels{kernels}")


def _runs(release: Version, torch: Version) -> bool:
    minimum = transformers.row(transformers.MINIMUM_TORCH, release)
    return minimum is None or torch >= Version(minimum)


def _liger(snapshot: Snapshot) -> str | None:
    installed = snapshot.version("liger-kernel")
    return transformers.row(liger.TRANSFORMERS, installed.value) if isinstance(installed, Known) else None


def can_share(snapshot: Snapshot, name: str) -> bool:
    """Say whether some version of project `name` could please every installed distribution that restricts it."""
    ranges = [specifier for _, specifier in demands(snapshot, name)]
    bounds = [spec for each in ranges for spec in each if spec.operator not in ("!=", "<")]
    candidates = {
        Version("0"),
        *(Version(spec.version.removesuffix(".*")) for spec in bounds if spec.operator != "==="),
    }
    # Just above a bound lies the first version that a strict ">" or an excluded one leaves.
    above = {Version(f"{version.base_version}.0.0.1") for version in candidates}
    return any(all(allowed(each, version) for each in ranges) for version in candidates | above)
