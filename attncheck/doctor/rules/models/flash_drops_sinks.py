"""flash_attention_2 silently drops the model's attention sinks.

What it checks: whether the model has attention sinks and this transformers accepts plain flash_attention_2 for it
(4.55.0 until the redirection in 5.3.0).

Why it matters: the kernel of flash-attn 2 has no argument for sinks, and transformers drops them without an error: the
softmax is normalised differently in every layer, and the model trains on wrong attention.

What to do: use eager or flex_attention, flash_attention_4, or the kernel kernels-community/vllm-flash-attn3 on Hopper.

Source: transformers 4.57.3, modeling_flash_attention_utils.py (`s_aux` only where the kernel takes it) and 5.3.0,
models/gpt_oss/modeling_gpt_oss.py (`_compatible_flash_implementations`); vllm-project/vllm#22331.
"""

from attncheck.doctor.fixes.model import use_other_attention
from attncheck.doctor.knowledge.models import SINKS_REDIRECTED
from attncheck.doctor.queries import find_hub_fallback, may_use, refuses_implementation
from attncheck.doctor.rules import Model, Problem, Problems, Rule, Snapshot, Version, about_model, need, only_if


@only_if(may_use, "flash_attention_2")  # the launch requests another kernel, such as kernels-community/vllm-flash-attn3
@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    if not model.sinks or not snapshot.has("transformers"):
        return
    version = need(snapshot.version("transformers"), "the version of transformers")
    if version >= Version(SINKS_REDIRECTED) or refuses_implementation(model, "flash_attention_2"):
        return
    if not snapshot.has("flash-attn") and find_hub_fallback(snapshot) is None:
        return  # flash_attention_2 then raises, so nothing is dropped
    yield Problem(
        message=f"transformers {version} runs {model.model_type} on flash_attention_2 without its attention sinks",
        evidence=("flash-attn 2 has no sinks, and this transformers silently drops them",),
        fixes=use_other_attention(snapshot, model, "flash_attention_2"),
        subject=model.model_type,
    )


RULE = Rule("ATN312", "error", check, needs=frozenset({"flash"}))
