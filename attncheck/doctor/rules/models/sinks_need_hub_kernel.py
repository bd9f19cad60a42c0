"""A model with attention sinks is redirected to a kernel that is not available here.

What it checks: whether transformers (5.3.0 or newer) turns flash_attention_2 into a Hub kernel or flash_attention_4 for
a model with sinks, and whether that kernel is in the local cache or installed.

Why it matters: loading downloads a kernel, which fails on an offline node; and vllm-flash-attn3 is built for Hopper
(sm_90), so other GPUs find no build.

What to do: use flex_attention or eager, or fetch the kernel beforehand on a node with network.

Source: transformers 5.3.0 to 5.23.0, models/gpt_oss/modeling_gpt_oss.py (`_compatible_flash_implementations`),
modeling_utils.py (`_check_and_adjust_attn_implementation`); unslothai/unsloth#3346.
"""

from attncheck.doctor.fixes.model import use_other_attention
from attncheck.doctor.knowledge.models import SINKS_REDIRECTED
from attncheck.doctor.queries.launch import may_use
from attncheck.doctor.queries.models import is_at_least, refusal_reason, refuses_implementation, requested_model
from attncheck.doctor.rules import Problem, Problems, Rule, Snapshot, value_or

KERNEL = "kernels-community/vllm-flash-attn3"


def check(snapshot: Snapshot) -> Problems:
    if not may_use(snapshot, "flash_attention_2"):
        return  # the launch requests another kernel, such as kernels-community/vllm-flash-attn3
    model = requested_model(snapshot)
    if model is None or not model.sinks or not is_at_least(snapshot.version("transformers"), SINKS_REDIRECTED):
        return
    refusal = refusal_reason(model, "flash_attention_2")
    if refuses_implementation(model, "flash_attention_2") and "turns it into" not in refusal:
        return
    if snapshot.has("flash-attn-4") or "turns it into flash_attention_4" in refusal:
        return
    unsupported = [
        device.sm for device in snapshot.visible_devices() if value_or(device.compute_capability, (9, 0))[0] != 9
    ]
    if KERNEL in snapshot.hub.kernels and not unsupported:
        return
    reason = f"is built for sm_90, not {unsupported[0]}" if unsupported else "is not in the Hub's cache"
    yield Problem(
        message=f"flash attention for {model.model_type} uses {KERNEL}, which {reason}",
        evidence=(
            "transformers turns flash_attention_2 into it because flash-attn 2 has no attention sinks",
            f"offline mode is {'on' if snapshot.hub.offline else 'off'}",
        ),
        fixes=use_other_attention(snapshot, model, "flash_attention_2"),
        subject=model.model_type,
    )


RULE = Rule("ATN313", "warning", check, needs=frozenset({"flash"}))
