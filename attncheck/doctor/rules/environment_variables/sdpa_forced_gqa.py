"""TRANSFORMERS_SDPA_FORCE_GQA makes sdpa fall back to MATH, which needs memory for every score.

What it checks: TRANSFORMERS_SDPA_FORCE_GQA=1 under transformers 5.23.0 or newer, the first release that reads it.

Why it matters: with `enable_gqa=True` and a mask, or unequal head sizes, SDPA's fused backends refuse and PyTorch
silently uses MATH. It keeps B·H·L·L scores in memory, so long sequences run out of memory.

What to do: unset it.

Source: transformers 5.23.0 `integrations/sdpa_attention.py`, `use_gqa_in_sdpa` (wheels 4.53.3 to 5.22.0 do not contain
the name); huggingface/transformers PR#46960, #45229.
"""

from attncheck.doctor.fixes import install
from attncheck.doctor.queries.launch import locate_variables
from attncheck.doctor.rules import Known, Problem, Problems, Rule, Snapshot, Version, need

FIRST_READ = Version("5.23.0")


def check(snapshot: Snapshot) -> Problems:
    if snapshot.env("TRANSFORMERS_SDPA_FORCE_GQA") != Known("1") or not snapshot.has("transformers"):
        return
    if need(snapshot.version("transformers"), "transformers' version") < FIRST_READ:
        return
    yield Problem(
        message="TRANSFORMERS_SDPA_FORCE_GQA=1 can make sdpa fall back to MATH and run out of memory",
        subject="TRANSFORMERS_SDPA_FORCE_GQA",
        evidence=("environment: TRANSFORMERS_SDPA_FORCE_GQA=1",),
        fixes=(install.unset_variable("TRANSFORMERS_SDPA_FORCE_GQA"),),
        locations=locate_variables(snapshot, "TRANSFORMERS_SDPA_FORCE_GQA"),
    )


RULE = Rule("ATN557", "warning", check)
