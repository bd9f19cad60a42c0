"""A setting of the launch is not known to this version of the framework.

What it checks: every option, override and key of the launch against the names that the framework's release knows, as
its own parser would read them (argparse takes unique prefixes, Hydra's `+` adds keys that are not in the schema).

Why it matters: frameworks rename settings without keeping the old names: OpenRLHF renamed every flag in 0.10.2. The job
stops at once, or, where a parser drops what it does not know, runs without the setting.

What to do: use the name that the finding gives; `attncheck lint` prints the whole corrected command.

Source: the tables in attncheck/knowledge/names, read from the released wheels of each framework.
"""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.findings import Fix, Problem
from attncheck.core.job import Job, UnknownSetting
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.queries.launch import job_of, named
from attncheck.doctor.rules import Rule

SHOWN = 4  # names in a message


def check(snapshot: Snapshot) -> Iterator[Problem]:
    """Yield one problem for the names that were changed together, and one for each other name that is not known."""
    job = job_of(snapshot)
    renamed: dict[str, list[UnknownSetting]] = {}
    for unknown in job.unknown_settings:
        if unknown.now and unknown.since:
            renamed.setdefault(unknown.since, []).append(unknown)
        else:
            yield _single(job, unknown)
    for since, group in renamed.items():
        yield _single(job, group[0]) if len(group) == 1 else _group(job, since, group)


def _single(job: Job, unknown: UnknownSetting) -> Problem:
    return Problem(
        message=f"{job.framework} {job.version} does not know {unknown.name}{_instead(unknown)}",
        evidence=(_history(job, unknown),),
        fixes=_fixes(unknown),
        subject=unknown.name,
        locations=(unknown.location,),
    )


def _group(job: Job, since: str, group: list[UnknownSetting]) -> Problem:
    """Return one problem about all names that one release changed."""
    width = max(len(unknown.name) for unknown in group)
    renames = "\n".join(f"{unknown.name:<{width}}  {' '.join(unknown.now)}" for unknown in group)
    return Problem(
        message=f"{job.framework} {job.version} does not know {len(group)} names in this launch: {_named(group)}",
        evidence=(f"{_release(job, since)} changed the names",),
        fixes=(Fix("the names in this version", "setting", renames),),
        subject=named(job),
        locations=tuple(unknown.location for unknown in group),
    )


def _named(group: list[UnknownSetting]) -> str:
    shown = ", ".join(unknown.name for unknown in group[:SHOWN])
    return shown + (", …" if len(group) > SHOWN else "")


def _instead(unknown: UnknownSetting) -> str:
    if unknown.now:
        return f"; it is {' '.join(unknown.now)}"
    return f"; did you mean {unknown.near}?" if unknown.near else ""


def _history(job: Job, unknown: UnknownSetting) -> str:
    if not unknown.since:
        return f"no release of {job.framework} that was read knows it"
    return f"{_release(job, unknown.since)} changed it"


def _release(job: Job, since: str) -> str:
    """Return a release with its package's name, the framework's own where none is said."""
    return since if " " in since else f"{job.framework} {since}"


def _fixes(unknown: UnknownSetting) -> tuple[Fix, ...]:
    if unknown.now:
        return (Fix("the name in this version", "setting", " ".join(unknown.now)),)
    if unknown.near:
        return (Fix("the nearest name that it knows", "setting", unknown.near, "unsafe"),)
    return (Fix("take it out", "setting", f"# without {unknown.name}", "unsafe"),)


RULE = Rule("ATN440", "error", check, needs=frozenset({"job"}))
