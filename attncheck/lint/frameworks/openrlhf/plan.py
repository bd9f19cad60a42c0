"""Writes a plan for OpenRLHF, as the flags of `openrlhf.cli.train_sft`.

Names are those of its wheels (cli/train_sft.py): dotted since 0.10.2; flat before, all renamed at once without aliases.
`--attn_implementation` exists since 0.8.10, before that `--flash_attn` or eager (models/actor.py:59). `--param_dtype`
exists since 0.9.2, before that `--bf16` (0.8.9.post1, 0.9.1, 0.10.1.post2, 0.10.2, 0.11.2).
"""

from attncheck.lint.fields import (
    Plan,
    VersionCheck,
    format_exports,
    list_applying,
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

    is_ring = plan.ring_size > 1 and plan.scheme == "llama3"
    flags = {
        flag("packing_samples", "ds.packing_samples"): plan.packed,
        flag("use_liger_kernel", "ds.use_liger_kernel"): plan.liger,
        flag("gradient_checkpointing", "model.gradient_checkpointing_enable"): plan.gradient_checkpointing,
        flag("full_determinism", "train.full_determinism_enable"): plan.deterministic,
        f"{flag('max_len', 'data.max_len')} {plan.max_length}": True,
        f"{flag('micro_train_batch_size', 'train.micro_batch_size')} {plan.batch}": not plan.packed,
        f"{flag('ring_attn_size', 'ds.ring_attn_size')} {plan.ring_size}": is_ring,
        f"{flag('ring_head_stride', 'ds.ring_attn_head_stride')} {plan.heads_k_stride}": is_ring,
    }
    return [
        *format_exports(plan),
        *_format_implementation(plan, since),
        *_format_precision(plan, since),
        *list_applying(flags),
        *_format_comments(plan, since),
    ]


def _format_implementation(plan: Plan, since: VersionCheck) -> list[str]:
    implementation = plan.attn_implementation
    if since("0.8.10"):
        flag = "--ds.attn_implementation" if since("0.10.2") else "--attn_implementation"
        return [f"{flag} {implementation}"] if implementation else []
    return ["--flash_attn"] if implementation == HOOKED else []


def _format_precision(plan: Plan, since: VersionCheck) -> list[str]:
    if plan.precision not in DTYPES or (plan.precision == "fp16" and not since("0.9.2")):
        return []
    if not since("0.9.2"):
        return ["--bf16"]
    return [f"--{'ds.' if since('0.10.2') else ''}param_dtype {DTYPES[plan.precision]}"]


def _format_comments(plan: Plan, since: VersionCheck) -> list[str]:
    """Return comment lines on settings that the flags do not express, or express only in part."""
    implementation, takes_names, is_dotted = plan.attn_implementation, since("0.8.10"), since("0.10.2")
    micro_batch_flag = "--train.micro_batch_size" if is_dotted else "--micro_train_batch_size"
    batch_flag = "--train.batch_size" if is_dotted else "--train_batch_size"
    is_ring = plan.ring_size > 1 and plan.scheme == "llama3"
    comments = {
        f"# {micro_batch_flag}: how many samples are packed into one row; with 1 nothing is packed": plan.packed,
        f"# {implementation}: with packing OpenRLHF replaces it with flash_attention_2 (cli/train_sft.py)": (
            plan.packed and implementation and "flash_attention" not in implementation
        ),
        f"# only {HOOKED} supports the ring: any other attn_implementation attends only to each rank's part": (
            is_ring and implementation != HOOKED
        ),
        f"# no attn_implementation in the plan: OpenRLHF's own default is {HOOKED}": (
            takes_names and not implementation
        ),
        f"# {implementation or 'the default'}: this release knows --flash_attn and, without it, eager": (
            not takes_names and implementation not in (HOOKED, "eager")
        ),
        f"# {plan.precision}: no setting; weights are in {'bf16 or fp16' if since('0.9.2') else 'bf16'}": (
            not _format_precision(plan, since)
        ),
        f"# accumulation of {plan.accumulation}: {batch_flag} = {plan.accumulation} × micro batch × data ranks": (
            plan.accumulation > 1
        ),
        f"# the cross-entropy is flash-attn's Triton kernel if it can be imported, not {plan.cross_entropy!r}": (
            plan.cross_entropy != "flash_attn"
        ),
        "# the padding side is not a setting: right in SFT and DPO, left in RM and PPO": not plan.packed,
    }
    supported = {"llama3": True, "cross_entropy": True, "shims": is_dotted, "padding_side": not plan.packed}
    explanation = "OpenRLHF passes position_ids that restart in each document, and no mask"
    return [
        *packing_remarks(plan, "position_ids", explanation=explanation),
        *list_applying(comments),
        *unsupported_remarks(plan, *list_applying(supported)),
    ]
