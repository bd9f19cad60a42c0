"""Sequence parallelism is requested, but will be inactive with this implementation.

What it checks: the implementations that the framework's ring or Ulysses hooks into, against the one that will run.

Why it matters: each rank attends only to its own part of every document. There is no error and the loss falls, but
the model never sees a long context. OpenRLHF's ring works only with flash_attention_2, but its check accepts
flash_attention_3. verl's Ulysses works only with the flash implementations.

What to do: use the implementation that the finding names, or no sequence parallelism.

Source: ring_flash_attn 0.1.8 adapters/hf_adapter.py:389 (replaces `ALL_ATTENTION_FUNCTIONS["flash_attention_2"]` only);
verl 0.9.1 models/transformers/monkey_patch.py:544; ms-swift 4.6.0 sequence_parallel.py:272. Measured by
`attncheck parity --ring-size 2` (ATN530) and `attncheck smoke --ring-size 2`.
"""

from attncheck.doctor.queries.launch import (
    change_settings,
    describe_job,
    effective_attn_implementation,
    locate_settings,
)
from attncheck.doctor.rules import Job, Problem, Problems, Rule, Snapshot, about_job


@about_job
def check(snapshot: Snapshot, job: Job) -> Problems:
    implementation = effective_attn_implementation(job)
    if job.plan.ring_size < 2 or not job.hooked or implementation in job.hooked:
        return
    yield Problem(
        message=(
            f"{job.scheme} over {job.plan.ring_size} ranks is inactive under {implementation}: "
            "each rank attends only to its own part"
        ),
        evidence=(f"{job.framework} {job.version} hooks it into {', '.join(job.hooked)}",),
        fixes=(
            change_settings(f"use {job.hooked[0]}", {"attn_implementation": job.hooked[0]}),
            change_settings("or remove it", {"ring_size": "1"}),
        ),
        subject=describe_job(job),
        locations=locate_settings(job, "attn_implementation", "ring_size"),
    )


RULE = Rule("ATN570", "error", check, needs=frozenset({"job"}))
