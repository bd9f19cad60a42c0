"""A plan for OpenRLHF: the flags of `openrlhf.cli.train_sft`.

Names as in its wheels (cli/train_sft.py): dotted from 0.10.2 on, flat before, all renamed at once and without aliases;
`--attn_implementation` since 0.8.10, before that `--flash_attn` or eager (models/actor.py:59); `--param_dtype` since
0.9.2, before that `--bf16` (0.8.9.post1, 0.9.1, 0.10.1.post2, 0.10.2, 0.11.2).
"""

from __future__ import annotations

from attncheck.core.plan import Plan
from attncheck.lint.fields.plan_writing import Since, exports, remarks, switch, unlike

HOOKED = "flash_attention_2"
DTYPES = {"bf16": "bf16", "fp16": "fp16"}


def plan_settings(plan: Plan, since: Since) -> list[str]:
    """Return the flags of a plan, one a line."""
    dotted = since("0.10.2")

    def name(flat: str, new: str) -> str:
        return f"--{new}" if dotted else f"--{flat}"

    flags = [
        *_implementation(plan, since),
        *_precision(plan, since),
        *switch(name("packing_samples", "ds.packing_samples"), plan.packed),
        *switch(name("use_liger_kernel", "ds.use_liger_kernel"), plan.liger),
        *switch(name("gradient_checkpointing", "model.gradient_checkpointing_enable"), plan.gradient_checkpointing),
        *switch(name("full_determinism", "train.full_determinism_enable"), plan.deterministic),
        f"{name('max_len', 'data.max_len')} {plan.max_length}",
    ]
    if not plan.packed:
        flags.append(f"{name('micro_train_batch_size', 'train.micro_batch_size')} {plan.batch}")
    if plan.ring_size > 1 and plan.scheme == "llama3":
        flags.append(f"{name('ring_attn_size', 'ds.ring_attn_size')} {plan.ring_size}")
        flags.append(f"{name('ring_head_stride', 'ds.ring_attn_head_stride')} {plan.heads_k_stride}")
    return [*exports(plan), *flags, *_remarks(plan, since)]


def _implementation(plan: Plan, since: Since) -> list[str]:
    wanted = plan.attn_implementation
    if since("0.8.10"):
        flag = "--ds.attn_implementation" if since("0.10.2") else "--attn_implementation"
        return [f"{flag} {wanted}"] if wanted else []
    return switch("--flash_attn", wanted == HOOKED)


def _precision(plan: Plan, since: Since) -> list[str]:
    if plan.precision not in DTYPES or (plan.precision == "fp16" and not since("0.9.2")):
        return []
    if not since("0.9.2"):
        return ["--bf16"]
    return [f"--{'ds.' if since('0.10.2') else ''}param_dtype {DTYPES[plan.precision]}"]


def _remarks(plan: Plan, since: Since) -> list[str]:
    found = list(unlike(plan, "position_ids", told="OpenRLHF gives position_ids that begin anew, and no mask"))
    wanted = plan.attn_implementation
    if plan.packed:
        size = "--train.micro_batch_size" if since("0.10.2") else "--micro_train_batch_size"
        found.append(f"# {size}: how many samples are laid into one row; with 1 nothing is packed")
    if plan.packed and wanted and "flash_attention" not in wanted:
        found.append(f"# {wanted}: with packing OpenRLHF puts flash_attention_2 in its place (cli/train_sft.py)")
    if plan.ring_size > 1 and plan.scheme == "llama3" and wanted != HOOKED:
        found.append(f"# the ring is in {HOOKED} alone: any other attn_implementation attends to each rank's part only")
    if not wanted and since("0.8.10"):
        found.append(f"# no attn_implementation in the plan: OpenRLHF's own default is {HOOKED}")
    if not since("0.8.10") and wanted not in (HOOKED, "eager"):
        found.append(f"# {wanted or 'the default'}: this release knows --flash_attn and, without it, eager")
    if plan.precision not in DTYPES or (plan.precision == "fp16" and not since("0.9.2")):
        found.append(f"# {plan.precision}: no setting; weights are in {'bf16 or fp16' if since('0.9.2') else 'bf16'}")
    if plan.accumulation > 1:
        whole = "--train.batch_size" if since("0.10.2") else "--train_batch_size"
        found.append(f"# accumulation of {plan.accumulation}: {whole} = {plan.accumulation} × micro batch × data ranks")
    able = ["llama3", "cross_entropy", *(["shims"] if since("0.10.2") else [])]
    if plan.cross_entropy != "flash_attn":
        found.append(
            f"# the cross-entropy is flash-attn's Triton kernel wherever it imports, not {plan.cross_entropy!r}"
        )
    if not plan.packed:
        found.append("# the padding side is no setting: right in SFT and DPO, left in RM and PPO")
        able.append("padding_side")
    return [*found, *remarks(plan, *able)]
