"""Writes a plan for slime: options of its `train.py`, from v0.3.1 slime/utils/arguments.py and Megatron's."""

from attncheck.lint.fields import Plan, VersionCheck, format_exports, packing_remarks, unsupported_remarks


def format_plan(plan: Plan, is_at_least: VersionCheck) -> list[str]:
    """Return the options of a plan, one per line."""
    lines = [*format_exports(plan)]
    if plan.precision == "fp16":
        lines.append("--fp16")
    lines += ["--use-dynamic-batch-size", f"--max-tokens-per-gpu {plan.max_length * plan.batch}"]
    if plan.gradient_checkpointing:
        lines += ["--recompute-granularity full", "--recompute-method uniform", "--recompute-num-layers 1"]
    if plan.deterministic:
        lines += ["export NCCL_ALGO=Ring", "export NVTE_ALLOW_NONDETERMINISTIC_ALGO=0", "--deterministic-mode"]
    if plan.ring_size > 1:
        lines.append(f"--context-parallel-size {plan.ring_size}")
    return [*lines, *_format_comments(plan)]


def _format_comments(plan: Plan) -> list[str]:
    name = plan.attn_implementation or "the default"
    comments = [f"# {name}: Megatron has its own attention, --attention-backend auto, flash, fused or unfused"]
    if not plan.packed:
        comments.append("# documents are always joined to rows with cu_seqlens: the padding side is not a setting")
    comments += packing_remarks(plan, "cu_seqlens", explanation="rows are packed with cu_seqlens")
    if plan.precision in ("autocast", "fp32"):
        comments.append("# weights are in bfloat16, always; the optimiser keeps them in float32")
    if plan.ring_size > 1:
        comments.append(f"# Megatron's context parallelism, not {plan.scheme}")
    if plan.accumulation > 1:
        comments.append(f"# accumulation of {plan.accumulation}: --global-batch-size decides")
    if plan.liger:
        comments.append("# liger: no setting")
    return [*comments, *unsupported_remarks(plan, "padding_side", plan.scheme)]
