"""The names of OpenRLHF's settings in each release: flat up to 0.10.1.post2, dotted since 0.10.2.

All names changed in one release, without aliases. The tables map a flat name to its dotted names; several mean that it
was split. Names that are in no table did not change. Values that changed with a name are in
`attncheck.lint.frameworks.openrlhf`. The names themselves, with their values, are in
`attncheck/lint/names/openrlhf.json`.

Source: the parsers of the wheels of openrlhf 0.5.0 to 0.11.2, cli/train_*.py. A test checks that every name of
0.10.1.post2 leads to names of 0.10.2 or is in `REMOVED`.
"""

from collections.abc import Mapping
from functools import cache

FIRST_DOTTED = "0.10.2"
FIRST_ATTN_IMPLEMENTATION = "0.8.10"  # --attn_implementation; before, --flash_attn or eager (0.8.9 models/actor.py:59)
FIRST_PARAM_DTYPE = "0.9.2"  # --param_dtype; before, --bf16 or the checkpoint's dtype
FIRST_SINGLE_LENGTH = "0.9.8"  # PPO: --max_len and --max_new_tokens; before, --prompt_max_len and --generate_max_len
FIRST_CORRECTION_LEVEL = "0.11.2"  # --algo.advantage.is_correction_level; before, a switch and a type


def _moved_to(group: str, *names: str, **renamed: str) -> dict[str, tuple[str, ...]]:
    """Return flat name -> (dotted name,) for names that moved into a group, unchanged or `renamed`."""
    new_names = {**{name: name for name in names}, **renamed}
    return {name: (f"{group}.{new_name}",) for name, new_name in new_names.items()}


COMMON_NAMES: Mapping[str, tuple[str, ...]] = {
    **_moved_to("ckpt", save_path="output_dir", save_steps="save_steps", save_hf_ckpt="save_hf", ckpt_path="path"),
    **_moved_to("ckpt", disable_ds_ckpt="disable_ds", max_ckpt_num="max_num", max_ckpt_mem="max_mem"),
    **_moved_to("ckpt", load_checkpoint="load_enable"),
    **_moved_to("logger", "logging_steps", use_tensorboard="tensorboard_dir", use_wandb="wandb.key"),
    **_moved_to(
        "logger.wandb", wandb_org="org", wandb_group="group", wandb_project="project", wandb_run_name="run_name"
    ),
    **_moved_to("eval", eval_steps="steps", eval_dataset="dataset", eval_split="split"),
    **_moved_to(
        "train", "max_epochs", "seed", micro_train_batch_size="micro_batch_size", train_batch_size="batch_size"
    ),
    **_moved_to("train", full_determinism="full_determinism_enable"),
    **_moved_to("ds", "zero_stage", "zpg", "adam_offload", "overlap_comm", "grad_accum_dtype", "deepcompile"),
    **_moved_to("ds", "param_dtype", "attn_implementation", "use_liger_kernel", "packing_samples", "ring_attn_size"),
    **_moved_to("ds", "load_in_4bit", "value_head_prefix", ring_head_stride="ring_attn_head_stride"),
    **_moved_to("ds", ds_tensor_parallel_size="tensor_parallel_size", use_ds_universal_ckpt="use_universal_ckpt"),
    **_moved_to("ds", universal_ckpt="use_universal_ckpt", target_modules="lora.target_modules"),
    **_moved_to("ds.lora", lora_rank="rank", lora_alpha="alpha", lora_dropout="dropout"),
    **_moved_to("data", "disable_fast_tokenizer", "dataloader_num_workers", "max_samples", "max_len", "input_template"),
    **_moved_to("data", "apply_chat_template", "tokenizer_chat_template", "input_key", "output_key", "label_key"),
    **_moved_to("data", "multiturn"),
}
SUPERVISED_NAMES: Mapping[str, tuple[str, ...]] = {
    **COMMON_NAMES,
    **_moved_to("model", "aux_loss_coef", "beta", "label_smoothing", "nll_loss_coef", pretrain="model_name_or_path"),
    **_moved_to("model", gradient_checkpointing="gradient_checkpointing_enable", ipo="ipo_enable", loss="loss_type"),
    **_moved_to("model", gradient_checkpointing_use_reentrant="gradient_checkpointing_reentrant"),
    **_moved_to("model", pretrain_mode="pretrain_mode_enable", margin_loss="margin_loss_enable"),
    **_moved_to("model", compute_fp32_loss="compute_fp32_loss_enable"),
    **_moved_to("ref", ref_pretrain="model_name_or_path", ref_offload="offload"),
    **_moved_to("adam", learning_rate="lr", l2="weight_decay", adam_betas="betas"),
    **_moved_to("data", "dataset", "dataset_probs", "dataset_split", "prompt_key", "chosen_key", "rejected_key"),
    **_moved_to("data", train_split="dataset_split"),
}
REINFORCEMENT_NAMES: Mapping[str, tuple[str, ...]] = {
    **COMMON_NAMES,
    **_moved_to("actor", "eps_clip", "eps_clip_low_high", "dual_clip", "policy_loss_type", "aux_loss_coef"),
    **_moved_to("actor", "freeze_visual_encoder", pretrain="model_name_or_path", entropy_loss_coef="entropy_coef"),
    **_moved_to("actor", gradient_checkpointing="gradient_checkpointing_enable", actor_learning_rate="adam.lr"),
    **_moved_to("actor", gradient_checkpointing_use_reentrant="gradient_checkpointing_reentrant"),
    **_moved_to("critic", "value_clip", "save_value_network", critic_pretrain="model_name_or_path"),
    **_moved_to("critic", critic_learning_rate="adam.lr", freezing_actor_steps="freezing_steps"),
    **_moved_to("reward", "overlong_buffer_len", "overlong_penalty_factor", "stop_properly_penalty_coef"),
    **_moved_to(
        "reward", reward_pretrain="model_name_or_path", remote_rm_url="remote_url", reward_clip_range="clip_range"
    ),
    **_moved_to("reward", normalize_reward="normalize_enable"),
    "ref_reward_offload": ("ref.offload", "reward.offload"),
    **{f"{role}_num_nodes": (f"{role}.num_nodes",) for role in ("actor", "critic", "ref", "reward")},
    **{f"{role}_num_gpus_per_node": (f"{role}.num_gpus_per_node",) for role in ("actor", "critic", "ref", "reward")},
    **{name: (f"actor.{name}", f"critic.{name}") for name in ("max_norm", "lr_scheduler", "lr_warmup_ratio")},
    "l2": ("actor.adam.weight_decay", "critic.adam.weight_decay"),
    "adam_betas": ("actor.adam.betas", "critic.adam.betas"),
    **_moved_to("train", "colocate_actor_ref", "colocate_critic_reward", "async_queue_size", "enable_ema", "ema_beta"),
    **_moved_to("train", "num_episodes", "agent_func_path", colocate_all_models="colocate_all"),
    **_moved_to("train", async_train="async_enable", partial_rollout="partial_rollout_enable"),
    **_moved_to("train", use_dynamic_batch="dynamic_batch_enable", train_max_tokens_per_gpu="max_tokens_per_gpu"),
    **_moved_to("vllm", "enable_prefix_caching", "enforce_eager", vllm_num_engines="num_engines"),
    **_moved_to("vllm", vllm_tensor_parallel_size="tensor_parallel_size", vllm_sync_backend="sync_backend"),
    **_moved_to("vllm", vllm_sync_with_ray="sync_with_ray", vllm_enable_sleep="enable_sleep"),
    **_moved_to("vllm", vllm_gpu_memory_utilization="gpu_memory_utilization"),
    **_moved_to("ds", deepspeed_enable_sleep="enable_sleep"),
    **_moved_to(
        "rollout", "max_new_tokens", "n_samples_per_prompt", "top_p", "temperature", "vllm_generate_batch_size"
    ),
    **_moved_to("rollout", rollout_batch_size="batch_size", micro_rollout_batch_size="micro_batch_size"),
    **_moved_to("rollout", rollout_max_tokens_per_gpu="max_tokens_per_gpu"),
    **_moved_to("algo.advantage", "lambd", "gamma", advantage_estimator="estimator"),
    **_moved_to(
        "algo.advantage", no_advantage_std_norm="no_std_norm", enable_vllm_is_correction="is_correction_enable"
    ),
    **_moved_to("algo.advantage", vllm_is_correction_type="is_correction_type"),
    **_moved_to("algo.advantage", vllm_is_truncated_threshold="is_correction_threshold"),
    **_moved_to(
        "algo.kl", init_kl_coef="init_coef", kl_target="target", kl_horizon="horizon", kl_estimator="estimator"
    ),
    **_moved_to("algo.kl", use_kl_loss="use_loss"),
    **_moved_to("algo", dynamic_filtering="dynamic_filtering_enable"),
    **_moved_to("algo", dynamic_filtering_reward_range="dynamic_filtering_range"),
    **_moved_to(
        "data", "image_key", "max_images_per_prompt", prompt_data="prompt_dataset", prompt_split="prompt_split"
    ),
    **_moved_to("data", prompt_data_probs="prompt_probs"),
    **_moved_to("eval", eval_temperature="temperature", eval_n_samples_per_prompt="n_samples_per_prompt"),
    **_moved_to("ckpt", "best_metric_key"),
}
# Flat names of 0.10.1.post2 without a successor.
REMOVED = frozenset({"actor_init_on_gpu", "ptx_coef", "perf"})


def dotted_names(trainer: str) -> Mapping[str, tuple[str, ...]]:
    """Return flat name -> dotted names of a trainer ("ppo", "sft", …), without dashes."""
    return REINFORCEMENT_NAMES if trainer == "ppo" else SUPERVISED_NAMES


@cache
def flat_names(trainer: str) -> Mapping[str, tuple[str, ...]]:
    """Return dotted name -> its flat names, newest first."""
    flat_by_dotted: dict[str, tuple[str, ...]] = {}
    for flat, names in dotted_names(trainer).items():
        for dotted in names:
            flat_by_dotted[dotted] = (*flat_by_dotted.get(dotted, ()), flat)
    return flat_by_dotted
