"""The model has attention dropout, which flash attention 3 and 4 ignore.

What it checks: whether attention_dropout is above 0, if flash-attn-3 or flash-attn-4 is installed without flash-attn
2.

Why it matters: transformers warns "This might lead to unexpected behaviour as this is not supported on recent
versions of Flash Attention" and continues: the model trains without its dropout.

What to do: set attention_dropout to 0, so that all backends behave the same, or use sdpa.

Source: transformers 5.23.0, modeling_utils.py (`_flash_attn_can_dispatch`).
"""

from attncheck.doctor.queries import may_use_flash, refuses_implementation
from attncheck.doctor.rules import Fix, Model, Problem, Problems, Rule, Snapshot, about_model, only_if, value_or


@only_if(may_use_flash)  # the launch requests a different attention
@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    if snapshot.has("flash-attn") or not snapshot.has("flash-attn-3", "flash-attn-4"):
        return
    dropout = value_or(model.attention_dropout, 0.0)
    if dropout > 0 and not refuses_implementation(model, "flash_attention_3"):
        yield Problem(
            message=f"flash attention 3 and 4 ignore attention_dropout {dropout:g} of {model.model_type}",
            evidence=("flash-attn 2, which has dropout, is not installed",),
            fixes=(Fix("train without attention dropout", "setting", "attention_dropout=0.0"),),
            subject=model.model_type,
        )


RULE = Rule("ATN324", "warning", check, needs=frozenset({"flash"}))
