"""Ring attention does not support ALiBi, which the model needs.

What it checks: ring-flash-attn on a model with ALiBi biases (bloom, mpt, falcon-rw).

Why it matters: the first forward raises a bare AssertionError (`alibi_slopes is None`), unless the class already
refused flash attention.

What to do: do not use ring attention for this model.

Source: ring_flash_attn 0.1.8, llama3_flash_attn_varlen.py and ring_flash_attn.py (`assert alibi_slopes is None`).
"""

from attncheck.doctor.fixes.model import disable_ring_attention
from attncheck.doctor.queries.models import refuses_implementation
from attncheck.doctor.rules import Model, Problem, Problems, Rule, Snapshot, about_model


@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    if not model.alibi or not snapshot.has("ring-flash-attn"):
        return
    if refuses_implementation(model, "flash_attention_2"):
        return
    yield Problem(
        message=f"ring attention does not support ALiBi, which {model.model_type} uses for positions",
        evidence=("ring-flash-attn asserts that there are no alibi_slopes",),
        fixes=(disable_ring_attention(snapshot),),
        subject=model.model_type,
    )


RULE = Rule("ATN504", "error", check, needs=frozenset({"ring"}))
