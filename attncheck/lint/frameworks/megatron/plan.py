"""Writes a plan for Megatron-LM: options of `pretrain_gpt.py`, as in core_v0.15.0 megatron/training/arguments.py."""

from attncheck.lint.fields import (
    Plan,
    VersionCheck,
    format_exports,
    list_applying,
    packing_remarks,
    unsupported_remarks,
)

PRECISION_SWITCHES = {"bf16": ["--bf16"], "autocast": ["--bf16"], "fp16": ["--fp16"], "fp32": []}


def format_plan(plan: Plan, is_at_least: VersionCheck) -> list[str]:
    """Return the options of a plan, one per line."""
    switches = {
        "--reset-position-ids": plan.packed,
        "--recompute-activations": plan.gradient_checkpointing,
        "export NCCL_ALGO=Ring": plan.deterministic,
        "export NVTE_ALLOW_NONDETERMINISTIC_ALGO=0": plan.deterministic,
        "--deterministic-mode": plan.deterministic,
        f"--context-parallel-size {plan.ring_size}": plan.ring_size > 1,
    }
    return [
        *format_exports(plan),
        *PRECISION_SWITCHES[plan.precision],
        f"--seq-length {plan.max_length}",
        f"--micro-batch-size {plan.batch}",
        *list_applying(switches),
        *_format_comments(plan),
    ]


def _format_comments(plan: Plan) -> list[str]:
    name = plan.attn_implementation or "the default"
    comments = {
        f"# its own context parallelism, not {plan.scheme}": plan.ring_size > 1,
        "# weights in bfloat16; the optimiser keeps them in float32": plan.precision == "autocast",
        f"# accumulation of {plan.accumulation}: --global-batch-size decides": plan.accumulation > 1,
        "# liger: no setting": plan.liger,
        "# the padding side is not a setting": not plan.packed,
    }
    return [
        *packing_remarks(plan, explanation="rows are filled with documents that attend to one another"),
        f"# {name}: Megatron has its own attention, --attention-backend auto, flash, fused or unfused",
        *list_applying(comments),
        *unsupported_remarks(plan, "padding_side", plan.scheme),
    ]
