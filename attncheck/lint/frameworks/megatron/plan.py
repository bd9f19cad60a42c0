"""Writes a plan for Megatron-LM: options of `pretrain_gpt.py`, as in core_v0.15.0 megatron/training/arguments.py."""

from attncheck.lint.fields import Plan, VersionCheck, format_exports, packing_remarks, unsupported_remarks

PRECISION_SWITCHES = {"bf16": ["--bf16"], "autocast": ["--bf16"], "fp16": ["--fp16"], "fp32": []}


def format_plan(plan: Plan, is_at_least: VersionCheck) -> list[str]:
    """Return the options of a plan, one per line."""
    lines = [*format_exports(plan), *PRECISION_SWITCHES[plan.precision]]
    lines += [f"--seq-length {plan.max_length}", f"--micro-batch-size {plan.batch}"]
    if plan.packed:
        lines.append("--reset-position-ids")
    if plan.gradient_checkpointing:
        lines.append("--recompute-activations")
    if plan.deterministic:
        lines += ["export NCCL_ALGO=Ring", "export NVTE_ALLOW_NONDETERMINISTIC_ALGO=0", "--deterministic-mode"]
    if plan.ring_size > 1:
        lines.append(f"--context-parallel-size {plan.ring_size}")
    return [*lines, *_format_comments(plan)]


def _format_comments(plan: Plan) -> list[str]:
    comments = list(packing_remarks(plan, explanation="rows are filled with documents that attend to one another"))
    name = plan.attn_implementation or "the default"
    comments.append(f"# {name}: Megatron has its own attention, --attention-backend auto, flash, fused or unfused")
    if plan.ring_size > 1:
        comments.append(f"# its own context parallelism, not {plan.scheme}")
    if plan.precision == "autocast":
        comments.append("# weights in bfloat16; the optimiser keeps them in float32")
    if plan.accumulation > 1:
        comments.append(f"# accumulation of {plan.accumulation}: --global-batch-size decides")
    if plan.liger:
        comments.append("# liger: no setting")
    if not plan.packed:
        comments.append("# the padding side is not a setting")
    return [*comments, *unsupported_remarks(plan, "padding_side", plan.scheme)]
