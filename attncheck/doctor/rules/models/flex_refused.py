"""The model's class refuses flex_attention, and also sdpa or flash attention.

What it checks: the answer of the installed transformers for attn_implementation="flex_attention". It is reported only
if flex_attention is requested, or if the model also refuses sdpa or flash attention.

Why it matters: there are fewer alternatives, and loading with flex_attention raises a ValueError.

What to do: use an implementation that the class accepts.

Source: transformers 5.23.0, modeling_utils.py (`_flex_attn_can_dispatch`); class flags of models/*/modeling_*.py.
"""

from attncheck.doctor.fixes.model import use_other_attention
from attncheck.doctor.queries import (
    is_eager_only,
    may_use,
    refusal_reason,
    refuses_implementation,
    requested_implementation,
    requested_model,
)
from attncheck.doctor.rules import Problem, Problems, Rule, Snapshot


def check(snapshot: Snapshot) -> Problems:
    if not may_use(snapshot, "flex_attention", "sdpa"):
        return  # the launch requests something else and gets it
    model = requested_model(snapshot)
    if model is None or not refuses_implementation(model, "flex_attention") or is_eager_only(model):
        return
    is_asked = requested_implementation(snapshot) == "flex_attention"
    if not is_asked and not (
        refuses_implementation(model, "sdpa") or refuses_implementation(model, "flash_attention_2")
    ):
        return
    yield Problem(
        message=f"{model.model_type} refuses flex_attention" + ("" if is_asked else " as well"),
        evidence=(f"import lane: {refusal_reason(model, 'flex_attention')}",),
        fixes=use_other_attention(snapshot, model, "flex_attention"),
        subject=model.model_type,
    )


RULE = Rule("ATN309", "note", check)
