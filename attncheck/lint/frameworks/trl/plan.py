"""A plan for TRL: YAML for `trl sft --config`, whose names are SFTConfig's and ModelConfig's.

Names as in the wheels 0.19.1, 0.20.0, 0.24.0 and 1.16.0 (trainer/sft_config.py, trainer/model_config.py): `dtype` since
0.24, before that `torch_dtype`; `packing_strategy` "bfd" since 0.20, before that "ffd". Packed rows of a batch are
flattened into one, with position_ids that begin anew and, in 1.16, the edges as keywords (trainer/sft_trainer.py:212).
"""

from __future__ import annotations

from attncheck.core.plan import Plan
from attncheck.lint.fields.plan_writing import DTYPES, Since, exports, remarks, unlike, word


def plan_settings(plan: Plan, since: Since) -> list[str]:
    """Return the YAML lines of a plan."""
    found = {}
    if plan.attn_implementation:
        found["attn_implementation"] = plan.attn_implementation
    found["dtype" if since("0.24") else "torch_dtype"] = DTYPES[plan.precision]
    found["bf16"] = word(plan.precision == "autocast")
    found["packing"] = word(plan.packed)
    if plan.packed:
        found["packing_strategy"] = "bfd" if since("0.20") else "ffd"
    found["max_length"] = str(plan.max_length)
    found["per_device_train_batch_size"] = str(plan.batch)
    found["gradient_accumulation_steps"] = str(plan.accumulation)
    found["gradient_checkpointing"] = word(plan.gradient_checkpointing)
    found["use_liger_kernel"] = word(plan.liger)
    if plan.compile:
        found["torch_compile"] = "true"
    if plan.deterministic:
        found["full_determinism"] = "true"
    return [*exports(plan, "# in the shell: "), *(f"{name}: {value}" for name, value in found.items()), *_remarks(plan)]


def _remarks(plan: Plan) -> list[str]:
    found = list(unlike(plan, "position_ids", "cu_seqlens", told="TRL gives positions that begin anew, and no mask"))
    if plan.packed and plan.batch > 1:
        found.append(f"# the batch's {plan.batch} rows are joined into one")
    if plan.ring_size > 1 and plan.scheme == "ulysses":
        found.append(f"# Ulysses is set in accelerate's configuration: sp_size {plan.ring_size}, sp_backend deepspeed")
    return [*found, *remarks(plan, "compile", "ulysses")]
