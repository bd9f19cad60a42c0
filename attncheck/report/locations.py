"""Finds the lines of pyproject.toml and requirements files that name the packages findings are about.

There CI shows a finding that no launch's line causes. A damaged file holds nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath

from attncheck.core.findings import Finding, Fix
from attncheck.core.launch import COMMAND, SourceLocation
from attncheck.core.report import Report
from attncheck.report.requirement_files import normalize_name, read_pyproject, read_requirements

PYPROJECT = "pyproject.toml"
REQUIREMENTS = re.compile(r".*(?:requirements|constraints).*\.(?:txt|in)", re.IGNORECASE)
FOLDER = "requirements"  # every .txt and .in file in it is one too
MAX_BYTES = 1 << 20
MAX_FILES = 32
INSTALLS = re.compile(r"\b(?:pip3?|uv|poetry|pdm|pixi|conda|mamba)\s+(?:pip\s+)?(?:install|add)\s+(.*)")


def holds_requirements(name: str) -> bool:
    """Say whether a file of this name lists packages to install."""
    path = PurePosixPath(name.replace("\\", "/"))
    in_folder = path.parent.name == FOLDER and path.suffix in (".txt", ".in")
    return path.name == PYPROJECT or in_folder or REQUIREMENTS.fullmatch(path.name) is not None


def in_checkout(source: str, environ: Mapping[str, str] | None = None) -> str:
    """Return a source's path from the top of the checkout, as GitHub and SARIF want it; "" where it is no file in it.

    The top is GITHUB_WORKSPACE, else the nearest folder upwards with a .git, else the working directory.
    """
    if source in ("", "-", COMMAND):
        return ""
    here = str(working_directory())
    path = os.path.normpath(os.path.join(here, source))
    relative = os.path.relpath(path, _top(here, os.environ if environ is None else environ))
    return "" if relative.startswith("..") else relative.replace(os.sep, "/")


def working_directory() -> Path:
    """Return where we are; the root where that folder has been removed under us."""
    try:
        return Path.cwd()
    except OSError:
        return Path("/")


def _top(here: str, environ: Mapping[str, str]) -> str:
    workspace = environ.get("GITHUB_WORKSPACE", "")
    if workspace and os.path.commonpath([os.path.abspath(workspace), here]) == os.path.abspath(workspace):
        return os.path.abspath(workspace)
    upwards = (str(folder) for folder in (Path(here), *Path(here).parents))
    return next((folder for folder in upwards if os.path.exists(os.path.join(folder, ".git"))), here)


def add_locations(report: Report, root: Path) -> Report:
    """Return `report` with a place for each finding that had none and is about a package that a file here names."""
    findings = (*report.findings, *report.baselined, *report.allowed)
    names = [name for finding in findings if not finding.locations for name in packages_of(finding, report)]
    if not names:
        return report
    places = find_packages(root, frozenset(names))

    def locate(finding: Finding) -> Finding:
        place = next((places[name] for name in packages_of(finding, report) if name in places), None)
        return finding if finding.locations or place is None else replace(finding, locations=(place,))

    return replace(
        report,
        findings=tuple(map(locate, report.findings)),
        baselined=tuple(map(locate, report.baselined)),
        allowed=tuple(map(locate, report.allowed)),
    )


def packages_of(finding: Finding, report: Report) -> list[str]:
    """Return the packages a finding is about: its subject first, then what its fixes install."""
    words = finding.subject.split()
    names = []
    if words and re.fullmatch(r"[A-Za-z][\w.-]*", words[0]) and _is_package(words, report):
        names.append(normalize_name(words[0]))
    return list(dict.fromkeys([*names, *(name for fix in finding.fixes for name in _installed_by(fix))]))


def _is_package(words: list[str], report: Report) -> bool:
    """Say whether a subject is "flash-attn 2.8.3", or a name alone that is no model's ("falcon" is a package too)."""
    if len(words) == 1:
        model = getattr(report.snapshot.model, "value", None)
        return model is None or words[0] not in (model.model_type, model.source)
    return len(words) == 2 and words[1][:1].isdecimal()


def _installed_by(fix: Fix) -> Iterator[str]:
    """Yield the packages that a fix's commands install."""
    if fix.kind != "command":
        return
    for line in fix.text.splitlines():
        for command in INSTALLS.findall(line):
            for word in command.split():
                name = re.match(r"[A-Za-z][\w.-]*(?=$|[\[<>=!~@;])", word.strip("'\""))
                if name:
                    yield normalize_name(name.group())


def find_packages(root: Path, names: frozenset[str]) -> dict[str, SourceLocation]:
    """Return where each of the packages is named: in pyproject.toml, else in the first requirements file by name."""
    places: dict[str, SourceLocation] = {}
    for path in _requirement_files(root):
        read = read_pyproject if path.name == PYPROJECT else read_requirements
        for name, line, column in read(_read_text(path)):
            if name in names:
                places.setdefault(name, SourceLocation(path.relative_to(root).as_posix(), line, column))
    return places


def _requirement_files(root: Path) -> list[Path]:
    """Return the files that name packages, at the root and in its folder of requirements; no pipe, no device."""
    paths = []
    for folder in (root, root / FOLDER):
        try:
            with os.scandir(folder) as entries:
                paths += [Path(entry.path) for entry in entries if entry.is_file()]
        except OSError:
            continue
    held = [path for path in paths if holds_requirements(path.relative_to(root).as_posix())]
    return sorted(held, key=lambda path: (path.name != PYPROJECT, len(path.parts), path.name))[:MAX_FILES]


def _read_text(path: Path) -> str:
    """Return a file's text, "" where it is too large or cannot be read."""
    try:
        with open(path, "rb") as stream:
            if not 0 < os.fstat(stream.fileno()).st_size <= MAX_BYTES:
                return ""
            return stream.read(MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
