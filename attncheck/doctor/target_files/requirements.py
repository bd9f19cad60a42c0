"""Reads pip's requirements files: -r and -c, markers, pins, ranges, wheels by URL; and the words of `pip install`.

Source: https://pip.pypa.io/en/stable/reference/requirements-file-format/ (pip 25.1).
"""

import os
import re
from collections.abc import Iterator
from urllib.parse import unquote, urlsplit

from packaging.requirements import Requirement
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from attncheck.core.io.errors import BadUsage
from attncheck.doctor.knowledge.frameworks import RELEVANT_DISTRIBUTIONS
from attncheck.doctor.queries.requirements import canonical_name
from attncheck.doctor.target_files.collector import Collector, shorten

_COMMENT = re.compile(r"(^|\s+)#.*$")
_LINE_OPTION = re.compile(r"\s(--hash|--config-settings|--global-option|--no-binary)\b.*$")
_REMOTE = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_EGG = re.compile(r"[#&]egg=([A-Za-z0-9][\w.-]*)")
_REPOSITORY = re.compile(r"git\+.*/([\w.-]+?)(?:\.git)?(?:@([^@/#]*))?(?:#.*)?$")
_RELEASE_TAG = re.compile(r"v?(\d+(?:\.\d+)+(?:\.?(?:post|rc|a|b)\d+)?)")
_COMMIT = re.compile(r"[0-9a-f]{7,40}")


def read_requirements(path: str, collector: Collector, installs: bool = True) -> None:
    """Add the packages that a requirements file names; with `installs` False it is a constraints file."""
    _read_file(path, collector, installs, ())


def _read_file(path: str, collector: Collector, installs: bool, open_files: tuple[str, ...]) -> None:
    if os.path.realpath(path) in open_files:
        return  # the file includes itself, and pip reads it once
    for number, line in _join_lines(collector.read_text(path)):
        read_line(path, number, line, collector, installs, (*open_files, os.path.realpath(path)))


def _join_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of a requirements file, with continuations joined and comments removed."""
    parts: list[str] = []
    first = 1
    for number, raw in enumerate(text.splitlines(), 1):
        first = first if parts else number
        is_continued = raw.endswith("\\") and not raw.lstrip().startswith("#")
        parts.append(raw[:-1] if is_continued else raw)
        if is_continued:
            continue
        line = _COMMENT.sub("", " ".join(part.strip() for part in parts)).strip()
        parts = []
        if line:
            yield first, line
    if parts and (line := _COMMENT.sub("", " ".join(parts)).strip()):
        yield first, line


def read_line(
    path: str,
    number: int,
    line: str,
    collector: Collector,
    installs: bool = True,
    open_files: tuple[str, ...] = (),
) -> None:
    """Add the packages that one line of a requirements file names. Raises `BadUsage` for a broken line."""
    if line.startswith("-"):
        option, value = _split_option(line)
        if option in ("-r", "--requirement", "-c", "--constraint"):
            if _REMOTE.match(value) or "${" in value:
                collector.remark(path, number, f"{value} is not downloaded")
                return
            nested = os.path.join(os.path.dirname(path), value)
            _read_file(nested, collector, installs and option in ("-r", "--requirement"), open_files)
        elif option in ("-e", "--editable"):
            _add_location(path, number, value, collector, installs)
        return
    add_requirement(path, number, _LINE_OPTION.sub("", line), collector, installs)


def _split_option(line: str) -> tuple[str, str]:
    match = re.match(r"(--?[A-Za-z][\w-]*?)(?:\s*=\s*|\s+)(.*)$", line) or re.match(r"(-[rce])(\S.*)$", line)
    return (match[1], match[2].strip().strip("'\"")) if match else (line, "")


def add_requirement(path: str, number: int, text: str, collector: Collector, installs: bool = True) -> None:
    """Add one requirement. Raises `BadUsage` for an invalid one; a path or URL without a version becomes a remark."""
    if "${" in text:
        collector.remark(path, number, f"{text} depends on a variable")
        return
    try:
        requirement = Requirement(text)
        specifier = str(requirement.specifier)
    except ValueError as error:  # InvalidRequirement, and numbers with thousands of digits
        if _is_location(text):
            _add_location(path, number, text, collector, installs)
            return
        reason = str(error).splitlines()[0]
        raise BadUsage(f"{path}:{number}: {shorten(text)!r} is not a requirement: {shorten(reason)}") from None
    if requirement.url:
        named = _parse_wheel(requirement.url)
        specifier = f"=={named[1]}" if named else _parse_repository(requirement.url)[1]
    collector.add(requirement.name, specifier, requirement.marker, installs)


def _is_location(text: str) -> bool:
    words = text.split(" ;")[0].split()
    return len(words) == 1 and ("/" in text or text.startswith(".") or text.endswith((".whl", ".tar.gz", ".zip")))


def _add_location(path: str, number: int, text: str, collector: Collector, installs: bool) -> None:
    """Add the package that a path or URL names: in a wheel's file name, an egg fragment or a source repository's name.

    A repository counts as the package only if a framework has its name.
    """
    named = _parse_wheel(text)
    egg = _EGG.search(text)
    repository, specifier = _parse_repository(text)
    if named:
        collector.add(named[0], f"=={named[1]}", None, installs)
    elif egg or canonical_name(repository) in RELEVANT_DISTRIBUTIONS:
        collector.add(egg[1] if egg else repository, specifier, None, installs)
    else:
        collector.remark(path, number, "a project given by path or URL: its package and version are unknown")


def _parse_repository(url: str) -> tuple[str, str]:
    """Return the name of a source repository, and the release that a tag names, or the reason why none is known."""
    match = _REPOSITORY.match(url)
    name, reference = match.groups("") if match else ("", "")
    tag, commit = _RELEASE_TAG.fullmatch(reference), _COMMIT.fullmatch(reference)
    return name, f"=={tag[1]}" if tag else f"it is installed from commit {reference[:7]}" if commit else ""


def _parse_wheel(url: str) -> tuple[str, str] | None:
    """Return the name and version from the file name of a wheel's URL or path."""
    try:
        name, version, _, _ = parse_wheel_filename(unquote(os.path.basename(urlsplit(url).path)))
        return name, str(version)
    except (InvalidWheelFilename, ValueError):
        return None
