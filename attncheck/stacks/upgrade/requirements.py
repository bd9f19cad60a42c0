"""The packages' requirements on each other, compared with the planned environment."""

from collections.abc import Collection, Iterator

from packaging.requirements import Requirement

from attncheck.core.findings import Finding, Problem
from attncheck.core.snapshot import Absent, Distribution, Known, Snapshot
from attncheck.doctor import engine
from attncheck.doctor.queries.requirements import applicable_requirements, canonical_name, is_version_allowed
from attncheck.stacks.upgrade.requests import RequestedPackage

REQUIREMENT_WOULD_BREAK = "ATN921"
MOVES_TORCH = "ATN922"
MOVES_OTHERS = "ATN925"
# Rules that also find an unmet requirement: an installer meets those of an upgraded package by changing others.
UNMET_REQUIREMENT_CODES = ("ATN147", "ATN170")


def list_broken_requirements(
    before: Snapshot, planned: Snapshot, changed: Collection[str], findings: Collection[Finding]
) -> Iterator[Finding]:
    """Yield a finding for each requirement that is met today, but not after the upgrade.

    Each is a requirement of an unchanged package on a changed one. `findings` are the rules' findings on the plan; a
    requirement is left out if one of them names both packages.
    """
    for distribution in _list_distributions(planned):
        if distribution.name in changed:
            continue
        for requirement in applicable_requirements(planned, distribution, *changed):
            name = canonical_name(requirement.name)
            if _is_met(planned, requirement) is not False or _is_met(before, requirement) is False:
                continue
            if any(
                finding.subject.partition(" ")[0] == distribution.name and name in finding.message
                for finding in findings
            ):
                continue
            subject = f"{distribution.name} {distribution.version}".strip()
            wanted = f"{name}{requirement.specifier}"
            message = f"{subject} requires {wanted}, but {name} would be {_describe(planned, name)}"
            evidence = (f"Requires-Dist of {subject}",)
            yield engine.make_finding_by_code(REQUIREMENT_WOULD_BREAK, Problem(message, evidence, (), subject))


def list_moved_along(planned: Snapshot, packages: tuple[RequestedPackage, ...]) -> Iterator[Finding]:
    """Yield the new versions' requirements that the plan does not meet, torch in its own finding."""
    for package in packages:
        if package.wheel is None:
            continue
        distribution = Distribution(package.name, package.version, "", requires=package.wheel.requires)
        unmet = [
            requirement
            for requirement in applicable_requirements(planned, distribution)
            if _is_met(planned, requirement) is False
        ]
        subject, evidence = f"{package.name} {package.version}", (f"Requires-Dist in {package.wheel.file_name}",)
        for requirement in unmet:
            if canonical_name(requirement.name) == "torch":
                installed = f"torch {_describe(planned, 'torch')} is installed"
                message = f"{subject} requires torch{requirement.specifier}, and {installed}"
                yield engine.make_finding_by_code(MOVES_TORCH, Problem(message, evidence, (), subject))
        others = [
            f"{canonical_name(requirement.name)}{requirement.specifier} (here: {_describe(planned, requirement.name)})"
            for requirement in unmet
            if canonical_name(requirement.name) != "torch"
        ]
        if others:
            message = f"{subject} requires {', '.join(others)}"
            yield engine.make_finding_by_code(MOVES_OTHERS, Problem(message, evidence, (), subject))


def is_met_by_installer(finding: Finding, changed: Collection[str]) -> bool:
    """Return whether a finding is an unmet requirement of an upgraded package, which an installer meets."""
    return finding.code in UNMET_REQUIREMENT_CODES and finding.subject.partition(" ")[0] in changed


def _list_distributions(snapshot: Snapshot) -> Iterator[Distribution]:
    """Yield each package once: the distribution that would be imported."""
    for name in dict.fromkeys(distribution.name for distribution in snapshot.distributions):
        package = snapshot.package(name)
        if isinstance(package, Known):
            yield package.value


def _is_met(snapshot: Snapshot, requirement: Requirement) -> bool | None:
    """Return whether a requirement is met, None if unknown."""
    version = snapshot.version(requirement.name)
    if isinstance(version, Known):
        return is_version_allowed(requirement.specifier, version.value)
    return False if isinstance(version, Absent) else None


def _describe(snapshot: Snapshot, name: str) -> str:
    version = snapshot.version(name)
    return str(version.value) if isinstance(version, Known) else "none"
