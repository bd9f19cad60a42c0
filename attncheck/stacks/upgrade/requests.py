"""Reads the arguments of `attncheck upgrade`: pinned requirements, wheels, at most one model."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from attncheck.core.io.errors import BadUsage
from attncheck.doctor.queries.requirements import canonical_name
from attncheck.stacks.upgrade.wheels import WheelFile, find_wheel, read_wheel

EXAMPLE = "attncheck upgrade 'transformers==5.23.0'"


@dataclass(frozen=True)
class RequestedPackage:
    """A package and the named release. For a range, `version` is "" until a folder of wheels decides it."""

    name: str
    version: str
    specifier: str = ""
    wheel: WheelFile | None = None

    @property
    def requirement(self) -> str:
        """The argument for an installer: the wheel's path if there is one, otherwise the requirement."""
        return self.wheel.path if self.wheel is not None else f"{self.name}=={self.version}"


@dataclass(frozen=True)
class UpgradeRequest:
    """The packages to judge, and the model to judge for."""

    packages: tuple[RequestedPackage, ...]
    model: str | None = None


def parse_request(words: Sequence[str]) -> UpgradeRequest:
    """Return the request in the command line's words. Raises `BadUsage` with the word and what to write instead."""
    packages: dict[str, RequestedPackage] = {}
    models: list[str] = []
    for word in words:
        if _is_model(word):
            models.append(word)
            continue
        package = _parse_package(word)
        if package.name in packages:
            raise BadUsage(f"{package.name} is named twice; an environment can have only one release")
        packages[package.name] = package
    if not packages:
        raise BadUsage(f"name what to upgrade: {EXAMPLE}")
    if len(models) > 1:
        raise BadUsage(f"{' and '.join(models)}: one MODEL at a time")
    return UpgradeRequest(tuple(packages.values()), models[0] if models else None)


def locate_wheels(request: UpgradeRequest, folders: Sequence[str], host_tags: frozenset[str]) -> UpgradeRequest:
    """Return the request with the matching wheels of `folders`; each range becomes the newest of them.

    `host_tags` are the tags that the examined interpreter accepts. Raises `BadUsage` for a path that is not a folder,
    and for a range without a matching wheel.
    """
    for folder in folders:
        if not os.path.isdir(folder):
            raise BadUsage(f"--find-links {folder}: no such folder")
    return UpgradeRequest(tuple(_locate(package, folders, host_tags) for package in request.packages), request.model)


def _locate(package: RequestedPackage, folders: Sequence[str], host_tags: frozenset[str]) -> RequestedPackage:
    if package.wheel is not None:
        return package
    specifier = package.specifier or f"=={package.version}"
    wheel = find_wheel(folders, package.name, SpecifierSet(specifier), host_tags)
    if wheel is not None:
        return RequestedPackage(package.name, wheel.version, package.specifier, wheel)
    if not package.version:
        where = f", and no wheel in {', '.join(folders)} matches" if folders else ""
        raise BadUsage(
            f"{package.name}{package.specifier} does not name one release{where}: write '{package.name}==…', "
            "or pass --find-links with a folder that has its wheel"
        )
    return package


def _is_model(word: str) -> bool:
    """Return whether a word is a folder or a Hub name, not a wheel or a requirement."""
    if word.endswith(".whl") or any(sign in word for sign in "=<>~!@;["):
        return False
    return "/" in word or os.path.isdir(word)


def _parse_package(word: str) -> RequestedPackage:
    if word.endswith(".whl"):
        if "://" in word:
            raise BadUsage(f"{word} is a URL: download it, and name the file")
        wheel = read_wheel(word)
        return RequestedPackage(wheel.name, wheel.version, wheel=wheel)
    try:
        requirement = Requirement(word)
    except InvalidRequirement as error:
        reason = str(error).splitlines()[0]
        raise BadUsage(f"{word!r} is not a requirement ({reason}); write NAME==VERSION: {EXAMPLE}") from None
    name = canonical_name(requirement.name)
    if requirement.extras:
        extras = ",".join(sorted(requirement.extras))
        raise BadUsage(f"{word}: the extra [{extras}] is not judged; remove it and name its packages")
    if requirement.marker is not None:
        raise BadUsage(f"{word}: markers are not needed for one environment; remove the text after the semicolon")
    if requirement.url:
        raise BadUsage(f"{word} is a URL: download the wheel, and name the file")
    if not requirement.specifier:
        raise BadUsage(f"{word}: name the release, as in {EXAMPLE}; a model is a folder, or a Hub name with a slash")
    return RequestedPackage(name, _parse_pin(requirement.specifier), str(requirement.specifier))


def _parse_pin(specifier: SpecifierSet) -> str:
    """Return the one release in a specifier, "" if it is a range."""
    clauses = list(specifier)
    if len(clauses) != 1 or clauses[0].operator not in ("==", "===") or clauses[0].version.endswith(".*"):
        return ""
    try:
        return str(Version(clauses[0].version))
    except InvalidVersion:
        raise BadUsage(f"{clauses[0].version!r} is not a version; write NAME==VERSION: {EXAMPLE}") from None
