"""The model's class refuses sdpa.

What it checks: the answer of the installed transformers for attn_implementation="sdpa", queried on the meta device.

Why it matters: if sdpa is requested, loading raises "… does not support an attention implementation through
torch.nn.functional.scaled_dot_product_attention yet". If nothing is requested, transformers silently falls back to
eager, which stores every score: memory grows with the square of the length.

What to do: request an attention that the class accepts.

Source: transformers 5.23.0, modeling_utils.py (`_sdpa_can_dispatch`, `get_correct_attn_implementation`);
huggingface/transformers#43352.
"""

from attncheck.doctor.fixes.model import use_other_attention
from attncheck.doctor.queries import is_eager_only, may_use, refusal_reason, refuses_implementation
from attncheck.doctor.rules import Model, Problem, Problems, Rule, Snapshot, about_model, only_if


@only_if(may_use, "sdpa")  # the launch requests a different attention
@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    if not refuses_implementation(model, "sdpa") or is_eager_only(model):
        return
    yield Problem(
        message=f"{model.model_type} does not support sdpa: by default it runs eager",
        evidence=(refusal_reason(model, "sdpa"),),
        fixes=use_other_attention(snapshot, model, "sdpa"),
        subject=model.model_type,
    )


RULE = Rule("ATN307", "warning", check)
