"""Writes a plan for LLaMA-Factory: YAML for `llamafactory-cli train`, stage sft.

Names are those of the wheel 0.9.5 (hparams/model_args.py, data_args.py, finetuning_args.py). `flash_attn` takes auto,
disabled (eager), sdpa and fa2, while fa3 raises (model/model_utils/attention.py:86). `neat_packing` keeps documents
apart: by position_ids with fa2, by a 4-D mask otherwise (data/collator.py:524). `packing` alone does not. Without
`pure_bf16`, trainable weights are cast to float32 (model/adapter.py:316).
"""

from attncheck.lint.fields import (
    Plan,
    VersionCheck,
    format_bool,
    format_exports,
    list_applying,
    packing_remarks,
    unsupported_remarks,
)

FLASH_ATTN_VALUES = {"": "auto", "eager": "disabled", "sdpa": "sdpa", "flash_attention_2": "fa2"}
PRECISION_FIELDS = {"bf16": "pure_bf16", "autocast": "bf16"}


def format_plan(plan: Plan, is_at_least: VersionCheck) -> list[str]:
    """Return the YAML lines of a plan."""
    fields = {}
    if plan.attn_implementation in FLASH_ATTN_VALUES:
        fields["flash_attn"] = FLASH_ATTN_VALUES[plan.attn_implementation]
    fields["packing"] = format_bool(plan.packed)
    fields["neat_packing"] = format_bool(plan.packed)
    fields["cutoff_len"] = str(plan.max_length)
    if plan.precision in PRECISION_FIELDS:
        fields[PRECISION_FIELDS[plan.precision]] = "true"
    fields["per_device_train_batch_size"] = str(plan.batch)
    fields["gradient_accumulation_steps"] = str(plan.accumulation)
    fields["disable_gradient_checkpointing"] = format_bool(not plan.gradient_checkpointing)
    fields["enable_liger_kernel"] = format_bool(plan.liger)
    if plan.compile:
        fields["torch_compile"] = "true"
    if plan.deterministic:
        fields["full_determinism"] = "true"
    return [
        *format_exports(plan, "# in the shell: "),
        *(f"{name}: {value}" for name, value in fields.items()),
        *_format_remarks(plan),
    ]


def _format_remarks(plan: Plan) -> list[str]:
    by_positions = plan.attn_implementation == "flash_attention_2"
    under_fa2, beside_fa2 = (
        "under fa2 it passes position_ids that restart in each document",
        "without fa2 it passes a 4-D mask",
    )
    explanation = under_fa2 if by_positions else beside_fa2
    is_joined = plan.packed and by_positions
    remarks = {
        f"# {plan.attn_implementation}: no setting; flash_attn takes auto, disabled, sdpa and fa2": (
            plan.attn_implementation not in FLASH_ATTN_VALUES
        ),
        "# weights in fp16: no setting; fp16: true is autocast": plan.precision == "fp16",
        "# neat_packing under fa2 asserts per_device_train_batch_size 1": is_joined and plan.batch > 1,
    }
    return [
        *packing_remarks(plan, "position_ids" if by_positions else "mask_4d", explanation=explanation),
        *list_applying(remarks),
        *unsupported_remarks(plan, "compile"),
    ]
