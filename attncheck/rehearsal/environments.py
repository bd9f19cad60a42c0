"""Chooses, among several environments, the one whose releases fit a launch best, as lint reads the launch in each.

The frameworks decide first, unless another environment is a major release closer to the launch's tree. Then come the
packages and releases that the tree states, the names and values that an environment refuses, and the newest release.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from attncheck.core.environment import Selection
from attncheck.core.facts import Known
from attncheck.core.io.errors import Unanswered
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.probes.collect import collect_snapshot
from attncheck.doctor.probes.interpreter import Interpreter
from attncheck.lint.stated_versions import find_stated_versions, is_own_source
from attncheck.rehearsal.missing import TRAINERS, list_differing
from attncheck.rehearsal.reading import Request, read_launches_of

VARIABLE = "ATTNCHECK_REHEARSAL_PYTHONS"
STATED_VERSION = re.compile(r"(?<!!)=?=\s*v?(\d[\w.]*)|[<>~]=?\s*(\d[\w.]*)")


@dataclass(frozen=True, order=True)
class Fit:
    """How far an environment's releases are from those of launches; the smallest is the best."""

    absent: int  # frameworks of the launches that are neither installed nor next to them
    majors: int  # major releases between the stated and the installed ones
    foreign: int  # launches without an installed framework, whose requirements a fork next to a launch shares
    missing: int  # trainers' packages that the launches' trees state
    distance: int  # between the stated and the installed releases: 100 for a major, 1 for a minor release
    refused: int  # names and values that the installed releases refuse
    age: tuple[int, ...] = ()  # of each framework: how far from a fork's own release, else negated: the newest is first
    strain: int = 0  # major releases of transformers since the one that the frameworks name

    @property
    def text(self) -> str:
        """The fit in words."""
        return (
            f"{self.absent + self.missing} packages missing, distance {self.distance} from the stated releases, "
            f"{self.refused} settings refused"
        )


def list_environments(python: str | None) -> list[str]:
    """Return the interpreters of a folder of environments, named by `--python` or else by the variable; or none."""
    folder = python or os.environ.get(VARIABLE, "")
    is_one = not os.path.isdir(folder) or os.path.exists(os.path.join(folder, "bin", "python"))
    return [] if is_one else sorted(str(path) for path in Path(folder).glob("*/bin/python"))


def select(pythons: list[str], request: Request, seconds: float) -> Interpreter:
    """Return the interpreter whose releases fit the launches best. Raises `Unanswered` if none can be read."""
    fits: dict[str, Fit] = {}
    for python in pythons:
        try:
            fits[python] = measure(collect_snapshot(python, ("static",), seconds=seconds), request)
        except Unanswered:
            continue
    if not fits:
        raise Unanswered(f"none of these interpreters could be examined: {', '.join(pythons)}")
    best = min(fits, key=lambda python: fits[python])
    others = (f"{python}: {fit.text}" for python, fit in fits.items() if python != best)
    return Interpreter(best, Selection("fit", (f"it has {fits[best].text}", *others)))


def measure(snapshot: Snapshot, request: Request) -> Fit:
    """Return how an environment's releases fit the launches of a request; a fork next to a launch is its framework."""
    absent, missing, frameworks, differing, ages, foreign, refused = set(), set(), set(), set(), [], 0, 0
    for source in request.sources:
        stated = find_stated_versions(source)
        own = {name for name, file in stated.files.items() if is_own_source(name, file)}
        differing |= {row for row in list_differing(snapshot, source) if row.name not in own}
        for read in read_launches_of(snapshot, request, source):
            framework = read.recognised.framework.distribution
            frameworks.add(framework)
            absent |= {name for name in {framework} - {"", *own} if not snapshot.lists(name)}
            needed = (TRAINERS & stated.files.keys()) - own - absent
            missing |= {name for name in needed if not snapshot.lists(name)}
            foreign += bool(framework) and not snapshot.lists(framework)
            version = snapshot.version(framework)
            if isinstance(version, Known):
                vendored = _read_number(stated.versions.get(framework, "0")) if framework in own else 0
                number = _read_number(str(version.value))
                ages += [abs(number - vendored) if vendored else -number]
            refused += len(read.job.unknown_settings)
            refused += sum(problem.consequence == "refuses" for problem in read.job.problems)
    distances = [_measure_distance(row.wanted, row.installed) for row in differing]
    majors, distance = (sum(numbers) for numbers in zip(*distances)) if distances else (0, 0)
    strain = sum(_measure_strain(snapshot, framework) for framework in frameworks)
    return Fit(len(absent), majors, foreign, len(missing), distance, refused, tuple(ages), strain)


def _measure_strain(snapshot: Snapshot, framework: str) -> int:
    """Return the major releases between the installed transformers and the nearest one that a framework names.

    trl 0.24.0 requires transformers>=4.56.1, and with 5.x its import_utils.py takes every package as installed.
    """
    installed = snapshot.version("transformers")
    lines = (line for own in snapshot.distributions if own.name == framework for line in own.requires)
    wanted = (line.partition(";")[0] for line in lines if re.match(r"transformers\b(?!-)", line))
    return sum(_measure_distance(line, str(installed.value))[0] for line in wanted if isinstance(installed, Known))


def _measure_distance(wanted: str, installed: str) -> tuple[int, int]:
    """Return the major releases and the distance between a version and the nearest one that a specifier names."""
    own = _read_number(installed)
    named = [_read_number(match[1] or match[2]) for match in STATED_VERSION.finditer(wanted)]
    nearest = min(named, key=lambda number: abs(number - own), default=own)
    return abs(nearest // 100 - own // 100), abs(nearest - own)


def _read_number(version: str) -> int:
    release = (*Version(version.rstrip(".")).release, 0)
    return release[0] * 100 + release[1]
