"""The model has layers with a head size above 256, which flash attention does not support.

What it checks: the largest q/k head size over all layers, from config.json and the installed class. Gemma 4 has 512
on its full_attention layers, although its class declares flash attention.

Why it matters: the first such layer raises "FlashAttention forward only supports head dimension at most 256", after the
weights are loaded.

What to do: use sdpa or flex_attention.

Source: flash-attn 2.8.3, csrc/flash_attn/flash_api.cpp; transformers 5.23.0, models/gemma4/configuration_gemma4.py
(`global_head_dim`); Dao-AILab/flash-attention#2427.
"""

from attncheck.doctor.fixes.model import use_other_attention
from attncheck.doctor.queries import forces_flash_attention, may_use_flash, refuses_implementation
from attncheck.doctor.rules import Model, Problem, Problems, Rule, Snapshot, about_model, only_if


@only_if(may_use_flash)  # the launch requests a different attention
@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    if refuses_implementation(model, "flash_attention_2"):
        return
    largest = max(model.head_dims, default=0)
    if largest <= 256:
        return
    yield Problem(
        message=f"{model.model_type} has head_dim {largest}, but flash attention supports at most 256",
        evidence=("head sizes by layer: " + ", ".join(map(str, model.head_dims)),),
        fixes=use_other_attention(snapshot, model, "flash_attention_2"),
        subject=model.model_type,
        predicted=not forces_flash_attention(snapshot),
    )


RULE = Rule("ATN314", "error", check, needs=frozenset({"flash", "ring"}))
