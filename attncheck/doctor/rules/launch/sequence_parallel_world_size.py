"""Sequence and tensor parallelism do not divide the processes of the job.

What it checks: the size of sequence parallelism times that of tensor parallelism against the number of training
processes.

Why it matters: frameworks round the number of data-parallel groups down: the last ranks fall out of every group and
raise an IndexError, while the others wait for them.

What to do: a size that divides the number of processes.

Source: openrlhf 0.11.2 utils/deepspeed/deepspeed.py:110 (`world // ring // tp`), tried over gloo: 4 ranks with ring 3
end in "IndexError: list index out of range" on rank 3; verl 0.9.1 workers/engine/fsdp/transformer_impl.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.arithmetic import largest_divisor
from attncheck.core.facts import need
from attncheck.core.findings import Problem
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.queries.launch import job_of, named, setting, where
from attncheck.doctor.rules import Rule


def check(snapshot: Snapshot) -> Iterator[Problem]:
    """Yield a problem where the sizes do not divide the processes."""
    job = job_of(snapshot)
    if job.plan.ring_size < 2 and job.tensor_parallel < 2:
        return
    world = need(job.world_size, "the number of training processes")
    together = job.plan.ring_size * job.tensor_parallel
    if world % together == 0:
        return
    groups, rest = divmod(world, max(job.tensor_parallel, 1))
    size = largest_divisor(groups, job.plan.ring_size)
    fixes = () if rest or not groups else (setting(f"a size that divides {world}", {"ring_size": str(size)}),)
    tensor = f" × tensor parallel {job.tensor_parallel}" if job.tensor_parallel > 1 else ""
    yield Problem(
        message=f"sequence parallel {job.plan.ring_size}{tensor} does not divide {world} training {_processes(world)}",
        evidence=(f"{world} {_processes(world)} in groups of {together}: {world % together} left over",),
        fixes=fixes,
        subject=named(job),
        locations=where(job, "ring_size", "tensor_parallel"),
    )


def _processes(count: int) -> str:
    return "process" if count == 1 else "processes"


RULE = Rule("ATN571", "error", check, needs=frozenset({"job"}))
