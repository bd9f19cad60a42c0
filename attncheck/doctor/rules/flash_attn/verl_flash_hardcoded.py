"""verl's value model requests flash_attention_2, but flash-attn is not installed.

What it checks: whether verl is installed without flash-attn, and no Hub kernel would replace it.

Why it matters: verl's code loads a critic or reward model with `attn_implementation="flash_attention_2"`, so it stops
with "FlashAttention2 has been toggled on, but it cannot be used" although sdpa was set for the actor.

What to do: install flash-attn, or use an algorithm without a value model (GRPO and similar).

Source: verl 0.9.1, `verl/utils/model.py` lines 649 and 674 (load_valuehead_model); verl-project/verl#985, #6495.
"""

from attncheck.doctor.fixes.flash_attn import install_flash_attn_package
from attncheck.doctor.queries.hub_fallback import find_hub_fallback
from attncheck.doctor.rules import Fix, Known, Problem, Problems, Rule, Snapshot, need


def check(snapshot: Snapshot) -> Problems:
    if not snapshot.has("verl") or snapshot.has("flash-attn") or find_hub_fallback(snapshot) is not None:
        return
    answers = snapshot.interfaces.value.availability if isinstance(snapshot.interfaces, Known) else {}
    if answers.get("is_flash_attn_2_available", False):
        return
    verl = need(snapshot.package("verl"), "verl").version
    yield Problem(
        message=f"verl {verl} always loads a critic with flash_attention_2, but flash-attn is not installed",
        subject=f"verl {verl}",
        evidence=("static lane: flash-attn was not found",),
        fixes=(
            *install_flash_attn_package(snapshot),
            Fix("train without a critic", "setting", "algorithm.adv_estimator=grpo"),
        ),
    )


RULE = Rule("ATN162", "warning", check, needs=frozenset({"rl"}))
