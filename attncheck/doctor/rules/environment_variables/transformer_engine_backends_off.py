"""An NVTE_ variable switches Transformer Engine's attention backends off.

What it checks: NVTE_FLASH_ATTN, NVTE_FUSED_ATTN and NVTE_UNFUSED_ATTN set to 0, if Transformer Engine is installed.

Why it matters: base images and recipes leave these variables set. With too many of them at 0, attention raises "No
dot product attention backend is available for the provided inputs"; with only one, it silently runs a different
backend from the one that the recipe was measured with.

What to do: unset those that you did not set on purpose. NVTE_DEBUG=1 NVTE_DEBUG_LEVEL=2 then shows which backend runs.

Source: NVIDIA/TransformerEngine `attention/dot_product_attention/utils.py`, `get_attention_backend`;
NVIDIA/TransformerEngine#1821.
"""

from attncheck.doctor.fixes import install
from attncheck.doctor.queries.launch import locate_variables
from attncheck.doctor.rules import Known, Problem, Problems, Rule, Snapshot

SWITCHES = ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN")


def check(snapshot: Snapshot) -> Problems:
    off = [name for name in SWITCHES if snapshot.env(name) == Known("0")]
    if not off or not snapshot.has("transformer-engine", "transformer-engine-torch", "transformer-engine-cu12"):
        return
    backends_left = len(SWITCHES) - len(off)
    settings = ", ".join(name + "=0" for name in off)
    yield Problem(
        message=f"{settings} leaves Transformer Engine {backends_left} of 3 attention backends",
        subject="transformer-engine",
        evidence=tuple(f"environment: {name}=0" for name in off),
        fixes=tuple(install.unset_variable(name) for name in off),
        locations=locate_variables(snapshot, *off),
    )


RULE = Rule("ATN553", "warning", check)
