"""Writes a plan for slime: options of its `train.py`, from v0.3.1 slime/utils/arguments.py and Megatron's."""

from attncheck.lint.fields import (
    Plan,
    VersionCheck,
    format_exports,
    list_applying,
    packing_remarks,
    unsupported_remarks,
)


def format_plan(plan: Plan, is_at_least: VersionCheck) -> list[str]:
    """Return the options of a plan, one per line."""
    switches = {
        "--fp16": plan.precision == "fp16",
        "--use-dynamic-batch-size": True,
        f"--max-tokens-per-gpu {plan.max_length * plan.batch}": True,
        "--recompute-granularity full": plan.gradient_checkpointing,
        "--recompute-method uniform": plan.gradient_checkpointing,
        "--recompute-num-layers 1": plan.gradient_checkpointing,
        "export NCCL_ALGO=Ring": plan.deterministic,
        "export NVTE_ALLOW_NONDETERMINISTIC_ALGO=0": plan.deterministic,
        "--deterministic-mode": plan.deterministic,
        f"--context-parallel-size {plan.ring_size}": plan.ring_size > 1,
    }
    return [*format_exports(plan), *list_applying(switches), *_format_comments(plan)]


def _format_comments(plan: Plan) -> list[str]:
    name = plan.attn_implementation or "the default"
    padding = "# documents are always joined to rows with cu_seqlens: the padding side is not a setting"
    is_converted = plan.precision in ("autocast", "fp32")
    comments = {
        "# weights are in bfloat16, always; the optimiser keeps them in float32": is_converted,
        f"# Megatron's context parallelism, not {plan.scheme}": plan.ring_size > 1,
        f"# accumulation of {plan.accumulation}: --global-batch-size decides": plan.accumulation > 1,
        "# liger: no setting": plan.liger,
    }
    return [
        f"# {name}: Megatron has its own attention, --attention-backend auto, flash, fused or unfused",
        *list_applying({padding: not plan.packed}),
        *packing_remarks(plan, "cu_seqlens", explanation="rows are packed with cu_seqlens"),
        *list_applying(comments),
        *unsupported_remarks(plan, "padding_side", plan.scheme),
    ]
