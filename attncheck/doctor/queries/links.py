"""Queries for rules about links between packages: which breaks stop a job, and what imports showed about them."""

from collections.abc import Iterator
from itertools import groupby

from attncheck.core.links import LAUNCH_CODE, UnresolvedName
from attncheck.core.snapshot import Known, Snapshot, need
from attncheck.doctor.knowledge.entry_modules import ANY_TRAINER, ENTRY_MODULES, entry_modules
from attncheck.doctor.knowledge.frameworks import FRAMEWORKS_IMPORTED_BY, WATCHED_DISTRIBUTIONS
from attncheck.doctor.queries.launch import may_import
from attncheck.doctor.queries.requirements import applicable_requirements

# Import name -> distribution, if they differ by more than "-".
_DISTRIBUTIONS = {"flash_attn_interface": "flash-attn-3", "flash_attn_3": "flash-attn-3", "fla": "fla-core"}


def provider_distribution(link: UnresolvedName) -> str:
    """Return the distribution that lacks the name."""
    return _DISTRIBUTIONS.get(link.provider, link.provider.replace("_", "-"))


def name_with_version(snapshot: Snapshot, name: str) -> str:
    """Return "transformers 5.17.0", or the name alone if it is not known to be installed."""
    package = snapshot.package(name)
    return f"{name} {package.value.version}" if isinstance(package, Known) else name


def package_links(snapshot: Snapshot) -> tuple[UnresolvedName, ...]:
    """Return the unresolved links of installed packages that no import refuted. Raises `MissingFact`.

    A launch of a framework imports none of the packages that attncheck does not know.
    """
    if not isinstance(snapshot.links, Known):
        return ()
    job = snapshot.job.value if isinstance(snapshot.job, Known) else None
    is_own = job is None or job.framework not in FRAMEWORKS_IMPORTED_BY
    links = need(snapshot.links, "the imports between packages")
    return tuple(
        link
        for link in links
        if link.consumer != LAUNCH_CODE and link.outcome != "ok" and (is_own or link.consumer in WATCHED_DISTRIBUTIONS)
    )


def launch_links(snapshot: Snapshot) -> tuple[UnresolvedName, ...]:
    """Return the unresolved links of the launch's scripts."""
    links = snapshot.links.value if isinstance(snapshot.links, Known) else ()
    return tuple(link for link in links if link.consumer == LAUNCH_CODE)


def is_confirmed(link: UnresolvedName) -> bool:
    """Return whether an import actually failed because of this name."""
    return link.outcome == "raised" and (link.name or link.source) in link.error


def is_break(link: UnresolvedName) -> bool:
    """Return whether a link certainly stops an import: no guard, no undecided condition, and no restored name."""
    return bool(link.breaks) and (is_confirmed(link) or not link.patched_by)


def broken_entries(snapshot: Snapshot, link: UnresolvedName) -> tuple[str, ...]:
    """Return the modules that jobs import and that a link breaks; with a launch, only those that its job may import.

    They are modules of the consumer, and of every framework that imports it.
    """
    job = snapshot.job.value if isinstance(snapshot.job, Known) else None
    wanted: dict[str, None] = {}
    for consumer in dict.fromkeys((link.consumer, *ENTRY_MODULES)):
        if not may_import(snapshot, consumer):
            continue
        trainers = [job.trainer] if job and job.framework else list(ENTRY_MODULES.get(consumer, {ANY_TRAINER: ()}))
        wanted.update(dict.fromkeys(name for trainer in trainers for name in entry_modules(consumer, trainer)))
    if link.consumer not in WATCHED_DISTRIBUTIONS and not _is_dependency(snapshot, link.consumer):
        wanted[link.module.partition(".")[0]] = None  # its import name, which need not be that of the distribution
    return tuple(name for name in wanted if name in link.breaks)


def _is_dependency(snapshot: Snapshot, name: str) -> bool:
    """Return whether another package requires it, which then decides whether a job imports it."""
    return any(next(applicable_requirements(snapshot, owner, name), None) for owner in snapshot.distributions)


def stops_every_job(link: UnresolvedName) -> bool:
    """Return whether a link breaks a module that every job of its package imports."""
    consumers = (link.consumer, *ENTRY_MODULES)
    return any(name in link.breaks for consumer in consumers for name in entry_modules(consumer, ANY_TRAINER))


def group_by_pair(links: tuple[UnresolvedName, ...]) -> Iterator[tuple[str, str, tuple[UnresolvedName, ...]]]:
    """Yield (consumer, provider's distribution, links), sorted."""
    ordered = sorted(links, key=lambda link: (link.consumer, provider_distribution(link), link.path, link.line))
    for (consumer, provider), group in groupby(ordered, lambda link: (link.consumer, provider_distribution(link))):
        yield consumer, provider, tuple(group)


def describe_link(link: UnresolvedName) -> str:
    """Return one line about a link: its location, the missing name, and where the name is now."""
    where = f" in {link.function}()" if link.function else ""
    if link.kind == "argument":
        return f"{link.place}{where}: {link.target}(…): {link.reason}"
    now = f"; now in {link.moved_to[0]}" if link.moved_to else ""
    then = f" if {' and '.join(link.conditions)}" if link.conditions else ""
    return f"{link.place}{where} takes {link.target}{then}{now}"
