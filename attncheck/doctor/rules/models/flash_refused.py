"""The model's class refuses flash attention.

What it checks: the answer of the installed transformers for attn_implementation="flash_attention_2", queried on the
meta device. Missing packages do not count, because other rules report them.

Why it matters: loading raises "… does not support Flash Attention 2 yet". Ring attention and packing that need flash
attention are unavailable for this model too. If no installed package requires flash attention, it is a warning.

What to do: use the attention that the class accepts, without ring attention.

Source: transformers 4.57.3 and 5.23.0, modeling_utils.py; class flags of models/*/modeling_*.py.
"""

from attncheck.doctor.fixes.model import use_other_attention
from attncheck.doctor.queries import (
    forces_flash_attention,
    is_eager_only,
    may_use_flash,
    refusal_reason,
    refuses_implementation,
)
from attncheck.doctor.rules import Model, Problem, Problems, Rule, Snapshot, about_model, only_if


@only_if(may_use_flash)  # the launch requests a different attention
@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    if not refuses_implementation(model, "flash_attention_2") or is_eager_only(model):
        return
    if "turns it into" in refusal_reason(model, "flash_attention_2"):
        return
    yield Problem(
        message=f"{model.model_type} refuses flash attention",
        evidence=(refusal_reason(model, "flash_attention_2"),),
        fixes=use_other_attention(snapshot, model, "flash_attention_2"),
        subject=model.model_type,
        predicted=not forces_flash_attention(snapshot),
    )


RULE = Rule("ATN308", "error", check, needs=frozenset({"flash", "ring"}))
