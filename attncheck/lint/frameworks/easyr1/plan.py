"""Writes a plan for EasyR1, as the "key=value" words of `python3 -m verl.trainer.main`.

Names are those of b44b311 (verl/workers/actor/config.py:65-134). flash_attention_2 is fixed in the code.
"""

from attncheck.lint.fields import Plan, VersionCheck, format_bool, format_exports, packing_remarks, unsupported_remarks

ACTOR = "worker.actor"
WEIGHT_DTYPES = {"fp32": "fp32", "bf16": "bf16", "fp16": "fp16", "autocast": "fp32"}
COMPUTE_DTYPES = {"fp32": "fp32", "bf16": "bf16", "fp16": "fp16", "autocast": "bf16"}


def format_plan(plan: Plan, is_at_least: VersionCheck) -> list[str]:
    """Return the words of a plan, one per line."""
    words = [
        *format_exports(plan),
        f"{ACTOR}.padding_free={format_bool(plan.packed)}",
        f"{ACTOR}.model.enable_gradient_checkpointing={format_bool(plan.gradient_checkpointing)}",
        f"{ACTOR}.fsdp.torch_dtype={WEIGHT_DTYPES[plan.precision]}",
        f"{ACTOR}.fsdp.mp_param_dtype={COMPUTE_DTYPES[plan.precision]}",
        f"{ACTOR}.micro_batch_size_per_device_for_update={plan.batch}",
    ]
    if plan.ring_size > 1 and plan.scheme == "ulysses":
        words.append(f"{ACTOR}.ulysses_size={plan.ring_size}")
    return [*words, *_format_comments(plan)]


def _format_comments(plan: Plan) -> list[str]:
    comments = list(
        packing_remarks(plan, "position_ids", explanation="EasyR1 passes position_ids that restart in each document")
    )
    if plan.attn_implementation != "flash_attention_2":
        comments.append(f"# {plan.attn_implementation or 'the default'}: EasyR1 is hard-coded to flash_attention_2")
    comments.append(f"# rows of {plan.max_length} tokens: data.max_prompt_length + data.max_response_length")
    if plan.accumulation > 1:
        comments.append(f"# accumulation of {plan.accumulation}: {ACTOR}.global_batch_size decides")
    if plan.deterministic:
        comments.append("# torch.use_deterministic_algorithms(True): no setting")
    if plan.liger:
        comments.append("# liger: no setting")
    if plan.cross_entropy == "torch":
        comments.append("# the cross-entropy is flash-attn's Triton kernel if it can be imported; no setting")
    if not plan.packed:
        comments.append("# the padding side is not a setting")
    supported = ["ulysses", "padding_side", *(["cross_entropy"] if plan.cross_entropy != "chunked" else [])]
    return [*comments, *unsupported_remarks(plan, *supported)]
