"""The row length is not divisible into the shards of sequence parallelism.

What it checks: rows of fixed length under torch's context parallelism, which gives every rank two pieces of 1/(2N) of
a row (zigzag). The length must be divisible by twice the number of ranks.

Why it matters: the first batch raises, or is truncated.

What to do: use a length that is divisible.

Source: torch 2.13.0 distributed/tensor/experimental/_context_parallel (`_HeadTailLoadBalancer`: "seq_length must be
divisible by world_size * 2"); transformers 5.23.0 trainer.py pads to `pad_to_multiple_of` only if it is set.
"""

from attncheck.doctor.queries.launch import change_settings, describe_job, locate_settings
from attncheck.doctor.rules import Job, Problem, Problems, Rule, Snapshot, about_job


@about_job
def check(snapshot: Snapshot, job: Job) -> Problems:
    shards = 2 * job.plan.ring_size
    if job.scheme != "torch" or job.plan.ring_size < 2 or not job.plan.packed or job.plan.max_length % shards == 0:
        return
    shorter = job.plan.max_length // shards * shards
    yield Problem(
        message=f"rows of {job.plan.max_length} tokens are not divisible by {shards}, two shards per rank",
        evidence=("torch's context parallelism gives each rank one shard from the front and one from the back",),
        fixes=(change_settings("use a length that is divisible", {"max_length": str(shorter or shards)}),),
        subject=describe_job(job),
        locations=locate_settings(job, "max_length", "ring_size"),
    )


RULE = Rule("ATN573", "error", check, needs=frozenset({"job"}))
