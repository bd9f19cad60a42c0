"""Writes a plan for verl, as Hydra's overrides for `verl.trainer.main_ppo` with FSDP.

Names are those of the wheels 0.5.0 and 0.9.1 (trainer/config/**, workers/config/model.py:185, workers/engine/fsdp),
with a `+` if the key is not in the schema. The attention override is honoured since 0.6.1. The critic always has
flash_attention_2 (utils/model.py:649). VERL_DISABLE_FLASH_ATTN_CE: utils/torch_functional.py:95, since 0.9.0.
"""

from attncheck.lint.fields import (
    Plan,
    VersionCheck,
    format_exports,
    list_applying,
    packing_remarks,
    unsupported_remarks,
)

ACTOR = "actor_rollout_ref.actor"
MODEL = "actor_rollout_ref.model"
WEIGHT_DTYPES = {"fp32": "fp32", "bf16": "bf16", "fp16": "fp16", "autocast": "fp32"}
COMPUTE_DTYPES = {"fp32": "fp32", "bf16": "bf16", "fp16": "fp16", "autocast": "bf16"}


def plan_settings(plan: Plan, since: VersionCheck) -> list[str]:
    """Return the overrides of a plan, one per line."""
    compute_dtype = COMPUTE_DTYPES[plan.precision]
    implementation = f"+{MODEL}.override_config.attn_implementation={plan.attn_implementation}"
    size_of_ulysses = plan.ring_size if plan.scheme == "ulysses" else 1
    overrides = {
        "export VERL_DISABLE_FLASH_ATTN_CE=1": plan.cross_entropy == "torch" and since("0.9.0"),
        implementation: plan.attn_implementation and since("0.6.1"),
        f"{MODEL}.use_remove_padding={plan.packed}": True,
        f"{MODEL}.use_liger={plan.liger}": True,
        f"{MODEL}.enable_gradient_checkpointing={plan.gradient_checkpointing}": True,
        f"{'' if since('0.6.0') else '+'}{ACTOR}.fsdp_config.model_dtype={WEIGHT_DTYPES[plan.precision]}": True,
        f"+{ACTOR}.fsdp_config.mixed_precision.param_dtype={compute_dtype}": compute_dtype != "bf16",
        f"{ACTOR}.fsdp_config.full_determinism=True": plan.deterministic and since("0.7.0"),
        f"{ACTOR}.ulysses_sequence_parallel_size={size_of_ulysses}": size_of_ulysses > 1,
        f"{ACTOR}.ppo_micro_batch_size_per_gpu={plan.batch}": not plan.packed,
    }
    return [*format_exports(plan), *list_applying(overrides), *_format_comments(plan, since)]


def _format_comments(plan: Plan, since: VersionCheck) -> list[str]:
    """Return comment lines on settings that the overrides do not express, or express only in part."""
    implementation, takes_implementation = plan.attn_implementation, since("0.6.1")
    is_other = implementation != "flash_attention_2"
    is_ulysses = plan.ring_size > 1 and plan.scheme == "ulysses"
    leaks = f"# only the flash implementations support Ulysses: {implementation} attends only to each rank's part"
    kernel = "# the cross-entropy is flash-attn's Triton kernel if it can be imported; no setting before 0.9.0"
    has_kernel_switch = since("0.9.0")
    comments = {
        f"# {implementation or 'the default'}: this release is hard-coded to flash_attention_2": (
            is_other and not takes_implementation
        ),
        "# no attn_implementation in the plan: verl's own default is flash_attention_2": (
            takes_implementation and not implementation
        ),
        "# a critic always uses flash_attention_2 (hard-coded): choose an estimator without a critic": (
            takes_implementation and implementation and is_other
        ),
        f"# rows of {plan.max_length} tokens: data.max_prompt_length + data.max_response_length": True,
        f"# {ACTOR}.ppo_micro_batch_size_per_gpu: how many samples are packed into one row": plan.packed,
        leaks: is_ulysses and takes_implementation and implementation and "flash" not in implementation,
        "# torch.use_deterministic_algorithms(True): no setting before verl 0.7.0": (
            plan.deterministic and not since("0.7.0")
        ),
        f"# accumulation of {plan.accumulation}: {ACTOR}.ppo_mini_batch_size decides": plan.accumulation > 1,
        kernel: plan.cross_entropy == "torch" and not has_kernel_switch,
        "# the padding side is not a setting": not plan.packed,
    }
    supported = {
        "ulysses": True,
        "padding_side": True,
        "cross_entropy": plan.cross_entropy == "flash_attn" or (plan.cross_entropy == "torch" and has_kernel_switch),
    }
    explanation = "verl passes position_ids that restart in each document, and no mask"
    return [
        *packing_remarks(plan, "position_ids", explanation=explanation),
        *list_applying(comments),
        *unsupported_remarks(plan, *list_applying(supported)),
    ]
