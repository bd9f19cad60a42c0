"""Writes a plan for NeMo-RL: overrides of `examples/run_sft.py`, as in v0.7.0 examples/configs/sft.yaml."""

from attncheck.lint.fields import (
    Plan,
    VersionCheck,
    format_bool,
    format_exports,
    list_applying,
    packing_remarks,
    unsupported_remarks,
)

PRECISIONS = {"bf16": "bfloat16", "autocast": "bfloat16", "fp16": "float16", "fp32": "float32"}


def format_plan(plan: Plan, is_at_least: VersionCheck) -> list[str]:
    """Return the overrides of a plan, one per line."""
    packs = plan.packed and plan.ring_size == 1
    return [
        *format_exports(plan),
        f"policy.precision={PRECISIONS[plan.precision]}",
        f"policy.sequence_packing.enabled={format_bool(packs)}",
        f"policy.max_total_sequence_length={plan.max_length}",
        f"policy.train_micro_batch_size={plan.batch}",
        f"policy.dtensor_cfg.activation_checkpointing={format_bool(plan.gradient_checkpointing)}",
        f"policy.dtensor_cfg.context_parallel_size={plan.ring_size}",
        *_format_comments(plan, packs),
    ]


def _format_comments(plan: Plan, packs: bool) -> list[str]:
    chosen = "flash_attention_2" if packs else "sdpa" if plan.ring_size > 1 else "transformers' default"
    comments = {
        "# packing with context parallelism: only with policy.megatron_cfg.enabled=true": plan.packed and not packs,
        "# rows are padded on the right: the padding side is not a setting": not plan.packed,
        f"# torch's context parallelism, not {plan.scheme}": plan.ring_size > 1,
        "# weights are kept in float32 and gathered in bfloat16": plan.precision == "autocast",
        f"# accumulation of {plan.accumulation}: policy.train_global_batch_size decides": plan.accumulation > 1,
        "# liger: no setting": plan.liger,
    }
    return [
        f"# {plan.attn_implementation or 'the default'}: no setting; {chosen} is used",
        *packing_remarks(plan, "cu_seqlens", explanation="rows are packed with cu_seqlens"),
        *list_applying(comments),
        *unsupported_remarks(plan, "padding_side", plan.scheme),
    ]
