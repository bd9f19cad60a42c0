"""Locates the packages of findings: the lines of pyproject.toml and requirements files that name them.

CI shows findings there if no line of a launch causes them. A damaged file names no packages.
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath

from attncheck.core.io.files import read_text
from attncheck.core.launch import COMMAND, SourceLocation
from attncheck.core.report import Finding, Fix, Report
from attncheck.core.snapshot import normalise_name
from attncheck.report.requirement_files import read_pyproject, read_requirements

PYPROJECT = "pyproject.toml"
REQUIREMENTS_FILE = re.compile(r".*(?:requirements|constraints).*\.(?:txt|in)", re.IGNORECASE)
REQUIREMENTS_FOLDER = "requirements"  # every .txt and .in file in this folder is a requirements file
MAX_FILES = 32
INSTALL_COMMAND = re.compile(r"\b(?:pip3?|uv|poetry|pdm|pixi|conda|mamba)\s+(?:pip\s+)?(?:install|add)\s+(.*)")


def is_requirements_file(name: str) -> bool:
    """Return whether a file of this name lists packages to install."""
    path = PurePosixPath(name.replace("\\", "/"))
    in_folder = path.parent.name == REQUIREMENTS_FOLDER and path.suffix in (".txt", ".in")
    return path.name == PYPROJECT or in_folder or REQUIREMENTS_FILE.fullmatch(path.name) is not None


def path_in_checkout(source: str, environ: Mapping[str, str] | None = None) -> str:
    """Return a source's path from the top of the checkout, as GitHub and SARIF require; "" if it is not a file there.

    The top is GITHUB_WORKSPACE, or the nearest parent folder with a .git, or the working directory.
    """
    if source in ("", "-", COMMAND):
        return ""
    working_folder = str(working_directory())
    path = os.path.normpath(os.path.join(working_folder, source))
    relative = os.path.relpath(path, _find_checkout_root(working_folder, os.environ if environ is None else environ))
    return "" if relative.startswith("..") else relative.replace(os.sep, "/")


def working_directory() -> Path:
    """Return the working directory; the root if that folder has been removed meanwhile."""
    try:
        return Path.cwd()
    except OSError:
        return Path("/")


def _find_checkout_root(working_folder: str, environ: Mapping[str, str]) -> str:
    workspace = environ.get("GITHUB_WORKSPACE", "")
    if workspace and os.path.commonpath([os.path.abspath(workspace), working_folder]) == os.path.abspath(workspace):
        return os.path.abspath(workspace)
    ancestors = (str(folder) for folder in (Path(working_folder), *Path(working_folder).parents))
    return next((folder for folder in ancestors if os.path.exists(os.path.join(folder, ".git"))), working_folder)


def add_locations(report: Report, root: Path) -> Report:
    """Return `report` with a location for each finding without one whose package is named by a file in `root`."""
    findings = (*report.findings, *report.baselined, *report.allowed)
    names = [name for finding in findings if not finding.locations for name in packages_of_finding(finding, report)]
    if not names:
        return report
    locations = locate_packages(root, frozenset(names))

    def locate(finding: Finding) -> Finding:
        location = next((locations[name] for name in packages_of_finding(finding, report) if name in locations), None)
        return finding if finding.locations or location is None else replace(finding, locations=(location,))

    return replace(
        report,
        findings=tuple(map(locate, report.findings)),
        baselined=tuple(map(locate, report.baselined)),
        allowed=tuple(map(locate, report.allowed)),
    )


def packages_of_finding(finding: Finding, report: Report) -> list[str]:
    """Return the normalised names of a finding's packages: its subject first, then those that its fixes install."""
    subject_parts = finding.subject.split()
    names = []
    if subject_parts and re.fullmatch(r"[A-Za-z][\w.-]*", subject_parts[0]) and _is_package(subject_parts, report):
        names.append(normalise_name(subject_parts[0]))
    return list(dict.fromkeys([*names, *(name for fix in finding.fixes for name in _packages_installed_by(fix))]))


def _is_package(subject_parts: list[str], report: Report) -> bool:
    """Return whether a subject is a package: "flash-attn 2.8.3", or a bare name that is not a model's.

    "falcon", for example, is the name of both.
    """
    if len(subject_parts) == 1:
        model = getattr(report.snapshot.model, "value", None)
        return model is None or subject_parts[0] not in (model.model_type, model.source)
    return len(subject_parts) == 2 and subject_parts[1][:1].isdecimal()


def _packages_installed_by(fix: Fix) -> Iterator[str]:
    """Yield the packages that a fix's commands install."""
    if fix.kind != "command":
        return
    for line in fix.text.splitlines():
        for command in INSTALL_COMMAND.findall(line):
            for argument in command.split():
                name = re.match(r"[A-Za-z][\w.-]*(?=$|[\[<>=!~@;])", argument.strip("'\""))
                if name:
                    yield normalise_name(name.group())


def locate_packages(root: Path, names: frozenset[str]) -> dict[str, SourceLocation]:
    """Return where each package is named: in pyproject.toml, or in the first requirements file by name."""
    locations: dict[str, SourceLocation] = {}
    for path in _list_requirements_files(root):
        read = read_pyproject if path.name == PYPROJECT else read_requirements
        for name, line, column in read(read_text(path)):
            if name in names:
                locations.setdefault(name, SourceLocation(path.relative_to(root).as_posix(), line, column))
    return locations


def _list_requirements_files(root: Path) -> list[Path]:
    """Return the regular files that name packages, at the root and in its requirements folder."""
    paths = []
    for folder in (root, root / REQUIREMENTS_FOLDER):
        try:
            with os.scandir(folder) as entries:
                paths += [Path(entry.path) for entry in entries if entry.is_file()]
        except OSError:
            continue
    requirements_files = [path for path in paths if is_requirements_file(path.relative_to(root).as_posix())]
    return sorted(requirements_files, key=lambda path: (path.name != PYPROJECT, len(path.parts), path.name))[:MAX_FILES]
