"""Writes a plan for ms-swift: the flags of `swift sft`.

Names are those of the wheel 4.6.0 (arguments/base_args/{model,template,base}_args.py, arguments/sft_args.py:186,
trainers/arguments.py, whose arguments include transformers'). Packing needs a flash implementation. Ulysses divides the
sequence over gcd(kv heads, size) ranks and a zigzag ring over the rest (sequence_parallel.py:648), only for
flash_attention_2 and sdpa.
"""

from attncheck.lint.fields import (
    WEIGHT_DTYPES,
    Plan,
    VersionCheck,
    format_bool,
    format_exports,
    format_trainer_fields,
    list_applying,
    packing_remarks,
    unsupported_remarks,
)

FLASH_IMPLEMENTATIONS = ("flash_attn", "flash_attention_2", "flash_attention_3", "flash_attention_4")


def format_plan(plan: Plan, is_at_least: VersionCheck) -> list[str]:
    """Return the flags of a plan, one per line."""
    fields = {}
    if plan.attn_implementation:
        fields["attn_impl"] = plan.attn_implementation
    fields["torch_dtype"] = WEIGHT_DTYPES[plan.precision]
    fields["bf16"] = format_bool(plan.precision == "autocast")
    fields["fp16"] = "false"
    if plan.packed:
        fields["packing"] = "true"
        fields["packing_length"] = str(plan.max_length)
    else:
        fields["padding_side"] = plan.padding_side
    fields["max_length"] = str(plan.max_length)
    fields |= format_trainer_fields(plan, "use_liger_kernel")
    if plan.ring_size > 1 and plan.scheme == "ulysses":
        fields["sequence_parallel_size"] = str(plan.ring_size)
    return [*format_exports(plan), *(f"--{name} {value}" for name, value in fields.items()), *_format_remarks(plan)]


def _format_remarks(plan: Plan) -> list[str]:
    implementation = plan.attn_implementation
    is_ulysses = plan.ring_size > 1 and plan.scheme == "ulysses"
    name = implementation or "the default"
    remarks = {
        f"# packing is refused under {name}: --attn_impl flash_attention_2, or no packing": (
            plan.packed and implementation not in FLASH_IMPLEMENTATIONS
        ),
        f"# the batch's {plan.batch} rows are joined into one": plan.packed and plan.batch > 1,
        "# Ulysses over gcd(kv heads, size) ranks, a zigzag ring over the rest": is_ulysses,
        f"# only flash_attention_2 and sdpa support it: {implementation} attends only to each rank's part": (
            is_ulysses and implementation not in ("flash_attention_2", "sdpa", "")
        ),
    }
    explanation = "ms-swift passes position_ids that restart in each document"
    return [
        *packing_remarks(plan, "position_ids", "cu_seqlens", explanation=explanation),
        *list_applying(remarks),
        *unsupported_remarks(plan, "compile", "padding_side", "ulysses"),
    ]
