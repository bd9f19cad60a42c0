"""LLaMA-Factory silently runs sdpa if `flash_attn: fa2` is requested.

What it checks: whether LLaMA-Factory is installed without flash-attn, and the launch, if there is one, requests it.

Why it matters: it logs "FlashAttention-2 is not installed." and continues with sdpa, which is slower and needs more
memory, and packed samples may attend to one another. It never uses the Hub's kernel instead of flash-attn.

What to do: install flash-attn; or write `flash_attn: sdpa`, so that the configuration says what runs, and check
packing.

Source: LLaMA-Factory (2026-08), `src/llamafactory/model/model_utils/attention.py` (configure_attn_implementation);
hiyouga/LLaMA-Factory#7979, #5079.
"""

from attncheck.doctor.fixes.flash_attn import install_flash_attn_package
from attncheck.doctor.queries.launch import may_import
from attncheck.doctor.rules import Fix, Known, Problem, Problems, Rule, Snapshot, need


def check(snapshot: Snapshot) -> Problems:
    if not snapshot.has("llamafactory") or snapshot.has("flash-attn") or not may_import(snapshot, "llamafactory"):
        return
    if isinstance(snapshot.job, Known) and snapshot.job.value.plan.attn_implementation != "flash_attention_2":
        return
    answers = snapshot.interfaces.value.availability if isinstance(snapshot.interfaces, Known) else {}
    if answers.get("is_flash_attn_2_available", False):
        return
    version = need(snapshot.package("llamafactory"), "llamafactory").version
    yield Problem(
        message=(f"LLaMA-Factory {version} silently replaces `flash_attn: fa2` by sdpa: flash-attn is not installed"),
        subject=f"llamafactory {version}",
        evidence=("static lane: flash-attn was not found",),
        fixes=(
            Fix("say what runs", "setting", "flash_attn: sdpa"),
            *install_flash_attn_package(snapshot),
        ),
    )


RULE = Rule("ATN163", "note", check)
