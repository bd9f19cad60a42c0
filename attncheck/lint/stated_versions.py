"""The versions that a source tree states: in its packages, lock files, requirements, setup.py and scripts with pip.

Its launches are judged by them if neither `--python` names an environment nor `--target` a version. What the launch
itself installs comes first, then the folder nearest to it, and within a folder the package's own source, pins, and what
setup scripts install. Nothing is run.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from attncheck.core.io.errors import AttncheckError, BadUsage
from attncheck.core.io.files import read_text
from attncheck.core.launch import COMMAND, Source
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.knowledge.frameworks import RELEVANT_DISTRIBUTIONS
from attncheck.doctor.queries.requirements import canonical_name
from attncheck.doctor.target import with_version
from attncheck.doctor.target_files import read_package_list
from attncheck.doctor.target_files.collector import NO_VERSION, find_pin
from attncheck.lint.programs.places import REPOSITORY_MARKS, folders_above, list_checkouts

# The files in which the packages of frameworks state their version, relative to the folder that holds the package.
OWN_FILES: Mapping[str, tuple[str, ...]] = {
    "verl": ("verl/version/version",),
    "trl": ("trl/version.py", "trl/__init__.py"),
    "llamafactory": ("llamafactory/extras/env.py", "llamafactory/__init__.py", "llmtuner/__init__.py"),
    "ms-swift": ("swift/version.py",),
    "openrlhf": ("openrlhf/version.py", "version.txt"),
    "axolotl": ("axolotl/__init__.py",),
    "nemo-rl": ("nemo_rl/package_info.py",),
    "megatron-core": ("megatron/core/package_info.py",),
}
STATED_DISTRIBUTIONS = RELEVANT_DISTRIBUTIONS | {"slime", "nemo-rl", "megatron-core", "areal", "torchtitan", "prime-rl"}
STATED = re.compile(r"^(?:__version__|VERSION)\s*=\s*[\"']([^\"']+)", re.MULTILINE)
# __version__ = VERSION, with `from .cli import VERSION`
STATED_ELSEWHERE = re.compile(r"^from \.(\w[\w.]*) import (?:.*\W)?VERSION\b", re.MULTILINE)
# version = { file = "VERSION" }
STATED_FILE = re.compile(r"^version\s*=\s*\{\s*file\s*=\s*\[?\s*[\"']([\w./-]+)[\"']", re.MULTILINE)
PARTS = re.compile(r"^(?:MAJOR|MINOR|PATCH|PRE_RELEASE)\s*=\s*[\"']?(\w*)", re.MULTILINE)  # NVIDIA's package_info.py
REQUIREMENT = re.compile(r"[\"']([A-Za-z][\w.-]*)\s*(?:\[[^\]]*\])?\s*((?:[<>=!~]=?=?\s*\d[\w.*+-]*[\s,]*)+)[\"';]")
# setup(name="slime", version="0.2.2") and the [project] of a pyproject.toml
OWN_NAME = re.compile(r"^\s*name\s*=\s*[\"']([\w.-]+)[\"']", re.MULTILINE)
PROJECT = re.compile(r"^\[project\]$(.*?)(?=^\[|\Z)", re.MULTILINE | re.DOTALL)
EXTRAS = re.compile(
    r"^\[(?:project\.optional-dependencies|dependency-groups)\]$(.*?)(?=^\[|\Z)", re.MULTILINE | re.DOTALL
)
OWN_VERSION = re.compile(r"^\s*version\s*=\s*[\"']([\w.+-]+)[\"']", re.MULTILINE)
# A pin in a conda environment or an image: "- transformers==4.48.0", "- pytorch=2.5.1", "pip install trl==0.14".
LINE_PIN = re.compile(r"(?:^|[\s\"'])([A-Za-z][\w.-]*)(?:\[[^\]]*\])?={1,2}(\d[\w.]*)(?=[\s\"'=]|$)", re.MULTILINE)
COMMENT_LINE = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
# The arguments of `pip install`, which may continue on the following lines.
INSTALLS = re.compile(r"\bpip3?[ \t]+install[ \t]((?:[^\n\\;&|#`]|\\.|\\\n)*)", re.MULTILINE)
NOT_RUN = re.compile(r"^[ \t]*(?:#|echo\b).*$", re.MULTILINE)
# pip install git+https://github.com/huggingface/trl.git@v0.18.0
FROM_SOURCE = re.compile(r"git\+\w+://\S*?/([\w.-]+?)(?:\.git)?(?:@v?([^\s\"'#]*))?(?=[\s\"'#]|$)")
UPGRADE = re.compile(r"(?:^|\s)(?:-U|--upgrade)(?=\s|$)")
PLAIN_NAME = re.compile(r"(?:^|(?<=\s))[\"']?([A-Za-z][\w.-]*)(?:\[[^\]]*\])?[\"']?(?=\s|$)")
INSTALLING_FILES = ("Makefile*", "Dockerfile*", "docker/Dockerfile*", "README*.md", ".github/workflows/*.y*ml")
MAX_INSTALLING_FILES = 20
SETUP_SCRIPT = re.compile(r"(?:^|[_.-])(?:setup|install\w*|env|environment)(?:[_.-].*)?\.sh", re.IGNORECASE)
SCRIPT_FOLDERS = (".", "scripts")
LINE_FILES = ("environment.yml", "environment.yaml", "Dockerfile", "docker/Dockerfile")
LOCKED = re.compile(r'^\[\[package\]\]\r?\nname = "([\w.-]+)"\r?\nversion = "([\w.+]+)"\r?$', re.MULTILINE)
LOCK_FILES = ("uv.lock", "poetry.lock", "pdm.lock")
CONDA_NAMES = {"pytorch": "torch"}
CONDA_LIST = re.compile(r"^dependencies:[ \t]*\r?$", re.MULTILINE)  # "env.yml", "swift.yml": a conda environment
OTHER_LISTS = "requirements[-_]*.txt"  # for one purpose each: only what all of them state alike counts
LISTS = ("pylock.toml", "uv.lock", "requirements.txt", "pyproject.toml")


@dataclass(frozen=True)
class StatedVersions:
    """The versions that a tree states: for each distribution its version or the allowed ones, with the file."""

    versions: Mapping[str, str] = field(default_factory=dict)
    allowed: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)  # distribution -> file

    def without_named(self, snapshot: Snapshot) -> "StatedVersions":
        """Return the stated versions of distributions that a target does not name."""
        named = {item.name for item in snapshot.distributions if not item.location} | {*snapshot.gaps.not_installed}
        return replace(self, files={name: file for name, file in self.files.items() if name not in named})

    def describe(self, *names: str) -> tuple[str, ...]:
        """Return the files that state the versions of distributions, each with its versions if one is a range."""
        stated: dict[str, dict[str, str]] = {}
        for name in names:
            version = self.allowed.get(name) or self.versions.get(name, "")
            if name in self.files and version != NO_VERSION and not is_open(version):
                stated.setdefault(self.files[name], {})[name] = version
        return tuple(
            f"{file} ({'; '.join(f'{name} {text}' for name, text in rows.items())})"
            if rows.keys() & self.allowed
            else file
            for file, rows in stated.items()
        )

    def list_ranges(self) -> tuple[str, ...]:
        """Return the ranges of versions that the tree allows, as requirements."""
        ranges = ((name, text) for name, text in self.allowed.items() if name in self.files and not is_open(text))
        return tuple(f"{name}{text}" for name, text in ranges)

    def leave_open(self, name: str, reason: str) -> "StatedVersions":
        """Return the versions without a pin that something in the tree contradicts, which is the `reason`."""
        versions = {other: version for other, version in self.versions.items() if other != name}
        text = f"{self.files[name]} pins {self.versions[name]}, but {reason}"
        return replace(self, versions=versions, allowed={**self.allowed, name: text})

    def apply(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with the stated versions."""
        for name in self.files:
            snapshot = with_version(snapshot, name, self.versions.get(name, ""), self.allowed.get(name, ""))
        return snapshot


def is_open(allowed: str) -> bool:
    """Return whether a text says why a version is unknown, and is no range of versions."""
    return allowed[:1].isalpha()


def is_own_source(distribution: str, file: str) -> bool:
    """Return whether a file that states a version is part of the package's own source, not a pin elsewhere."""
    return any(file.endswith(path) for path in OWN_FILES.get(distribution, ()))


def find_stated_versions(source: Source, program: Path | None = None) -> StatedVersions:
    """Return the versions that a launch's tree states, from its folder up to its repository or the current folder.

    The folders above its `program` count too, before those that contain both. A pin counts for nothing if a folder at
    least as near installs another version of the package.
    """
    here = Path.cwd() if source.name in (COMMAND, "-") else Path(source.name).absolute().parent
    folders = _list_folders(here)
    if program is not None and any(folder in folders for folder in program.parents):
        above = (*folders, *here.parents)  # which may be more than the folders that count
        others = [folder for folder in _list_folders(program.parent) if folder not in above]
        shared = next(index for index, folder in enumerate(folders) if folder in program.parents)
        folders[shared:shared] = others
    own = _list_installed({source.name: source.text} if source.kind == "shell" else {})
    checkouts = [row for folder in folders for row in _list_checkouts(folder)]  # installed in place, if nothing else is
    stated = _join_rows((own, *map(_list_folder, folders), checkouts))
    nearest = {row[0]: len(folders) for row in checkouts}
    nearest |= dict(reversed([(row[0], index) for index, folder in enumerate(folders) for row in _list_folder(folder)]))
    certain = {row[0] for row in own} | {row[0] for folder in folders for row in _list_own(folder)}
    for index, folder in enumerate(folders):
        for name, version, file in _list_installs(folder):
            if (
                name in stated.versions.keys() - certain
                and index <= nearest[name]
                and not _is_same(version, stated.versions[name])
            ):
                stated = stated.leave_open(name, f"{file} installs another version")
    return stated


def _list_folders(here: Path) -> list[Path]:
    """Return a folder and those above it, up to its repository or the current folder."""
    folders = list(folders_above(here))
    if any((folders[-1] / mark).exists() for mark in REPOSITORY_MARKS):
        return folders
    return [folder for folder in folders if Path.cwd() in (folder, *folder.parents)] or [here]


def _join_rows(parts: Iterable[Iterable[tuple[str, str, str, str]]]) -> StatedVersions:
    versions: dict[str, str] = {}
    allowed: dict[str, str] = {}
    files: dict[str, str] = {}
    for rows in parts:
        for name, version, range_allowed, file in rows:
            if name not in files:
                files[name] = file
                versions |= {name: version} if version else {}
                allowed |= {name: range_allowed} if range_allowed else {}
    return StatedVersions(versions, allowed, files)


@lru_cache(maxsize=1024)
def _list_folder(folder: Path) -> tuple[tuple[str, str, str, str], ...]:
    """Return each distribution that a folder states: its name, its version, the versions allowed, and the file."""
    installed = _list_installed(_find_setup_scripts(folder))
    listed = _drop_other_environments([row for row in _iter_listed(folder) if row[0] in STATED_DISTRIBUTIONS])
    rows = [row for row in (*_list_own(folder), *listed, *installed) if row[0] in STATED_DISTRIBUTIONS]
    return tuple(sorted(rows, key=lambda row: (not row[1], row[2] == NO_VERSION)))  # a pin, then a range


def _drop_other_environments(rows: list[tuple[str, str, str, str]]) -> list[tuple[str, str, str, str]]:
    """Return the rows without files that contradict a pin of an earlier file: their other pins are not next to it."""
    pins = {row[0]: row[1] for row in reversed(rows) if row[1]}
    pinned = ((row[3], row[1], pins[row[0]]) for row in rows if row[1])
    others = {file for file, pin, first in pinned if not (_is_same(pin, first) or first.startswith(f"{pin}."))}
    return [row for row in rows if row[3] not in others]


@lru_cache(maxsize=1024)
def _list_own(folder: Path) -> tuple[tuple[str, str, str, str], ...]:
    return tuple(_iter_own(folder))


@lru_cache(maxsize=1024)
def _list_checkouts(folder: Path) -> list[tuple[str, str, str, str]]:
    """Return what the checkouts of packages in a folder state, such as verl-0.4.0/verl/version/version."""
    packages = {name: paths[0].partition("/")[0] for name, paths in OWN_FILES.items()}
    places = ((name, place) for name, package in packages.items() for place in list_checkouts(folder, package))
    rows = ((place, row) for name, place in places for row in _iter_own(place) if row[0] == name)
    return [(row[0], row[1], "", f"{place.name}/{row[3]}") for place, row in rows]


def _iter_own(folder: Path) -> Iterator[tuple[str, str, str, str]]:
    for name, paths in OWN_FILES.items():
        for path in (place for base in (folder, folder / "src") for place in (base / text for text in paths)):
            text = read_text(path) if path.suffix != ".txt" or (path.parent / name).is_dir() else ""
            elsewhere = STATED_ELSEWHERE.search(text)
            text += "\n" + read_text(path.parent / f"{elsewhere[1].replace('.', '/')}.py") if elsewhere else ""
            match, parts = STATED.search(text), PARTS.findall(text)
            whole = match[1] if match else text.strip() if path.suffix in ("", ".txt") else ""
            version = ".".join(parts[:3]) + "".join(parts[3:]) if parts else whole
            if _is_version(version):
                yield name, version, "", str(path.relative_to(folder))
    for file in ("setup.py", "pyproject.toml"):
        whole = read_text(folder / file)
        text = whole if file == "setup.py" else "".join(PROJECT.findall(whole))
        named, stated, elsewhere = OWN_NAME.search(text), OWN_VERSION.search(text), STATED_FILE.search(whole)
        version = stated[1] if stated else read_text(folder / elsewhere[1]).strip() if elsewhere else ""
        if named and _is_version(version):
            yield canonical_name(named[1]), version, "", file


def _iter_listed(folder: Path) -> Iterator[tuple[str, str, str, str]]:
    for name in LISTS:
        yield from _read_list(folder, name) if (folder / name).is_file() else ()
    others = [row for path in sorted(folder.glob(OTHER_LISTS)) for row in _read_list(folder, path.name)]
    project = COMMENT_LINE.sub("", read_text(folder / "pyproject.toml"))
    others += _read_requirements("".join(EXTRAS.findall(project)), "pyproject.toml (extras)")
    paths = sorted(folder.glob("*.y*ml"))[:MAX_INSTALLING_FILES]
    others += [row for path in paths if CONDA_LIST.search(read_text(path)) for row in _read_lines(folder, path.name)]
    yield from (row for row in others if len({other[1:3] for other in others if other[0] == row[0]}) == 1)
    for file in LOCK_FILES:  # also what only extras take, if it has one version
        locked = LOCKED.findall(read_text(folder / file))
        counts = Counter(name for name, _ in locked)
        yield from ((name, pin, "", file) for name, pin in locked if counts[name] == 1)
    setup = COMMENT_LINE.sub("", read_text(folder / "setup.py"))
    for name, version in (match.groups("") for match in FROM_SOURCE.finditer(setup)):  # "trl @ git+https://…"
        pin = version if _is_version(version) else ""
        yield canonical_name(name), pin, "" if pin else NO_VERSION, "setup.py"
    yield from _read_requirements(setup, "setup.py")
    for file in LINE_FILES:
        yield from _read_lines(folder, file)


def _read_lines(folder: Path, file: str) -> Iterator[tuple[str, str, str, str]]:
    for match in LINE_PIN.finditer(COMMENT_LINE.sub("", read_text(folder / file))):
        if _is_version(match[2]):
            name = canonical_name(match[1])
            yield CONDA_NAMES.get(name, name), match[2], "", file


def _read_list(folder: Path, name: str) -> Iterator[tuple[str, str, str, str]]:
    try:
        packages = read_package_list(str(folder / name))
    except (AttncheckError, BadUsage):
        return
    for package in dict.fromkeys((*packages.versions, *packages.allowed)):
        yield package, packages.versions.get(package, ""), packages.allowed.get(package, ""), name


def _list_installed(scripts: Mapping[str, str]) -> list[tuple[str, str, str, str]]:
    """Return what scripts pass to `pip install`, a pin or a range, without packages for which they differ."""
    stated: dict[str, set[tuple[str, str, str, str]]] = {}
    for file, text in scripts.items():
        rows = [(name, version, "", file) for name, version in _iter_installs(text)]
        words = " ".join(INSTALLS.findall(NOT_RUN.sub("", text)))
        for row in (*rows, *_read_requirements(words, file)):
            stated.setdefault(row[0], set()).add(row)
    return [min(rows) for rows in stated.values() if len({row[1:3] for row in rows}) == 1 and any(min(rows)[1:3])]


def _read_requirements(text: str, file: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield the requirements in quotes: "trl>=0.14"."""
    for match in REQUIREMENT.finditer(text):
        with suppress(InvalidSpecifier):
            pin = find_pin(SpecifierSet(match[2]))
            yield canonical_name(match[1]), pin, "" if pin else match[2].strip(), file


def _iter_installs(text: str, with_upgrades: bool = True) -> Iterator[tuple[str, str]]:
    """Yield each package that the text passes to `pip install` with its version; "" if that is not a release's.

    A source repository without a release's tag may be at any state, and `--upgrade` installs the newest of the day.
    """
    for words in INSTALLS.findall(NOT_RUN.sub("", text)):
        rows = [match.groups() for match in LINE_PIN.finditer(words)]
        rows += [(match[1], match[2] or "") for match in FROM_SOURCE.finditer(words)]
        rows += [(match[1], "") for match in PLAIN_NAME.finditer(words) if with_upgrades and UPGRADE.search(words)]
        for name, version in rows:
            if canonical_name(name) in STATED_DISTRIBUTIONS:
                yield canonical_name(name), version if _is_version(version) else ""


@lru_cache(maxsize=1024)
def _list_installs(folder: Path) -> tuple[tuple[str, str, str], ...]:
    """Return what the files of a folder that install packages pass to `pip install`: name, version and file."""
    paths = [path for pattern in INSTALLING_FILES for path in sorted(folder.glob(pattern)) if path.is_file()]
    texts = {str(path.relative_to(folder)): read_text(path) for path in paths[:MAX_INSTALLING_FILES]}
    return tuple(
        (*row, file)
        for file, text in (texts | _find_setup_scripts(folder)).items()
        for row in _iter_installs(text, with_upgrades=not file.startswith("README"))  # advice, not what was done
    )


def _find_setup_scripts(folder: Path) -> dict[str, str]:
    """Return the texts of a folder's scripts that set up an environment, by file."""
    paths = (path for place in SCRIPT_FOLDERS for path in sorted((folder / place).glob("*.sh")))
    return {str(path.relative_to(folder)): read_text(path) for path in paths if SETUP_SCRIPT.search(path.name)}


def _is_same(first: str, second: str) -> bool:
    """Return whether two texts are the same version; "" is none."""
    return _is_version(first) and _is_version(second) and Version(first).public == Version(second).public


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True
