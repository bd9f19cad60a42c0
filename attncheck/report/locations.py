"""Finds the lines of a project's files that name the packages findings are about: where CI shows a finding.

Files are read by known names only, at the root and one level down; what is declared comes before what is locked. The
work is bounded in files, bytes and time, and a damaged file holds nothing.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath

from attncheck.core.findings import Finding, Fix
from attncheck.core.launch import COMMAND, SourceLocation
from attncheck.core.report import Report
from attncheck.report.requirement_files import READERS, Reader, normalised

LARGEST = 4 << 20  # bytes of a file
MOST = 8 << 20  # bytes in all
MOST_FILES = 64
MOST_FOLDERS = 64
SECONDS = 0.05
NOT_LOOKED_INTO = re.compile(r"\.|__pycache__|node_modules|site-packages|s?env\d*$|venv|build$|dist$|wandb|data$")
INSTALLS = re.compile(r"\b(?:pip3?|uv|poetry|pdm|pixi|conda|mamba)\s+(?:pip\s+)?(?:install|add)\s+(.*)")


def holds_requirements(name: str) -> bool:
    """Say whether a file of this name lists packages to install."""
    return _reader(PurePosixPath(name.replace("\\", "/"))) is not None


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


def add_locations(report: Report, root: Path, seconds: float = SECONDS) -> Report:
    """Return `report` with a place for each finding that had none and is about a package that a file here names."""
    wanted = [name for finding in _placeless(report) for name in packages(finding, report)]
    if not wanted:
        return report
    found = places(root, frozenset(wanted), seconds)

    def put(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
        return tuple(each if each.locations else replace(each, locations=_of(each, report, found)) for each in findings)

    return replace(report, findings=put(report.findings), baselined=put(report.baselined), allowed=put(report.allowed))


def _placeless(report: Report) -> Iterator[Finding]:
    yield from (each for each in (*report.findings, *report.baselined, *report.allowed) if not each.locations)


def _of(finding: Finding, report: Report, found: dict[str, SourceLocation]) -> tuple[SourceLocation, ...]:
    return next(((found[name],) for name in packages(finding, report) if name in found), ())


def packages(finding: Finding, report: Report) -> list[str]:
    """Return the packages a finding is about: its subject first, then what its fixes install."""
    words = finding.subject.split()
    names = []
    if words and re.fullmatch(r"[A-Za-z][\w.-]*", words[0]) and _is_package(words, report):
        names.append(normalised(words[0]))
    return list(dict.fromkeys([*names, *(name for fix in finding.fixes for name in _installed(fix))]))


def _is_package(words: list[str], report: Report) -> bool:
    """Say whether a subject is "flash-attn 2.8.3", or a name alone that is no model's ("falcon" is a package too)."""
    if len(words) == 1:
        return words[0] not in _models(report)
    return len(words) == 2 and words[1][:1].isdigit()


def _models(report: Report) -> tuple[str, ...]:
    model = getattr(report.snapshot.model, "value", None)
    return (model.model_type, model.source) if model else ()


def _installed(fix: Fix) -> Iterator[str]:
    """Yield the packages that a fix's commands install."""
    if fix.kind != "command":
        return
    for line in fix.text.splitlines():
        for command in INSTALLS.findall(line):
            for word in command.split():
                name = re.match(r"[A-Za-z][\w.-]*(?=$|[\[<>=!~@;])", word.strip("'\""))
                if name:
                    yield normalised(name.group())


def places(root: Path, wanted: frozenset[str], seconds: float = SECONDS) -> dict[str, SourceLocation]:
    """Return where each of the packages `wanted` is named, the nearest declaration first."""
    found: dict[str, SourceLocation] = {}
    until = time.monotonic() + seconds
    left = MOST
    for path, reader in _files(root):
        if time.monotonic() > until or left <= 0 or wanted <= found.keys():
            break
        text = _text(path, min(LARGEST, left))
        left -= len(text)
        for name, line, column in reader.read(text):
            if name in wanted and name not in found:
                found[name] = SourceLocation(path.relative_to(root).as_posix(), line, column)
    return found


def _text(path: Path, largest: int) -> str:
    """Return a file's text, "" where it is too large or cannot be read."""
    try:
        with open(path, "rb") as stream:
            if not 0 < os.fstat(stream.fileno()).st_size <= largest:
                return ""
            return stream.read(largest).decode("utf-8", "replace")
    except OSError:
        return ""


def _files(root: Path) -> list[tuple[Path, Reader]]:
    """Return the files that may name packages: what is declared before what is locked, the root before its folders."""
    ranked = []
    folders = [root, *_folders(root)]
    for depth, folder in enumerate(folders):
        for name, is_file in _entries(folder):
            reader = _reader(PurePosixPath(folder.name, name) if depth else PurePosixPath(name)) if is_file else None
            if reader is not None:
                ranked.append(((reader.locked, depth > 0, READERS.index(reader), str(folder), name), reader))
    ranked.sort(key=lambda item: item[0])
    return [(Path(key[3], key[4]), reader) for key, reader in ranked[:MOST_FILES]]


def _folders(root: Path) -> list[Path]:
    inside = [name for name, is_file in _entries(root) if not is_file and not NOT_LOOKED_INTO.match(name)]
    return [root / name for name in sorted(inside)[:MOST_FOLDERS]]


def _entries(folder: Path) -> list[tuple[str, bool]]:
    """Return what a folder holds, each with whether it is a file; a pipe or a device is neither and left out."""
    try:
        with os.scandir(folder) as entries:
            return [(entry.name, entry.is_file()) for entry in entries if entry.is_file() or entry.is_dir()]
    except OSError:
        return []


def _reader(path: PurePosixPath) -> Reader | None:
    return next((reader for reader in READERS if reader.named.fullmatch(path.name) or _inside(reader, path)), None)


def _inside(reader: Reader, path: PurePosixPath) -> bool:
    """Say whether it is a file like requirements/train.txt."""
    return bool(reader.folder and path.parent.name == reader.folder and path.suffix in (".txt", ".in"))
