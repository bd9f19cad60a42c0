"""Under flash attention, every layer removes and restores the padding of padded batches.

What it checks: an SFT launch with several rows per device that pads them and uses flash attention. Models with a
vision tower are not judged, because TRL refuses to pack them.

Why it matters: transformers unpads queries, keys and values and pads the result in every layer, which costs as much
as the kernel saves on short rows. All other layers compute on the padding. Users who enable flash attention for speed
gain none. Results are correct, so this is a note.

What to do: pack, or flatten the batch (`padding_free`), so that the rows have no padding, and compare the speed.

Source: transformers 5.23.0, modeling_flash_attention_utils.py (`_upad_input`, `_pad_input`); huggingface/trl PR#3526;
trl 0.23.0, trainer/sft_trainer.py ("Packing is not supported for vision-language models").
"""

from attncheck.doctor.queries import (
    change_settings,
    describe_job,
    has_vision_tower,
    locate_settings,
    may_use_flash,
)
from attncheck.doctor.rules import Job, Problem, Problems, Rule, Snapshot, about_job


@about_job
def check(snapshot: Snapshot, job: Job) -> Problems:
    if job.trainer != "sft" or job.plan.packed or job.plan.batch < 2 or not may_use_flash(snapshot):
        return
    if "batch" not in job.locations or has_vision_tower(snapshot):  # a default batch size is not the user's choice
        return
    yield Problem(
        message=f"{job.plan.batch} padded rows per device: flash attention unpads and re-pads them in every layer",
        evidence=(f"{describe_job(job)} runs {job.plan.attn_implementation} and does not pack",),
        fixes=(change_settings("pack", {"packing": "on"}),),
        subject=describe_job(job),
        locations=locate_settings(job, "batch"),
    )


RULE = Rule("ATN820", "note", check, needs=frozenset({"job"}))
