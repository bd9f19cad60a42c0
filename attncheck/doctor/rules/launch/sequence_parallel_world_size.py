"""The sizes of sequence and tensor parallelism do not divide the number of processes.

What it checks: the size of sequence parallelism times that of tensor parallelism against the number of training
processes.

Why it matters: frameworks round the number of data-parallel groups down. The last ranks belong to no group and raise
an IndexError, while the others wait for them.

What to do: use a size that divides the number of processes.

Source: openrlhf 0.11.2 utils/deepspeed/deepspeed.py:110 (`world // ring // tp`), tried over gloo: 4 ranks with ring 3
end in "IndexError: list index out of range" on rank 3; verl 0.9.1 workers/engine/fsdp/transformer_impl.py.
"""

from attncheck.core.arithmetic import largest_divisor
from attncheck.doctor.queries.launch import change_settings, describe_job, locate_settings
from attncheck.doctor.rules import Job, Problem, Problems, Rule, Snapshot, about_job, need


@about_job
def check(snapshot: Snapshot, job: Job) -> Problems:
    if job.plan.ring_size < 2 and job.tensor_parallel < 2:
        return
    world_size = need(job.world_size, "the number of training processes")
    group_size = job.plan.ring_size * job.tensor_parallel
    if world_size % group_size == 0:
        return
    groups, rest = divmod(world_size, max(job.tensor_parallel, 1))
    size = largest_divisor(groups, job.plan.ring_size)
    fixes = (
        ()
        if rest or not groups
        else (change_settings(f"use a size that divides {world_size}", {"ring_size": str(size)}),)
    )
    tensor_parallel = f" × tensor parallel {job.tensor_parallel}" if job.tensor_parallel > 1 else ""
    processes = "process" if world_size == 1 else "processes"
    yield Problem(
        message=f"sequence parallel {job.plan.ring_size}{tensor_parallel} does not divide "
        f"{world_size} training {processes}",
        evidence=(f"{world_size} {processes} in groups of {group_size}: {world_size % group_size} left over",),
        fixes=fixes,
        subject=describe_job(job),
        locations=locate_settings(job, "ring_size", "tensor_parallel"),
    )


RULE = Rule("ATN571", "error", check, needs=frozenset({"job"}))
