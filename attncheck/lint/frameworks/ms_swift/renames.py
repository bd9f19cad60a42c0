"""Renames between releases of ms-swift, and the values of old names under the new ones.

Source: the dataclasses of successive wheels from 2.0.0 to 4.6.0 (2.6.1 llm/utils/argument.py, 3.0.0 llm/argument/,
4.6.0 arguments/). A test checks that each name dropped by some release is here or in `GONE`.
"""

from collections.abc import Iterator, Mapping
from functools import cache

# Name -> its names in other releases; the first one that the available release has is used. Read in both directions.
RENAMES: Mapping[str, tuple[str, ...]] = {
    # 3.0.0
    "model_id_or_path": ("model",),
    "sft_type": ("train_type", "tuner_type"),
    "use_flash_attn": ("attn_impl",),
    "dtype": ("torch_dtype",),
    "template_type": ("template",),
    "batch_size": ("per_device_train_batch_size",),
    "eval_batch_size": ("per_device_eval_batch_size",),
    "lora_target_modules": ("target_modules",),
    "boft_target_modules": ("target_modules",),
    "vera_target_modules": ("target_modules",),
    "ia3_target_modules": ("target_modules",),
    "lora_target_regex": ("target_regex",),
    "lora_modules_to_save": ("modules_to_save",),
    "boft_modules_to_save": ("modules_to_save",),
    "vera_modules_to_save": ("modules_to_save",),
    "ia3_modules_to_save": ("modules_to_save",),
    "lora_dropout_p": ("lora_dropout",),
    "lora_bias_trainable": ("lora_bias",),
    "lora_lr_ratio": ("lorap_lr_ratio",),
    "init_lora_weights": ("init_weights",),
    "additional_trainable_parameters": ("trainable_parameters",),
    "custom_train_dataset_path": ("dataset",),
    "custom_val_dataset_path": ("val_dataset",),
    "preprocess_num_proc": ("dataset_num_proc",),
    "dataset_test_ratio": ("split_dataset_ratio",),
    "dataset_seed": ("data_seed",),
    "quantization_bit": ("quant_bits",),
    "bnb_4bit_comp_dtype": ("bnb_4bit_compute_dtype",),
    "device_map_config": ("device_map",),
    "device_map_config_path": ("device_map",),
    "add_output_dir_suffix": ("add_version",),
    "check_model_is_latest": ("check_model",),
    "only_save_model": ("save_only_model",),
    "neftune_alpha": ("neftune_noise_alpha",),
    "push_hub_strategy": ("hub_strategy",),
    "loss_name": ("loss_type",),
    "vit_use_gc": ("vit_gradient_checkpointing",),
    "streaming_buffer_size": ("shuffle_buffer_size",),
    "evaluation_strategy": ("eval_strategy",),
    "ref_model_id_or_path": ("ref_model",),
    "reward_model_id_or_path": ("reward_model",),
    # 3.3.0 and later
    "use_liger": ("use_liger_kernel",),
    "train_sampler_random": ("train_dataloader_shuffle",),
    "tools_prompt": ("agent_template",),
    "eval_datasets": ("eval_dataset",),
    "eval_datasets_args": ("eval_dataset_args",),
    "tensor_parallel_size": ("vllm_tensor_parallel_size",),
    "data_parallel_size": ("vllm_data_parallel_size",),
    "gpu_memory_utilization": ("vllm_gpu_memory_utilization",),
    "limit_mm_per_prompt": ("vllm_limit_mm_per_prompt",),
    "use_async_engine": ("vllm_use_async_engine",),
    "multi_turn_func": ("multi_turn_scheduler",),
    "swanlab_lark_webhook_url": ("swanlab_webhook_url",),
    "swanlab_lark_secret": ("swanlab_secret",),
    # 4.0.0 and later
    "metric": ("eval_metric",),
    "lora_modules": ("adapters",),
    "train_type": ("tuner_type", "sft_type"),
    "tuner_type": ("train_type", "sft_type"),
}
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
TARGETS = {"ALL": "all-linear", "EMBEDDING": "all-embedding"}
# Values of the old name -> values of the new one; a value that is not listed has no equivalent.
VALUES: Mapping[tuple[str, str], Mapping[str, str]] = {
    ("use_flash_attn", "attn_impl"): {"true": "flash_attn", "false": "sdpa"},  # 2.6.1 llm/utils/model.py:1504-1508
    ("dtype", "torch_dtype"): DTYPES,
    ("bnb_4bit_comp_dtype", "bnb_4bit_compute_dtype"): DTYPES,
    ("quantization_bit", "quant_bits"): {str(bits): str(bits) for bits in (1, 2, 3, 4, 8)},
    ("lora_target_modules", "target_modules"): TARGETS,  # 3.0.0 llm/train/tuner.py:90-103
}
NAMES_OF_MODULES = ("target_modules", "lora_target_modules")
NO_MODULES = ("AUTO", "DEFAULT")  # 2.x: the model's own choice, which 3.x does not have
# Names that were removed without a successor of the same meaning.
GONE = frozenset(
    # 3.0.0: settings of torch, and of ms-swift's samplers and back ends; transformers' arguments are inherited since
    {"check_dataset_strategy", "device_max_memory", "do_sample", "gpu_memory_fraction"}
    | {"hqq_dynamic_config_path", "ia3_feedforward_modules", "loss_scale_config_path", "min_lr", "model_cache_dir"}
    | {"neftune_backend", "deepspeed_config_path", "pp", "predict_with_generate", "rescale_image"}
    | {"self_cognition_sample", "sequence_parallel", "streaming_val_size", "test_oom_error", "tp", "train_backend"}
    | {"train_dataset_mix_ds", "train_dataset_mix_ratio", "train_dataset_sample", "use_loss_scale"}
    | {"val_dataset_sample", "max_prompt_length", "ref_model_free", "sft_beta", "truncation_mode"}
    # 3.2.2 to 4.0.0
    | {"model_layer_cls_name", "enable_cache", "load_dataset_config", "acc_steps", "fsdp_num", "metric_warmup_step"}
    | {"packing_cache", "channels", "ckpt_dir", "mini_batch_size", "lmdeploy_cache_max_entry_count", "lmdeploy_device"}
    | {"lmdeploy_session_len", "use_lmdeploy", "ds3_gather_for_generation", "num_infer_workers", "vllm_device"}
    | {"gc_collect_after_offload"}
)


@cache
def list_new_names(name: str) -> tuple[str, ...]:
    """Return the names of a setting in other releases, newer and older."""
    older = (old for old, new_names in RENAMES.items() if name in new_names)
    return tuple(dict.fromkeys((*RENAMES.get(name, ()), *older)))


def translate_setting(name: str, value: str, known_names: Mapping[str, object]) -> tuple[str, str] | None:
    """Return the available release's name and value for a setting of another release; None if it has no such setting.

    A switch without a value is "true".
    """
    for new_name in list_new_names(name):
        if new_name in known_names:
            return next(((new_name, text) for text in _translate_value(name, new_name, value)), None)
    return None


def translate_name(name: str, known_names: Mapping[str, object]) -> tuple[str, str] | None:
    """Return the name of a setting with an unknown value, and no value; None if its values changed too."""
    new_name = next((new_name for new_name in list_new_names(name) if new_name in known_names), "")
    is_translated = bool({(name, new_name), (new_name, name)} & VALUES.keys())
    return (new_name, "") if new_name and not is_translated else None


def _translate_value(name: str, new_name: str, value: str) -> Iterator[str]:
    """Yield the value under another name that is equivalent to a value under this one; nothing if there is none."""
    forward, backward = VALUES.get((name, new_name)), VALUES.get((new_name, name))
    if forward is None and backward is None:
        yield value
        return
    written = value.lower() if name == "use_flash_attn" else value
    texts = forward if forward is not None else {new: old for old, new in (backward or {}).items()}
    if written in texts:
        yield texts[written]
    elif new_name in NAMES_OF_MODULES and written not in NO_MODULES:
        yield value
