"""Writes a plan for EasyR1, as the "key=value" words of `python3 -m verl.trainer.main`.

Names are those of b44b311 (verl/workers/actor/config.py:65-134). flash_attention_2 is fixed in the code.
"""

from attncheck.lint.fields import (
    Plan,
    VersionCheck,
    format_bool,
    format_exports,
    list_applying,
    packing_remarks,
    unsupported_remarks,
)

ACTOR = "worker.actor"
WEIGHT_DTYPES = {"fp32": "fp32", "bf16": "bf16", "fp16": "fp16", "autocast": "fp32"}
COMPUTE_DTYPES = {"fp32": "fp32", "bf16": "bf16", "fp16": "fp16", "autocast": "bf16"}


def format_plan(plan: Plan, is_at_least: VersionCheck) -> list[str]:
    """Return the words of a plan, one per line."""
    is_ulysses = plan.ring_size > 1 and plan.scheme == "ulysses"
    return [
        *format_exports(plan),
        f"{ACTOR}.padding_free={format_bool(plan.packed)}",
        f"{ACTOR}.model.enable_gradient_checkpointing={format_bool(plan.gradient_checkpointing)}",
        f"{ACTOR}.fsdp.torch_dtype={WEIGHT_DTYPES[plan.precision]}",
        f"{ACTOR}.fsdp.mp_param_dtype={COMPUTE_DTYPES[plan.precision]}",
        f"{ACTOR}.micro_batch_size_per_device_for_update={plan.batch}",
        *list_applying({f"{ACTOR}.ulysses_size={plan.ring_size}": is_ulysses}),
        *_format_comments(plan),
    ]


def _format_comments(plan: Plan) -> list[str]:
    implementation = plan.attn_implementation
    cross_entropy = "# the cross-entropy is flash-attn's Triton kernel if it can be imported; no setting"
    comments = {
        f"# {implementation or 'the default'}: EasyR1 is hard-coded to flash_attention_2": (
            implementation != "flash_attention_2"
        ),
        f"# rows of {plan.max_length} tokens: data.max_prompt_length + data.max_response_length": True,
        f"# accumulation of {plan.accumulation}: {ACTOR}.global_batch_size decides": plan.accumulation > 1,
        "# torch.use_deterministic_algorithms(True): no setting": plan.deterministic,
        "# liger: no setting": plan.liger,
        cross_entropy: plan.cross_entropy == "torch",
        "# the padding side is not a setting": not plan.packed,
    }
    supported = ["ulysses", "padding_side", *(["cross_entropy"] if plan.cross_entropy != "chunked" else [])]
    return [
        *packing_remarks(plan, "position_ids", explanation="EasyR1 passes position_ids that restart in each document"),
        *list_applying(comments),
        *unsupported_remarks(plan, *supported),
    ]
