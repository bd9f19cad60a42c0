"""The launch packs documents without separating them.

What it checks: how the framework marks documents (positions that restart, cu_seqlens, a mask), the implementation
that will run, and which of these marks this version of transformers uses.

Why it matters: tokens attend to earlier documents in the row. The loss falls anyway.

What to do: use a flash implementation, a newer transformers, or no packing. `attncheck smoke` measures the leak.

Source: masking_utils.find_packed_sequence_indices in the transformers wheels since 4.53.1; before, only
modeling_flash_attention_utils.py read the positions.
"""

from attncheck.doctor.fixes.model import change_transformers
from attncheck.doctor.knowledge.padding import PACKED_WITHOUT_FLASH
from attncheck.doctor.queries import (
    change_settings,
    describe_job,
    effective_attn_implementation,
    is_older,
    locate_settings,
)
from attncheck.doctor.rules import Job, Problem, Problems, Rule, Snapshot, about_job, need

MASK_BASED = ("sdpa", "eager", "flex_attention")  # these separate documents with a mask that transformers makes


@about_job
def check(snapshot: Snapshot, job: Job) -> Problems:
    implementation = effective_attn_implementation(job)
    if job.plan.packing not in ("position_ids", "cu_seqlens") or implementation not in MASK_BASED:
        return
    if not is_older(snapshot.version("transformers"), PACKED_WITHOUT_FLASH):
        return
    version = need(snapshot.version("transformers"), "the version of transformers")
    yield Problem(
        message=(
            f"packed documents attend to each other: {implementation} in transformers {version} "
            "ignores document boundaries"
        ),
        evidence=(
            f"{describe_job(job)} packs by {job.plan.packing}",
            (f"sdpa and eager derive document boundaries from positions since transformers {PACKED_WITHOUT_FLASH}"),
        ),
        fixes=(
            change_settings("use flash_attention_2", {"attn_implementation": "flash_attention_2"}),
            *change_transformers(snapshot, f">={PACKED_WITHOUT_FLASH},<5"),
        ),
        subject=describe_job(job),
        locations=locate_settings(job, "packing", "attn_implementation"),
    )


RULE = Rule("ATN450", "error", check, needs=frozenset({"job"}))
