"""Ring attention refuses the model's logit soft-capping.

What it checks: ring-flash-attn on a model with attn_logit_softcapping (gemma2 and similar models).

Why it matters: the first forward raises "AssertionError: llama3_flash_attn_varlen_func does not support softcap yet."

What to do: do not use ring attention for this model. Use Ulysses with flash_attention_2.

Source: ring_flash_attn 0.1.8, adapters/hf_adapter.py.
"""

from attncheck.doctor.fixes.model import disable_ring_attention
from attncheck.doctor.rules import Known, Model, Problem, Problems, Rule, Snapshot, about_model


@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    if not isinstance(model.softcap, Known) or not snapshot.has("ring-flash-attn"):
        return
    yield Problem(
        message=f"ring attention refuses the softcap of {model.model_type}",
        evidence=(f"attn_logit_softcapping is {model.softcap.value:g}; ring-flash-attn asserts that it is not set",),
        fixes=(disable_ring_attention(snapshot),),
        subject=model.model_type,
    )


RULE = Rule("ATN503", "error", check, needs=frozenset({"ring"}))
