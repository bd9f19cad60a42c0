"""Chooses the release of a framework that is used to read a launch: requested, installed, or the best fit.

The names in a launch date it, because each release takes some names and refuses others. If the release that will run is
unknown, the launch was most likely written for the newest release that takes all its names. This is a guess, is
reported as one, and proves nothing. A range of releases that is stated, such as ">=0.14,<0.16", limits the guess, and
so do the other packages' versions, which many releases refuse. These may be another environment's: what they exclude
may still run.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from packaging.version import InvalidVersion, Version

from attncheck.core.facts import Absent, Known, Unreadable
from attncheck.core.job import Job, UnknownSetting
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.queries.requirements import is_version_allowed, parse_requirement
from attncheck.lint.fields.releases import list_allowed, list_releases, parse_release, parse_version
from attncheck.lint.frameworks import Framework
from attncheck.lint.open_ends import CHOOSING_FRAMEWORKS

MAX_READINGS = 8  # each reads the launch once with the names of one release
OLDER_READINGS = 4  # for a launch whose release is guessed
Misfits = tuple[int, int]  # the names that another release has, and the values that the release refuses


class ChosenRelease(NamedTuple):
    """The release whose names are used to read a launch."""

    version: str
    is_known: bool  # installed or requested, and in the tables, so that they describe the code that will run
    is_older: bool = False  # older than every release in the tables, which therefore do not describe it
    remark: str = ""  # about a choice that is not the user's
    list_others: Callable[[], Iterable[str]] = tuple  # releases that may run instead: a conclusion must hold in each
    may_be_older: Callable[[], bool] = bool  # whether nothing dates the launch after the oldest known release


def choose_release(
    framework: Framework,
    read: Callable[[str], Job],
    snapshot: Snapshot,
    requested: str,
    may_be_met: Callable[[str], bool],
    may_be_fork: bool = False,
) -> ChosenRelease:
    """Return the release as which to read a launch; `read(version)` reads the launch as that version does.

    `may_be_met(requirement)` returns whether the snapshot may meet a requirement.
    `may_be_fork`: the user's own program runs, and any state of the framework's source may be next to it.
    """
    if not framework.distribution and not requested:
        remark = f"options were read as those of {framework.name} {framework.newest}, the newest known release"
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
    parsed = snapshot.version(framework.distribution) if isinstance(installed, Known) else None
    state = f"the version of {framework.distribution} is unknown"
    state = parsed.reason if isinstance(parsed, Unreadable) else state
    if isinstance(installed, Absent):
        state = f"{framework.distribution} is not installed"
    stated = installed.value.allowed if isinstance(installed, Known) else ""
    allowed = list_allowed(stated, framework.releases())
    if allowed is not None:
        state = f"any {framework.distribution} {stated} may run"
        if len(allowed) < 2:
            chosen = next(iter(allowed), framework.releases()[0])
            remark = f"options were read as those of {chosen}" if allowed else "its names are not known"
            return ChosenRelease(chosen, bool(allowed), not allowed, f"{state}: {remark}")
        framework = replace(framework, releases=lambda: allowed, newest=allowed[-1])
    oldest_known = framework.releases()[:1]
    is_elsewhere = isinstance(installed, Absent)  # this environment does not train it: its versions prove nothing
    releases = () if is_elsewhere else framework.releases()
    installable = tuple(release for release in releases if all(map(may_be_met, framework.requires(release))))
    is_limited, any_release = bool(installable) and installable[-1] != framework.newest, framework
    if is_limited:
        state += ", and the versions of other packages exclude newer releases"
    if installable:
        framework = replace(framework, releases=lambda: installable, newest=installable[-1])
    fitting, misfits = find_fitting_release(framework, read)
    if any(misfits):
        remark = f"{state}, and no single release has all names and values: read as {fitting} (--framework-version)"
    elif not framework.releases():
        remark = f"{state}: read as written, with the defaults of {fitting}"
    elif fitting == framework.newest:
        remark = f"{state}: options were read as those of {fitting}, the newest known release"
    else:
        remark = f"{state}: read as {fitting}, the newest release that has all of its names (--framework-version)"
    return ChosenRelease(
        fitting,
        False,
        remark=remark,
        list_others=lambda: (
            *_iter_older_fits(framework, read, fitting, misfits, may_be_fork),
            *([find_fitting_release(any_release, read)[0]] if is_limited else ()),
        ),
        may_be_older=lambda: (
            allowed is None
            and oldest_known == framework.releases()[:1]
            and all(_count_misfits(read(version))[0] <= misfits[0] for version in oldest_known)
        ),
    )


def may_be_met(snapshot: Snapshot, line: str) -> bool:
    """Return whether a package may be in the releases of a requirement; one whose version is not known may be in any.

    A newer version than a pinned one is common, because a pin is often overridden.
    """
    requirement = parse_requirement(line.replace("==", ">="))
    package, specifier = requirement.name, requirement.specifier
    version, listed = snapshot.version(package), snapshot.package(package)
    if isinstance(version, Known):
        return is_version_allowed(specifier, version.value)
    allowed = listed.value.allowed if isinstance(listed, Known) and package == "transformers" else ""
    releases = list_allowed(allowed, list_releases(package)) if allowed else None
    return not releases or any(is_version_allowed(specifier, parse_version(release)) for release in releases)


def _iter_neighbours(framework: Framework, version: str) -> Iterator[str]:
    """Yield the releases before and after the tree of a development version or candidate was cut; none for a release.

    "0.2.0.dev" of verl lasted until after 0.3.0: what changed in one of the next releases may be in the tree or not.
    """
    try:
        parsed = parse_version(version)
    except InvalidVersion:
        return
    if parsed.is_prerelease:
        older = [release for release in framework.releases() if parse_version(release) < parsed]
        newer = [release for release in framework.releases() if parse_version(release) > parsed]
        yield from (*older[-1:], *newer[:3])


def _iter_older_fits(
    framework: Framework, read: Callable[[str], Job], version: str, misfits: Misfits, may_be_fork: bool
) -> Iterator[str]:
    """Yield some older releases that accept as many names as the guessed one, and for a fork the last that accepts
    fewer.

    A conclusion about a launch must hold in each of them, because any of them may run. A tree between the last that
    takes fewer and the next, such as a fork or a pinned commit, has all names too.
    """
    older = [release for release in framework.releases() if parse_version(release) < parse_version(version)]
    counts_dropped = framework.name in CHOOSING_FRAMEWORKS  # else the program runs without the name

    def is_fit(index: int) -> bool:
        return _count_misfits(read(older[index]), counts_dropped) <= misfits

    first_fit, last_misfit = len(older), -1
    for index in dict.fromkeys(
        len(older) * part // OLDER_READINGS for part in reversed(range(OLDER_READINGS)) if older
    ):
        if is_fit(index):
            first_fit = index if last_misfit < 0 else first_fit
            yield older[index]
        elif last_misfit < 0:
            last_misfit = index
    while may_be_fork and last_misfit >= 0 and first_fit - last_misfit > 1:
        middle = (first_fit + last_misfit) // 2
        first_fit, last_misfit = (middle, last_misfit) if is_fit(middle) else (first_fit, middle)
    if last_misfit >= 0 and may_be_fork:
        yield older[last_misfit]


def _list_dated(job: Job) -> list[UnknownSetting]:
    """Return the unknown settings of a job that some other release has."""
    return [unknown for unknown in job.unknown_settings if unknown.now or unknown.since]


def _count_misfits(job: Job, counts_dropped: bool = True) -> Misfits:
    """Return how many names of other releases a job has, and how many values that its release refuses."""
    dated = [unknown for unknown in _list_dated(job) if counts_dropped or not unknown.dropped]
    return len(dated), sum(bool(problem.refused_value) for problem in job.problems)


def find_fitting_release(framework: Framework, read: Callable[[str], Job]) -> tuple[str, Misfits]:
    """Return the newest release that accepts all names of a launch, otherwise the best fit, and how many it refuses.

    Names that no release ever had are ignored. The search starts at the newest release. Each step goes to the last
    release before the first removal of a name, until no refused name remains or a name is newer than the release. If it
    refuses a value, every release is tried, because values have no dates.
    """
    tried: dict[str, Misfits] = {}
    version = framework.newest
    while version and version not in tried and len(tried) < MAX_READINGS:
        job = read(version)
        dated, tried[version] = _list_dated(job), _count_misfits(job)
        if not dated:
            break
        version = _find_release_before(framework, version, dated)
    best = min(tried, key=lambda name: (tried[name], list(tried).index(name)))
    if tried[best][1]:
        tried = {release: _count_misfits(read(release)) for release in reversed(framework.releases())}
        best = min(tried, key=lambda release: tried[release])
    return best, tried[best]


def _find_release_before(framework: Framework, version: str, unknown_settings: Sequence[UnknownSetting]) -> str:
    """Return the newest release that still had the first name removed before `version`; "" if there is none.

    A name from another package, such as transformers, disappears with one of that package's releases. The minor release
    before `version` is then tried next.
    """
    is_own = [unknown.since.rpartition(" ")[0] in ("", framework.distribution) for unknown in unknown_settings]
    changes = [_parse_change(unknown.since) for unknown, own in zip(unknown_settings, is_own) if own]
    removals = [change for change in changes if change is not None and change <= parse_version(version)]
    if not all(is_own):
        removals.append(parse_version(".".join(map(str, parse_version(version).release[:2]))))
    first = min(removals, default=parse_version("0"))
    return next((release for release in reversed(framework.releases()) if parse_version(release) < first), "")


def _parse_change(since: str) -> Version | None:
    """Return the release in "0.6.0" or "trl 1.5.0" in which a name was removed or added; None if there is none."""
    try:
        return parse_version(since.rpartition(" ")[2])
    except InvalidVersion:
        return None


def is_older_than_known(framework: Framework, version: str) -> bool:
    """Return whether a version belongs to a minor release older than every one with known names."""
    releases = framework.releases()
    try:
        return bool(releases) and parse_release(version).release[:2] < parse_version(releases[0]).release[:2]
    except InvalidVersion:
        return False
