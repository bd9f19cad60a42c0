"""The model's ALiBi biases make its flash attention raise.

What it checks: falcon with `alibi: true` (falcon-rw): its class declares flash attention, but its forward refuses it.

Why it matters: the first forward raises "`alibi` is not supported when `use_flash_attn` is True", after the model was
loaded.

What to do: use sdpa or eager.

Source: transformers 4.42.4 to 5.23.0, models/falcon/modeling_falcon.py (`FalconFlashAttention2.forward`).
"""

from attncheck.doctor.fixes.model import use_other_attention
from attncheck.doctor.queries import forces_flash_attention, may_use_flash, refuses_implementation
from attncheck.doctor.rules import Model, Problem, Problems, Rule, Snapshot, about_model, only_if


@only_if(may_use_flash)  # the launch requests a different attention
@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    if model.model_type != "falcon" or not model.alibi or refuses_implementation(model, "flash_attention_2"):
        return
    yield Problem(
        message="falcon with alibi raises on flash attention at its first forward",
        evidence=("config.json sets alibi", "the class declares flash attention, so loading does not fail"),
        fixes=use_other_attention(snapshot, model, "flash_attention_2", "flex_attention"),
        subject=model.source,
        predicted=not forces_flash_attention(snapshot),
    )


RULE = Rule("ATN317", "error", check, needs=frozenset({"flash"}))
