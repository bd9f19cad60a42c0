"""Writes a plan for OpenRLHF, as the flags of `openrlhf.cli.train_sft`.

Names are those of its wheels (cli/train_sft.py): dotted since 0.10.2; flat before, all renamed at once without aliases.
`--attn_implementation` exists since 0.8.10, before that `--flash_attn` or eager (models/actor.py:59). `--param_dtype`
exists since 0.9.2, before that `--bf16` (0.8.9.post1, 0.9.1, 0.10.1.post2, 0.10.2, 0.11.2).
"""

from attncheck.lint.fields import (
    Plan,
    VersionCheck,
    format_exports,
    format_switch,
    packing_remarks,
    unsupported_remarks,
)

HOOKED = "flash_attention_2"  # the implementation that the ring replaces
DTYPES = {"bf16": "bf16", "fp16": "fp16"}


def plan_settings(plan: Plan, since: VersionCheck) -> list[str]:
    """Return the flags of a plan, one per line."""
    dotted = since("0.10.2")

    def flag(flat_name: str, dotted_name: str) -> str:
        return f"--{dotted_name}" if dotted else f"--{flat_name}"

    flags = [
        *_format_implementation(plan, since),
        *_format_precision(plan, since),
        *format_switch(flag("packing_samples", "ds.packing_samples"), plan.packed),
        *format_switch(flag("use_liger_kernel", "ds.use_liger_kernel"), plan.liger),
        *format_switch(
            flag("gradient_checkpointing", "model.gradient_checkpointing_enable"), plan.gradient_checkpointing
        ),
        *format_switch(flag("full_determinism", "train.full_determinism_enable"), plan.deterministic),
        f"{flag('max_len', 'data.max_len')} {plan.max_length}",
    ]
    if not plan.packed:
        flags.append(f"{flag('micro_train_batch_size', 'train.micro_batch_size')} {plan.batch}")
    if plan.ring_size > 1 and plan.scheme == "llama3":
        flags.append(f"{flag('ring_attn_size', 'ds.ring_attn_size')} {plan.ring_size}")
        flags.append(f"{flag('ring_head_stride', 'ds.ring_attn_head_stride')} {plan.heads_k_stride}")
    return [*format_exports(plan), *flags, *_format_comments(plan, since)]


def _format_implementation(plan: Plan, since: VersionCheck) -> list[str]:
    implementation = plan.attn_implementation
    if since("0.8.10"):
        flag = "--ds.attn_implementation" if since("0.10.2") else "--attn_implementation"
        return [f"{flag} {implementation}"] if implementation else []
    return format_switch("--flash_attn", implementation == HOOKED)


def _format_precision(plan: Plan, since: VersionCheck) -> list[str]:
    if plan.precision not in DTYPES or (plan.precision == "fp16" and not since("0.9.2")):
        return []
    if not since("0.9.2"):
        return ["--bf16"]
    return [f"--{'ds.' if since('0.10.2') else ''}param_dtype {DTYPES[plan.precision]}"]


def _format_comments(plan: Plan, since: VersionCheck) -> list[str]:
    """Return comment lines on settings that the flags do not express, or express only in part."""
    comments = list(
        packing_remarks(
            plan, "position_ids", explanation="OpenRLHF passes position_ids that restart in each document, and no mask"
        )
    )
    implementation = plan.attn_implementation
    if plan.packed:
        batch_flag = "--train.micro_batch_size" if since("0.10.2") else "--micro_train_batch_size"
        comments.append(f"# {batch_flag}: how many samples are packed into one row; with 1 nothing is packed")
    if plan.packed and implementation and "flash_attention" not in implementation:
        comments.append(
            f"# {implementation}: with packing OpenRLHF replaces it with flash_attention_2 (cli/train_sft.py)"
        )
    if plan.ring_size > 1 and plan.scheme == "llama3" and implementation != HOOKED:
        comments.append(
            f"# only {HOOKED} supports the ring: any other attn_implementation attends only to each rank's part"
        )
    if not implementation and since("0.8.10"):
        comments.append(f"# no attn_implementation in the plan: OpenRLHF's own default is {HOOKED}")
    if not since("0.8.10") and implementation not in (HOOKED, "eager"):
        comments.append(f"# {implementation or 'the default'}: this release knows --flash_attn and, without it, eager")
    if plan.precision not in DTYPES or (plan.precision == "fp16" and not since("0.9.2")):
        dtypes = "bf16 or fp16" if since("0.9.2") else "bf16"
        comments.append(f"# {plan.precision}: no setting; weights are in {dtypes}")
    if plan.accumulation > 1:
        flag = "--train.batch_size" if since("0.10.2") else "--train_batch_size"
        comments.append(
            f"# accumulation of {plan.accumulation}: {flag} = {plan.accumulation} × micro batch × data ranks"
        )
    supported = ["llama3", "cross_entropy", *(["shims"] if since("0.10.2") else [])]
    if plan.cross_entropy != "flash_attn":
        comments.append(
            f"# the cross-entropy is flash-attn's Triton kernel if it can be imported, not {plan.cross_entropy!r}"
        )
    if not plan.packed:
        comments.append("# the padding side is not a setting: right in SFT and DPO, left in RM and PPO")
        supported.append("padding_side")
    return [*comments, *unsupported_remarks(plan, *supported)]
