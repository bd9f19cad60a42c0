"""The launch needs more GPUs than there are.

What it checks: the GPUs that the launch's processes, or the roles of a placement under Ray, take together, against the
GPUs that a job on this machine (or the target) would see, times the nodes that the launch names.

Why it matters: torchrun fails when it starts the rank without a GPU; Ray does not fail: it waits for a placement
that never comes, for ever and without an error.

What to do: ask for fewer, or run it where they are (`attncheck lint --target h100x8` judges for another machine).

Source: openrlhf 0.11.2 cli/train_ppo_ray.py, `ray.get(pg.ready())`; torch 2.13.0 distributed/run.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.facts import Absent, need
from attncheck.core.findings import Fix, Problem
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.queries import gpus as hardware
from attncheck.doctor.queries.launch import devices_total, job_of, named
from attncheck.doctor.rules import Rule


def check(snapshot: Snapshot) -> Iterator[Problem]:
    """Yield a problem where the GPUs do not suffice."""
    job = job_of(snapshot)
    gpus = need(job.gpus, "the number of GPUs that the launch takes")
    if isinstance(snapshot.devices, Absent):
        return  # no GPU at all: other rules say so
    need(snapshot.devices, "the list of GPUs")
    there = devices_total(snapshot, job)
    if there is None or gpus <= there:
        return
    nodes = f" on {job.nodes} nodes like this one" if job.nodes > 1 else ""
    ending = "Ray waits for the rest for ever, without an error" if job.reinforcement else "the ranks without one fail"
    yield Problem(
        message=f"{named(job)} takes {gpus} GPUs and there {'is' if there == 1 else 'are'} {there}{nodes}; {ending}",
        evidence=hardware.told(snapshot.visible_devices()),
        fixes=(
            Fix(
                "judge it for the machine it will run on", "command", f"attncheck lint --target {_like(snapshot, gpus)}"
            ),
        ),
        subject=named(job),
        locations=(job.location,),
    )


def _like(snapshot: Snapshot, gpus: int) -> str:
    shown = snapshot.visible_devices()
    return f"{shown[0].sm if shown else 'sm_90'},gpus={min(gpus, 8)} …"


RULE = Rule("ATN447", "error", check, needs=frozenset({"job"}))
