"""Padded batches under flash attention: every layer takes the padding out and puts it back.

What it checks: an SFT launch that asks for several rows to a device, pads them and runs flash attention. Not of a model
with a vision tower: TRL raises if one is to be packed, so that there is nothing to change.

Why it matters: transformers unpads queries, keys and values and pads the result in every layer, which costs what the
kernel saves on short rows; and every other layer computes on the padding. Users who switch flash attention on for speed
see none. Correct anyway: a note.

What to do: pack, or flatten the batch (`padding_free`), so that the rows hold no padding; compare the speed.

Source: transformers 5.23.0, modeling_flash_attention_utils.py (`_upad_input`, `_pad_input`); huggingface/trl PR#3526;
trl 0.23.0, trainer/sft_trainer.py ("Packing is not supported for vision-language models").
"""

from attncheck.doctor.queries import (
    change_settings,
    describe_job,
    has_vision_tower,
    locate_settings,
    may_use_flash,
    require_job,
)
from attncheck.doctor.rules import Problem, Problems, Rule, Snapshot


def check(snapshot: Snapshot) -> Problems:
    job = require_job(snapshot)
    if job.trainer != "sft" or job.plan.packed or job.plan.batch < 2 or not may_use_flash(snapshot):
        return
    if "batch" not in job.locations or has_vision_tower(snapshot):  # or a default that nobody chose
        return
    yield Problem(
        message=f"{job.plan.batch} padded rows per device: flash attention unpads and re-pads them in every layer",
        evidence=(f"{describe_job(job)} runs {job.plan.attn_implementation} and does not pack",),
        fixes=(change_settings("pack", {"packing": "on"}),),
        subject=describe_job(job),
        locations=locate_settings(job, "batch"),
    )


RULE = Rule("ATN820", "note", check, needs=frozenset({"job"}))
