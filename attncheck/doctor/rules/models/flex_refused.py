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
)
from attncheck.doctor.rules import Model, Problem, Problems, Rule, Snapshot, about_model, only_if


@only_if(may_use, "flex_attention", "sdpa")  # the launch requests something else and gets it
@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    if not refuses_implementation(model, "flex_attention") or is_eager_only(model):
        return
    is_asked = requested_implementation(snapshot) == "flex_attention"
    if not is_asked and not (
        refuses_implementation(model, "sdpa") or refuses_implementation(model, "flash_attention_2")
    ):
        return
    yield Problem(
        message=f"{model.model_type} refuses flex_attention" + ("" if is_asked else " as well"),
        evidence=(refusal_reason(model, "flex_attention"),),
        fixes=use_other_attention(snapshot, model, "flex_attention"),
        subject=model.model_type,
    )


RULE = Rule("ATN309", "note", check)
