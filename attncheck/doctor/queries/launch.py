"""What rules ask about a launch: its job, how it packs and pads, and settings as fixes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from attncheck.core.facts import Known, need
from attncheck.core.findings import Fix, Problem
from attncheck.core.job import Consequence, Job, Key
from attncheck.core.launch import SourceLocation
from attncheck.core.snapshot import Snapshot

# What a job computes stays what it was: these may be set without asking.
HARMLESS: frozenset[Key] = frozenset(
    {"attn_implementation", "heads_k_stride", "deterministic", "liger", "gradient_checkpointing"}
)


def job_of(snapshot: Snapshot) -> Job:
    """Return the launch's job. Raises `MissingFact` where no launch was given."""
    return need(snapshot.job, "the launch")


def setting(title: str, sets: Mapping[str, str]) -> Fix:
    """Return the fix that changes settings of the launch; its text is filled in by who knows the framework's words."""
    return Fix(title, "setting", "", "safe" if HARMLESS.issuperset(sets) else "unsafe", sets=sets)


def where(job: Job, *keys: Key) -> tuple[SourceLocation, ...]:
    """Return where the settings `keys` are written, where they are; else where the launch is."""
    found = tuple(job.locations[key] for key in keys if key in job.locations)
    return found or (job.location,)


def named(job: Job) -> str:
    """Return the launch in two words: "openrlhf ppo"."""
    return f"{job.framework} {job.trainer}"


def implementation(job: Job) -> str:
    """Return the implementation that will run: transformers takes sdpa where none is asked for."""
    return job.plan.attn_implementation or "sdpa"


def objections(snapshot: Snapshot, consequence: Consequence) -> Iterator[Problem]:
    """Yield a problem for each thing that the framework will do with settings it cannot serve."""
    job = job_of(snapshot)
    for objection in job.problems:
        if objection.consequence != consequence:
            continue
        fixes: tuple[Fix, ...] = ()
        if objection.sets:
            fixes = (setting(objection.advice or "change the setting", objection.sets),)
        elif objection.advice:
            fixes = (Fix("what to do", "manual", objection.advice),)
        yield Problem(
            message=objection.message,
            evidence=objection.evidence,
            fixes=fixes,
            subject=named(job),
            predicted=objection.mild,
            locations=(objection.location,) if objection.location.source else (job.location,),
        )


def devices_total(snapshot: Snapshot, job: Job) -> int | None:
    """Return how many GPUs the job's nodes have, each taken to be like this machine; None where nobody could look."""
    if isinstance(snapshot.devices, Known):
        return len(snapshot.visible_devices()) * job.nodes
    return None
