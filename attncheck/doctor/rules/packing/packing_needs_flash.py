"""Packed documents attend to each other without flash attention in this transformers.

What it checks: transformers before 4.53.1, whose sdpa, eager and flex_attention do not detect packed documents, if
flash-attn is not installed.

Why it matters: the error is silent. Samples packed into one row attend to each other. The training loss looks lower
than it should, and the model gets worse. It only matters to jobs that pack.

What to do: upgrade transformers to 4.53.1 or newer and send no attention mask with packed rows, install flash-attn, or
switch packing off.

Source: transformers 4.53.0 and 4.53.1, masking_utils.py (`find_packed_sequence_indices`); huggingface/trl#2834, #3695.
"""

from attncheck.doctor.fixes.model import change_transformers
from attncheck.doctor.knowledge.padding import PACKED_WITHOUT_FLASH
from attncheck.doctor.queries.models import is_older
from attncheck.doctor.rules import Fix, Problem, Problems, Rule, Snapshot, need


def check(snapshot: Snapshot) -> Problems:
    if not is_older(snapshot.version("transformers"), PACKED_WITHOUT_FLASH):
        return
    if snapshot.has("flash-attn", "flash-attn-3"):
        return
    version = need(snapshot.version("transformers"), "the version of transformers")
    upgrade = change_transformers(snapshot, f">={PACKED_WITHOUT_FLASH},<5")
    yield Problem(
        message=f"packed documents attend to each other: transformers {version} separates them only with "
        "flash attention",
        evidence=(f"transformers {version}; sdpa detects packed rows since {PACKED_WITHOUT_FLASH}", "no flash-attn"),
        fixes=(*upgrade, Fix("or do not pack", "setting", "packing: false")),
        subject=f"transformers {version}",
    )


RULE = Rule("ATN401", "warning", check, general=True)
