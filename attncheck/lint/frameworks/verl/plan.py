"""Writes a plan for verl, as Hydra's overrides for `verl.trainer.main_ppo` with FSDP.

Names are those of the wheels 0.5.0 and 0.9.1 (trainer/config/**, workers/config/model.py:185, workers/engine/fsdp),
with a `+` if the key is not in the schema. The attention override is honoured since 0.6.1. The critic always has
flash_attention_2 (utils/model.py:649). VERL_DISABLE_FLASH_ATTN_CE: utils/torch_functional.py:95, since 0.9.0.
"""

from attncheck.lint.fields import Plan, VersionCheck, format_exports, packing_remarks, unsupported_remarks

ACTOR = "actor_rollout_ref.actor"
MODEL = "actor_rollout_ref.model"
WEIGHT_DTYPES = {"fp32": "fp32", "bf16": "bf16", "fp16": "fp16", "autocast": "fp32"}
COMPUTE_DTYPES = {"fp32": "fp32", "bf16": "bf16", "fp16": "fp16", "autocast": "bf16"}


def plan_settings(plan: Plan, since: VersionCheck) -> list[str]:
    """Return the overrides of a plan, one per line."""
    overrides = format_exports(plan)
    if plan.cross_entropy == "torch" and since("0.9.0"):
        overrides.append("export VERL_DISABLE_FLASH_ATTN_CE=1")
    if plan.attn_implementation and since("0.6.1"):
        overrides.append(f"+{MODEL}.override_config.attn_implementation={plan.attn_implementation}")
    overrides += [
        f"{MODEL}.use_remove_padding={plan.packed}",
        f"{MODEL}.use_liger={plan.liger}",
        f"{MODEL}.enable_gradient_checkpointing={plan.gradient_checkpointing}",
        f"{'' if since('0.6.0') else '+'}{ACTOR}.fsdp_config.model_dtype={WEIGHT_DTYPES[plan.precision]}",
    ]
    if COMPUTE_DTYPES[plan.precision] != "bf16":
        overrides.append(f"+{ACTOR}.fsdp_config.mixed_precision.param_dtype={COMPUTE_DTYPES[plan.precision]}")
    if plan.deterministic and since("0.7.0"):
        overrides.append(f"{ACTOR}.fsdp_config.full_determinism=True")
    if plan.ring_size > 1 and plan.scheme == "ulysses":
        overrides.append(f"{ACTOR}.ulysses_sequence_parallel_size={plan.ring_size}")
    if not plan.packed:
        overrides.append(f"{ACTOR}.ppo_micro_batch_size_per_gpu={plan.batch}")
    return [*overrides, *_format_comments(plan, since)]


def _format_comments(plan: Plan, since: VersionCheck) -> list[str]:
    """Return comment lines on settings that the overrides do not express, or express only in part."""
    comments = list(
        packing_remarks(
            plan, "position_ids", explanation="verl passes position_ids that restart in each document, and no mask"
        )
    )
    implementation = plan.attn_implementation
    if not since("0.6.1") and implementation != "flash_attention_2":
        comments.append(f"# {implementation or 'the default'}: this release is hard-coded to flash_attention_2")
    elif not implementation:
        comments.append("# no attn_implementation in the plan: verl's own default is flash_attention_2")
    elif implementation != "flash_attention_2":
        comments.append("# a critic always uses flash_attention_2 (hard-coded): choose an estimator without a critic")
    comments.append(f"# rows of {plan.max_length} tokens: data.max_prompt_length + data.max_response_length")
    if plan.packed:
        comments.append(f"# {ACTOR}.ppo_micro_batch_size_per_gpu: how many samples are packed into one row")
    is_flash = not implementation or "flash" in implementation
    if plan.ring_size > 1 and plan.scheme == "ulysses" and not is_flash and since("0.6.1"):
        scope = "only the flash implementations support Ulysses"
        comments.append(f"# {scope}: {implementation} attends only to each rank's part")
    if plan.deterministic and not since("0.7.0"):
        comments.append("# torch.use_deterministic_algorithms(True): no setting before verl 0.7.0")
    if plan.accumulation > 1:
        comments.append(f"# accumulation of {plan.accumulation}: {ACTOR}.ppo_mini_batch_size decides")
    supported = ["ulysses", "padding_side"]
    if plan.cross_entropy == "flash_attn" or (plan.cross_entropy == "torch" and since("0.9.0")):
        supported.append("cross_entropy")
    elif plan.cross_entropy == "torch":
        kernel = "flash-attn's Triton kernel"
        comments.append(f"# the cross-entropy is {kernel} if it can be imported; no setting before 0.9.0")
    if not plan.packed:
        comments.append("# the padding side is not a setting")
    return [*comments, *unsupported_remarks(plan, *supported)]
