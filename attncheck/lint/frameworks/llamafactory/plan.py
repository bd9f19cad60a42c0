"""A plan for LLaMA-Factory: YAML for `llamafactory-cli train`, stage sft.

Names as in the wheel 0.9.5 (hparams/model_args.py, data_args.py, finetuning_args.py): `flash_attn` takes auto, disabled
(eager), sdpa and fa2, while fa3 raises (model/model_utils/attention.py:86). `neat_packing` keeps documents apart: by
position_ids under fa2, by a 4-D mask otherwise (data/collator.py:524); `packing` alone does not. Without `pure_bf16`
trainable weights are cast to float32 (model/adapter.py:316).
"""

from __future__ import annotations

from attncheck.core.plan import Plan
from attncheck.lint.fields.plan_writing import Since, exports, remarks, unlike, word

VALUES = {"": "auto", "eager": "disabled", "sdpa": "sdpa", "flash_attention_2": "fa2"}
PRECISIONS = {"bf16": "pure_bf16", "autocast": "bf16"}


def plan_settings(plan: Plan, since: Since) -> list[str]:
    """Return the YAML lines of a plan."""
    found = {}
    if plan.attn_implementation in VALUES:
        found["flash_attn"] = VALUES[plan.attn_implementation]
    found["packing"] = word(plan.packed)
    found["neat_packing"] = word(plan.packed)
    found["cutoff_len"] = str(plan.max_length)
    if plan.precision in PRECISIONS:
        found[PRECISIONS[plan.precision]] = "true"
    found["per_device_train_batch_size"] = str(plan.batch)
    found["gradient_accumulation_steps"] = str(plan.accumulation)
    found["disable_gradient_checkpointing"] = word(not plan.gradient_checkpointing)
    found["enable_liger_kernel"] = word(plan.liger)
    if plan.compile:
        found["torch_compile"] = "true"
    if plan.deterministic:
        found["full_determinism"] = "true"
    return [*exports(plan, "# in the shell: "), *(f"{name}: {value}" for name, value in found.items()), *_remarks(plan)]


def _remarks(plan: Plan) -> list[str]:
    by_positions = plan.attn_implementation == "flash_attention_2"
    told = "under fa2 it gives position_ids that begin anew" if by_positions else "beside fa2 it gives a 4-D mask"
    found = list(unlike(plan, "position_ids" if by_positions else "mask_4d", told=told))
    if plan.attn_implementation not in VALUES:
        found.append(f"# {plan.attn_implementation}: no setting; flash_attn takes auto, disabled, sdpa and fa2")
    if plan.precision == "fp16":
        found.append("# weights in fp16: no setting; fp16: true is autocast")
    if plan.packed and by_positions and plan.batch > 1:
        found.append("# neat_packing under fa2 asserts per_device_train_batch_size 1")
    return [*found, *remarks(plan, "compile")]
