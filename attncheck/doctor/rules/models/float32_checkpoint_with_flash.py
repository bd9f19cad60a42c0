"""The checkpoint is float32, but flash attention supports only half precision.

What it checks: dtype in config.json. transformers 5 loads a model in its checkpoint's dtype; transformers 4 loads any
checkpoint in float32 by default.

Why it matters: if neither the load nor autocast casts it, flash-attn raises "FlashAttention only support fp16 and bf16
data type". This typically happens in an evaluation or generate() outside the trainer.

What to do: load with dtype=torch.bfloat16, or train with bf16 on.

Source: flash-attn 2.8.3, csrc/flash_attn/flash_api.cpp; transformers 5.23.0, modeling_utils.py;
huggingface/transformers#26066.
"""

from attncheck.doctor.queries import may_use_flash, refuses_implementation
from attncheck.doctor.rules import Fix, Known, Model, Problem, Problems, Rule, Snapshot, about_model, only_if, value_or


@only_if(may_use_flash)  # the launch requests a different attention
@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    if value_or(model.dtype, "") != "float32" or refuses_implementation(model, "flash_attention_2"):
        return
    if isinstance(snapshot.job, Known) and snapshot.job.value.plan.precision != "fp32":
        return  # the launch trains in half precision, so loading or autocast casts
    yield Problem(
        message=(f"the checkpoint of {model.source} is float32, but flash attention needs float16 or bfloat16"),
        evidence=("static lane: dtype in config.json",),
        fixes=(Fix("load it in half precision", "setting", "dtype=torch.bfloat16"),),
        subject=model.source,
    )


RULE = Rule("ATN325", "note", check, needs=frozenset({"flash"}))
