"""Ring attention drops the model's attention sinks.

What it checks: ring-flash-attn on a model with attention sinks (gpt_oss and similar models).

Why it matters: the error is silent. The adapter's functions accept `s_aux` and ignore it, so every layer is
normalised without its sink.

What to do: do not use ring attention for this model. Use Ulysses with a kernel that supports sinks.

Source: ring_flash_attn 0.1.8, adapters/hf_adapter.py (the `**kwargs` of its adapters); transformers 5.23.0,
models/gpt_oss/modeling_gpt_oss.py (`s_aux=self.sinks`).
"""

from attncheck.doctor.fixes.model import disable_ring_attention
from attncheck.doctor.rules import Model, Problem, Problems, Rule, Snapshot, about_model


@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    if not model.sinks or not snapshot.has("ring-flash-attn"):
        return
    yield Problem(
        message=f"ring attention drops the attention sinks of {model.model_type}",
        evidence=("ring-flash-attn's adapter accepts s_aux and ignores it",),
        fixes=(disable_ring_attention(snapshot),),
        subject=model.model_type,
    )


RULE = Rule("ATN502", "error", check, needs=frozenset({"ring"}))
