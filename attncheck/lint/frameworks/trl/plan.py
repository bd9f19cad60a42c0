"""Writes a plan for TRL: YAML for `trl sft --config`, with the names of SFTConfig and ModelConfig.

Names are those of the wheels 0.19.1, 0.20.0, 0.24.0 and 1.16.0 (trainer/sft_config.py, trainer/model_config.py):
`dtype` since 0.24, before that `torch_dtype`; `packing_strategy` "bfd" since 0.20, before that "ffd". Packed rows of a
batch are flattened into one, with position_ids that restart in each document and, in 1.16, the bounds as keyword
arguments (trainer/sft_trainer.py:212).
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


def format_plan(plan: Plan, is_at_least: VersionCheck) -> list[str]:
    """Return the YAML lines of a plan."""
    fields = {}
    if plan.attn_implementation:
        fields["attn_implementation"] = plan.attn_implementation
    fields["dtype" if is_at_least("0.24") else "torch_dtype"] = WEIGHT_DTYPES[plan.precision]
    fields["bf16"] = format_bool(plan.precision == "autocast")
    fields["packing"] = format_bool(plan.packed)
    if plan.packed:
        fields["packing_strategy"] = "bfd" if is_at_least("0.20") else "ffd"
    fields["max_length"] = str(plan.max_length)
    fields |= format_trainer_fields(plan, "use_liger_kernel")
    return [
        *format_exports(plan, "# in the shell: "),
        *(f"{name}: {value}" for name, value in fields.items()),
        *_format_remarks(plan),
    ]


def _format_remarks(plan: Plan) -> list[str]:
    explanation = "TRL passes positions that restart in each document, and no mask"
    is_ulysses = plan.ring_size > 1 and plan.scheme == "ulysses"
    ulysses = f"# Ulysses is set in accelerate's configuration: sp_size {plan.ring_size}, sp_backend deepspeed"
    remarks = {
        f"# the batch's {plan.batch} rows are joined into one": plan.packed and plan.batch > 1,
        ulysses: is_ulysses,
    }
    return [
        *packing_remarks(plan, "position_ids", "cu_seqlens", explanation=explanation),
        *list_applying(remarks),
        *unsupported_remarks(plan, "compile", "ulysses"),
    ]
