"""The packages that a launch lacks, all at once, and the command that installs them; and other versions than it states.

A module's name is no proof of a distribution's, and anyone may publish a package of any name. So a name is only
installed if the launch's project or an installed package requires it, or if the error itself names the distribution.
"""

import contextlib
import itertools
import os
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from attncheck.core.facts import Known
from attncheck.core.findings import Fix
from attncheck.core.io.files import CannotRead, read_bounded
from attncheck.core.launch import Launch, Source
from attncheck.core.lists import group_values
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.fixes import install
from attncheck.doctor.knowledge.frameworks import FRAMEWORK_NAMES
from attncheck.doctor.rules.transformers.transformers_import_broken import DISTRIBUTION_OF
from attncheck.lint.launches import CONFIG_SUFFIXES
from attncheck.lint.stated_versions import find_stated_versions, is_own_source
from attncheck.rehearsal.columns import find_here

MODULE = re.compile(r"^([a-z]\w*) is not installed, so the script|No module named '(\w+)", re.MULTILINE)
DISTRIBUTION = re.compile(r"The '([\w-]+)' distribution was not found|pip install (?:-U |--upgrade )?([A-Za-z][\w-]*)")
NO_FILE = re.compile(
    r"No such file or directory: '([^']+)'|\b(?:files?|paths?)\b.*not (?:found|exist)[^:]*: *\[?'?([^'\s]+)"
)
# CPython 3.11 runpy.py (`_get_module_details`): `python -m package.module`.
NO_PROGRAM = re.compile(r"Error while finding module specification for '(\w+)[\w.]*' \(ModuleNotFoundError: No module")
LISTS = ("requirements*.txt", "pyproject.toml", "setup.py", "setup.cfg", "environment*.y*ml")
DATA_ERROR = re.compile(r"^(?:Key|Index|Type|Value|Attribute|UnboundLocal)Error\b", re.MULTILINE)  # of a row's reader
TRAINERS = frozenset((*FRAMEWORK_NAMES, "transformers", "peft", "accelerate", "datasets"))
MAX_BYTES = 1 << 20  # of a list
REQUIREMENT = re.compile(r"^[\s\"'-]*([A-Za-z][\w.-]*)((?:\[[\w,-]+\])?(?:[<>=!~]=?[^\s\"';#]*)?)", re.MULTILINE)


def list_installs(
    snapshot: Snapshot, folders: Collection[str], text: str, stated: Collection["Differing"] = ()
) -> tuple[Fix, ...]:
    """Return the command that installs the packages which a launch's output and remarks report as missing.

    It also installs the `stated` versions, without the packages whose own source is in the launch's tree.
    """
    own = {_normalise(name): f"{name}{rest}" for name, rest in _iter_own_requirements(folders)}
    others = {_normalise(line) for distribution in snapshot.distributions for line in distribution.requires}
    names = {_normalise(match[1] or match[2]): "" for match in DISTRIBUTION.finditer(text)}
    for match in MODULE.finditer(text):
        module = match[1] or match[2]
        name = _normalise(DISTRIBUTION_OF.get(module, module))
        if name in own or name in others:
            names[name] = ""
    missing = [own.get(name, name) for name in names if not snapshot.lists(name)]
    older = [f"{row.name}{row.wanted}" for row in stated if not is_own_source(row.name, row.file)]
    title = f"install {' '.join((*missing, *older))} in a new environment, which they may need" if older else ""
    return (install.install_packages(snapshot, *missing, *older, title=title),) if missing or older else ()


def list_absent(launch: Launch) -> list[str]:
    """Return the configuration files that options of a launch name and that are not found."""
    parts = itertools.pairwise([part for word in launch.words for part in word.text.split("=", 1)])
    paths = [path for option, path in parts if option.startswith("--config") and path.endswith(CONFIG_SUFFIXES)]
    return [
        path for path in paths if not (os.path.exists(os.path.join(launch.folder, path)) or find_here(launch, path))
    ]


def list_advice(text: str, command: str, absent: Iterable[str] = ()) -> Iterator[Fix]:
    """Yield what a launch that ended before its first step needs, by its error: a file, or other rows.

    `command` rehearses it with the user's rows, "" if that is not possible; `absent` are files that it names.
    """
    match = NO_FILE.search(text)
    if path := next(filter(None, match.groups() if match else absent), ""):
        yield Fix(f"create {path}, or name another file in the launch, and rehearse it again", "advice", "")
    elif match := NO_PROGRAM.search(text):
        yield Fix(
            f"install {match[1]}, or put its source into the launch's folder, and rehearse it again", "advice", ""
        )
    elif command and DATA_ERROR.search(text):
        yield Fix("the script may expect rows of another kind than the synthetic ones", "advice", command)


@dataclass(frozen=True)
class Differing:
    """A trainer's package of which another version is installed than a launch's tree states."""

    name: str
    wanted: str  # a specifier
    installed: str
    file: str  # that states it


def list_differing(snapshot: Snapshot, source: Source) -> list[Differing]:
    """Return the trainers' packages whose installed version is not one that a launch's tree states."""
    stated = find_stated_versions(source)
    differing = []
    for name in sorted(TRAINERS & stated.files.keys()):
        installed = snapshot.version(name)
        wanted = stated.allowed.get(name) or f"=={stated.versions[name]}"
        with contextlib.suppress(InvalidSpecifier):
            if isinstance(installed, Known) and not SpecifierSet(wanted).contains(installed.value, prereleases=True):
                differing.append(Differing(name, wanted, str(installed.value), stated.files[name]))
    return differing


def list_stated(snapshot: Snapshot, source: Source) -> tuple[str, ...]:
    """Return a line per file of a launch's tree that states other versions than the installed ones."""
    rows = group_values(
        (row.file, (f"{row.name}{row.wanted}", f"{row.name} {row.installed}"))
        for row in list_differing(snapshot, source)
    )
    texts = ((file, *(", ".join(texts) for texts in zip(*pairs))) for file, pairs in rows.items())
    return tuple(f"{file} requires {wanted}; installed: {installed}" for file, wanted, installed in texts)


def _iter_own_requirements(folders: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the names in a project's lists of packages, each with its version."""
    for folder in folders:
        for path in (path for pattern in LISTS for path in sorted(Path(folder).glob(pattern))):
            with contextlib.suppress(CannotRead):
                yield from REQUIREMENT.findall(read_bounded(path, MAX_BYTES).decode(errors="replace"))


def _normalise(name: str) -> str:
    """Return a distribution's name in its normal form, without versions and extras."""
    return canonicalize_name(re.split(r"[^\w.-]", name, maxsplit=1)[0])
