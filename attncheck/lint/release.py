"""Chooses the release of a framework in whose names a launch is read: named, installed, or the one that fits.

The names that a launch writes date it: each release takes some names and refuses others. If no one says which
release will run, the newest that takes all of them is what the launch was most likely written for; it is a guess, said
as one, and proves nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from attncheck.core.facts import Absent, Known
from attncheck.core.job import Job, UnknownSetting
from attncheck.core.snapshot import Snapshot
from attncheck.lint.fields.releases import parse_release
from attncheck.lint.frameworks import Framework

MAX_READINGS = 8  # each reads the launch once in the names of one release
OLDER_READINGS = 4  # of a launch whose release is guessed


@dataclass(frozen=True)
class ChosenRelease:
    """The release in whose names a launch is read."""

    version: str
    is_known: bool  # installed or named, and in the tables: what they say of it is true of what will run
    is_older: bool = False  # than every release in the tables: they say nothing of it
    remark: str = ""  # on a choice that is not the user's
    list_others: Callable[[], Iterable[str]] = tuple  # that may run instead: what is concluded has to hold in each


def choose_release(
    framework: Framework, read: Callable[[str], Job], snapshot: Snapshot, requested: str, may_be_fork: bool = False
) -> ChosenRelease:
    """Return the release in whose names to read a launch; `read(version)` reads it as one version does.

    `may_be_fork` says that a program of the user's runs, next to any state of the framework's source.
    """
    if not framework.distribution and not requested:
        remark = f"read with the names of {framework.name} {framework.newest}, the newest known release"
        return ChosenRelease(framework.newest, False, remark=remark)
    installed = snapshot.package(framework.distribution) if framework.distribution else Absent()
    version = requested or (installed.value.version if isinstance(installed, Known) else "")
    if version and is_older_than_known(framework, version):
        oldest = framework.releases()[0]
        remark = (
            f"{framework.name} {version} is older than {oldest}, the oldest known release, so its names were not judged"
        )
        return ChosenRelease(version, False, True, remark)
    if version:
        return ChosenRelease(version, True, list_others=lambda: _iter_neighbours(framework, version))
    is_missing = isinstance(installed, Absent)
    state = (
        f"{framework.distribution} is not installed"
        if is_missing
        else f"the version of {framework.distribution} is unknown"
    )
    fitting, misfits = find_fitting_release(framework, read)
    if misfits:
        remark = f"{state}, and no single release has all names: read as {fitting} (--framework-version)"
    elif not framework.releases():
        remark = f"{state}: read as written, with the defaults of {fitting}"
    elif fitting == framework.newest:
        remark = f"{state}: read with the names of {fitting}, the newest known"
    else:
        remark = f"{state}: read as {fitting}, the newest that has all of its names (--framework-version)"
    return ChosenRelease(
        fitting,
        False,
        remark=remark,
        list_others=lambda: _iter_older_fits(framework, read, fitting, misfits, may_be_fork),
    )


def _iter_neighbours(framework: Framework, version: str) -> Iterator[str]:
    """Yield the releases between which a tree of a development version was cut, none of a release.

    "0.2.0.dev" of verl lasted until after 0.3.0: what changed in one of the next releases may be in the tree or not.
    """
    try:
        parsed = Version(version)
    except InvalidVersion:
        return
    if parsed.is_devrelease:
        older = [release for release in framework.releases() if Version(release) < parsed]
        newer = [release for release in framework.releases() if Version(release) > parsed]
        yield from (*older[-1:], *newer[:3])


def _iter_older_fits(
    framework: Framework, read: Callable[[str], Job], version: str, misfits: int, may_be_fork: bool
) -> Iterator[str]:
    """Yield some releases before a guessed one that take as many names, and for a fork the last that takes fewer.

    What is concluded of a launch has to hold in each, for any of them may be what runs. A tree between the last that
    takes fewer and the next, such as a fork or a pinned commit, has all names too.
    """
    older = [release for release in framework.releases() if Version(release) < Version(version)]

    def is_fit(index: int) -> bool:
        return len(_list_dated(read(older[index]))) <= misfits

    first_fit, last_misfit = len(older), -1
    for index in dict.fromkeys(
        len(older) * part // OLDER_READINGS for part in reversed(range(OLDER_READINGS)) if older
    ):
        if not is_fit(index):
            last_misfit = index
            break
        first_fit = index
        yield older[index]
    while may_be_fork and last_misfit >= 0 and first_fit - last_misfit > 1:
        middle = (first_fit + last_misfit) // 2
        first_fit, last_misfit = (middle, last_misfit) if is_fit(middle) else (first_fit, middle)
    if last_misfit >= 0 and may_be_fork:
        yield older[last_misfit]


def _list_dated(job: Job) -> list[UnknownSetting]:
    """Return the unknown settings of a job that some other release knows."""
    return [unknown for unknown in job.unknown_settings if unknown.now or unknown.since]


def find_fitting_release(framework: Framework, read: Callable[[str], Job]) -> tuple[str, int]:
    """Return the newest release that takes all names of a launch, else the best, and how many it does not take.

    Names that no release ever had tell nothing and do not count. From the newest release it goes back to the one
    before the first of the names went, until nothing is left or a name is younger than the release.
    """
    tried: dict[str, int] = {}
    version = framework.newest
    while version and version not in tried and len(tried) < MAX_READINGS:
        dated = _list_dated(read(version))
        tried[version] = len(dated)
        if not dated:
            break
        version = _find_release_before(framework, version, dated)
    best = min(tried, key=lambda name: (tried[name], list(tried).index(name)))
    return best, tried[best]


def _find_release_before(framework: Framework, version: str, unknown_settings: Sequence[UnknownSetting]) -> str:
    """Return the newest release that still had the first of the names that went before `version`, "" for none.

    Names that went from another package, such as transformers, went with one of its releases: the minor release before
    `version` is the next to try.
    """
    is_own = [unknown.since.rpartition(" ")[0] in ("", framework.distribution) for unknown in unknown_settings]
    changes = [_parse_change(unknown.since) for unknown, own in zip(unknown_settings, is_own) if own]
    removals = [change for change in changes if change is not None and change <= Version(version)]
    if not all(is_own):
        removals.append(Version(".".join(map(str, Version(version).release[:2]))))
    older = [release for release in framework.releases() if removals and Version(release) < min(removals)]
    return older[-1] if older else ""


def _parse_change(since: str) -> Version | None:
    """Return the release of "0.6.0" or "trl 1.5.0" in which a name went or came, None if there is none."""
    try:
        return Version(since.rpartition(" ")[2])
    except InvalidVersion:
        return None


def is_older_than_known(framework: Framework, version: str) -> bool:
    """Return whether a version is of a minor release older than every one whose names are known."""
    releases = framework.releases()
    try:
        return bool(releases) and parse_release(version).release[:2] < Version(releases[0]).release[:2]
    except InvalidVersion:
        return False
