"""A plan for ms-swift: the flags of `swift sft`.

Names as in the wheel 4.6.0 (arguments/base_args/{model,template,base}_args.py, arguments/sft_args.py:186,
trainers/arguments.py, whose arguments are transformers' own too). Packing needs a flash implementation. The sequence is
cut by Ulysses over gcd(kv heads, size) ranks and by a zigzag ring over the rest (sequence_parallel.py:648), in
flash_attention_2 and sdpa alone.
"""

from __future__ import annotations

from attncheck.core.plan import Plan
from attncheck.lint.fields.plan_writing import DTYPES, Since, exports, remarks, unlike, word

FLASH = ("flash_attn", "flash_attention_2", "flash_attention_3", "flash_attention_4")


def plan_settings(plan: Plan, since: Since) -> list[str]:
    """Return the flags of a plan, one a line."""
    found = {}
    if plan.attn_implementation:
        found["attn_impl"] = plan.attn_implementation
    found["torch_dtype"] = DTYPES[plan.precision]
    found["bf16"] = word(plan.precision == "autocast")
    found["fp16"] = "false"
    if plan.packed:
        found["packing"] = "true"
        found["packing_length"] = str(plan.max_length)
    else:
        found["padding_side"] = plan.padding_side
    found["max_length"] = str(plan.max_length)
    found["per_device_train_batch_size"] = str(plan.batch)
    found["gradient_accumulation_steps"] = str(plan.accumulation)
    found["gradient_checkpointing"] = word(plan.gradient_checkpointing)
    found["use_liger_kernel"] = word(plan.liger)
    if plan.compile:
        found["torch_compile"] = "true"
    if plan.deterministic:
        found["full_determinism"] = "true"
    if plan.ring_size > 1 and plan.scheme == "ulysses":
        found["sequence_parallel_size"] = str(plan.ring_size)
    return [*exports(plan), *(f"--{name} {value}" for name, value in found.items()), *_remarks(plan)]


def _remarks(plan: Plan) -> list[str]:
    found = list(unlike(plan, "position_ids", "cu_seqlens", told="ms-swift gives position_ids that begin anew"))
    wanted = plan.attn_implementation
    if plan.packed and wanted not in FLASH:
        found.append(
            f"# packing is refused under {wanted or 'the default'}: --attn_impl flash_attention_2, or no packing"
        )
    if plan.packed and plan.batch > 1:
        found.append(f"# the batch's {plan.batch} rows are joined into one")
    if plan.ring_size > 1 and plan.scheme == "ulysses":
        found.append("# Ulysses over gcd(kv heads, size) ranks, a zigzag ring over the rest")
        if wanted not in ("flash_attention_2", "sdpa", ""):
            found.append(f"# it is in flash_attention_2 and sdpa alone: {wanted} attends to each rank's part only")
    return [*found, *remarks(plan, "compile", "padding_side", "ulysses")]
