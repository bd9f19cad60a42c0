"""The requirements of the installed distributions on one another: Requires-Dist for the examined interpreter."""

import re
from collections.abc import Iterator, Sequence
from copy import copy
from functools import cache

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from attncheck.core.job import Job
from attncheck.core.snapshot import Distribution, Known, Snapshot, normalise_name
from attncheck.doctor.knowledge import liger, ring_flash_attn, transformers
from attncheck.doctor.knowledge.faulty_releases import list_faults
from attncheck.doctor.knowledge.frameworks import INTERCHANGEABLE_DISTRIBUTIONS
from attncheck.doctor.queries.launch import may_import

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
canonical_name = normalise_name  # for the readers of requirements


def marker_environment(snapshot: Snapshot) -> dict[str, str]:
    """Return the values that markers are evaluated with: those of the examined interpreter, without extras."""
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


def applicable_requirements(snapshot: Snapshot, distribution: Distribution, *names: str) -> Iterator[Requirement]:
    """Yield the requirements of `distribution` here without extras; only those on the projects `names`, if given."""
    lines = [line for line in distribution.requires if not names or parse_project_name(line) in names]
    environment = marker_environment(snapshot) if lines else {}
    for line in lines:
        try:
            requirement = copy(parse_requirement(line))  # a copy, because the caller may change it
            if requirement.marker is None or requirement.marker.evaluate(environment):
                yield requirement
        except (InvalidRequirement, ValueError, KeyError):
            continue  # another rule reports unreadable metadata


@cache
def parse_requirement(line: str) -> Requirement:
    """Return a requirement; cached, because lines are read again and again."""
    return Requirement(line)


@cache
def parse_project_name(line: str) -> str:
    """Return the project that a Requires-Dist line names; cached, because every line is read for many projects."""
    match = _NAME.match(line.strip())
    return canonical_name(match.group()) if match else ""


def absent_requirements(snapshot: Snapshot, distribution: Distribution) -> Iterator[Requirement]:
    """Yield the requirements of `distribution`, without extras, that no installed distribution provides."""
    names = {parse_project_name(line) for line in distribution.requires if "extra" not in line.partition(";")[2]}
    absent = [name for name in names if name and not snapshot.has(*_list_equivalents(name))]
    if absent:
        yield from applicable_requirements(snapshot, distribution, *absent)


def _list_equivalents(name: str) -> tuple[str, ...]:
    """Return the distributions that provide the modules of project `name`."""
    return next((names for names in INTERCHANGEABLE_DISTRIBUTIONS if name in names), (name,))


def version_constraints(snapshot: Snapshot, name: str) -> list[tuple[Distribution, SpecifierSet]]:
    """Return every installed distribution that restricts the version of project `name`, with its specifier."""
    return [
        (distribution, requirement.specifier)
        for distribution in snapshot.distributions
        for requirement in applicable_requirements(snapshot, distribution, name)
        if str(requirement.specifier)
    ]


def iter_unmet_requirements(snapshot: Snapshot, job: Job) -> Iterator[tuple[str, str]]:
    """Yield each requirement of the job's framework release that a version here does not meet, and that version."""
    for line in job.requires:
        try:
            requirement = parse_requirement(line)
        except InvalidRequirement:
            continue
        installed = snapshot.version(requirement.name)
        if isinstance(installed, Known) and not is_version_allowed(requirement.specifier, installed.value):
            yield f"{requirement.name}{requirement.specifier}", str(installed.value)


def may_not_run(snapshot: Snapshot, job: Job) -> bool:
    """Return whether the job's framework release excludes the transformers that is named for it, not installed.

    Then nobody has such an environment, or the framework ends in it, as LLaMA-Factory does.
    """
    package = snapshot.package("transformers")
    if isinstance(package, Known) and package.value.location:  # it is installed, and runs
        return False
    return any(text.startswith("transformers") for text, _ in iter_unmet_requirements(snapshot, job))


def is_version_allowed(specifier: SpecifierSet | str, version: Version) -> bool:
    """Return whether `version` satisfies `specifier`; pre-releases and local builds are accepted."""
    specifiers = SpecifierSet(specifier) if isinstance(specifier, str) else specifier
    return specifiers.contains(version, prereleases=True)


def resolve_transformers(snapshot: Snapshot, specifier: str) -> tuple[str, ...]:
    """Return the requirements, for one install command, that bring transformers into the releases `specifier`.

    Everything installed here is respected: other distributions' pins, the torch that a release needs, and liger-kernel.
    So are the pins of the launch's framework. A release that a rule reports is never chosen, and one of the installed
    major version is preferred, because another major removes names that other packages import. `kernels` is changed
    too, because each transformers needs its own. Empty if no release satisfies everything.
    """
    constraints = [constraint for _, constraint in version_constraints(snapshot, "transformers")]
    constraints += [SpecifierSet(text) for text in _list_known_constraints(snapshot) if text]
    constraints += _job_constraints(snapshot, "transformers")
    torch = snapshot.version("torch")
    candidates = transformers.known_releases(SpecifierSet(specifier))
    compatible = [
        release
        for release in candidates
        if all(release in constraint for constraint in constraints)
        and (not isinstance(torch, Known) or _supports_torch(release, torch.value))
    ]
    sound = [release for release in compatible if not list_faults("transformers", release)]
    if not sound:
        return ()
    present = snapshot.version("transformers")
    major = present.value.major if isinstance(present, Known) else None
    sound = [release for release in sound if release.major == major] or sound
    is_range = compatible == candidates and sound[-1] == candidates[-1]
    chosen = f"transformers{specifier}" if is_range else f"transformers=={sound[-1]}"
    kernels = transformers.entry_for_version(transformers.COMPATIBLE_KERNELS, sound[-1])
    installed = snapshot.version("kernels")
    if kernels is None or not isinstance(installed, Known) or is_version_allowed(kernels, installed.value):
        return (chosen,)
    return (f"transformers=={sound[-1]}", f"kernels{kernels}")


@cache
def avoid_faulty(line: str) -> str:
    """Return a requirement that leads an installer to a release without known faults; "" if it allows none.

    An installer takes the newest release that is allowed; if that is faulty, the newest one without faults is named.
    """
    try:
        requirement = Requirement(line)
    except InvalidRequirement:
        return line  # a wheel's file or URL
    name = canonical_name(requirement.name)
    releases = transformers.known_releases(requirement.specifier) if name == "transformers" else []
    exact = [clause.version for clause in requirement.specifier if clause.operator == "=="]
    releases = releases or [Version(text) for text in exact if "*" not in text]
    sound = [release for release in releases if not list_faults(name, release)]
    if not releases or (sound and sound[-1] == releases[-1]):
        return line
    requirement.specifier = SpecifierSet(f"=={sound[-1]}") if sound else requirement.specifier
    return str(requirement) if sound else ""


def _supports_torch(release: Version, torch: Version) -> bool:
    minimum = transformers.entry_for_version(transformers.MINIMUM_TORCH, release)
    return minimum is None or torch >= Version(minimum)


def _list_known_constraints(snapshot: Snapshot) -> Iterator[str | None]:
    """Yield the transformers versions that the packages here work with, if their metadata does not state them."""
    liger_version, ring = snapshot.version("liger-kernel"), snapshot.version("ring-flash-attn")
    if isinstance(liger_version, Known):
        yield transformers.entry_for_version(liger.TRANSFORMERS_BY_LIGER, liger_version.value)
    trl_version = snapshot.version("trl")
    if isinstance(trl_version, Known):
        yield transformers.entry_for_version(transformers.TRANSFORMERS_BY_TRL, trl_version.value)
    if snapshot.lists("deepspeed"):
        yield transformers.FITS_DEEPSPEED
    installed = snapshot.version("transformers")
    if isinstance(ring, Known) and isinstance(installed, Known) and may_import(snapshot, "ring-flash-attn"):
        fits = ring_flash_attn.compatible_transformers(ring.value)
        if is_version_allowed(fits, installed.value):  # if the present one does not work, another repair may apply
            yield fits


def _job_constraints(snapshot: Snapshot, name: str) -> list[SpecifierSet]:
    """Return what the launch requires of project `name`: its framework's release, its tree, and its options."""
    job = snapshot.job.value if isinstance(snapshot.job, Known) else None
    release = Distribution("", "", "", requires=(*job.requires, *job.pins) if job is not None else ())
    return [requirement.specifier for requirement in applicable_requirements(snapshot, release, name)]


def has_common_version(snapshot: Snapshot, name: str) -> bool:
    """Return whether one version of project `name` satisfies every installed distribution that restricts it.

    For a launch, only distributions that it may import count.
    """
    constraints = version_constraints(snapshot, name)
    return have_common_version([specifier for owner, specifier in constraints if may_import(snapshot, owner.name)])


def have_common_version(specifiers: Sequence[SpecifierSet]) -> bool:
    """Return whether some version satisfies every specifier."""
    bounds = [clause for specifier in specifiers for clause in specifier if clause.operator not in ("!=", "<")]
    candidates = {
        Version("0"),
        *(Version(clause.version.removesuffix(".*")) for clause in bounds if clause.operator != "==="),
    }
    # A strict ">" or an excluded version allows versions just above its bound.
    just_above = {Version(f"{version.base_version}.0.0.1") for version in candidates}
    return any(
        all(is_version_allowed(specifier, version) for specifier in specifiers) for version in candidates | just_above
    )
