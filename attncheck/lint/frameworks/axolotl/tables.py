"""The names of axolotl's settings, and the features of each release.

Source: the wheels and sdists of axolotl 0.8.0 to 0.19.0: utils/schemas/{config,validation,enums}.py, loaders/,
core/builders/causal.py. The names themselves are in `names/axolotl.json`.
"""

from collections.abc import Mapping

from attncheck.lint.fields.releases import is_at_least, read_fields

# attn_implementation decides, and the booleans are deprecated (utils/schemas/config.py:1569 of 0.19.0)
FLAGS_DEPRECATED_SINCE = "0.17.0"
# attn_implementation exists, but is only passed to transformers (loaders/model.py:606 of 0.12.2)
ATTN_IMPLEMENTATION_SINCE = "0.12.0"
CONTEXT_PARALLEL_SINCE = "0.12.0"  # context_parallel_size; before, sequence_parallel_degree, which is still read
S2_BESIDE_FLASH_SINCE = "0.15.0"  # s2_attention; before, refused alongside a boolean (validation.py:165)
RING_FUNCTION_SINCE = "0.9.0"  # ring_attn_func; before, only llama3
DROPS_MASK_SINCE = "0.11.0"  # drops the mask of packed rows for flash, xformers and flex (core/builders/causal.py:248)
DROPS_SDPA_MASK_SINCE = "0.18.0"  # attn_decontaminates_packing (core/builders/causal.py:275 of 0.18.0)
FLASH_4_SINCE = "0.16.0"  # replaces flash-attn if it is usable (monkeypatch/attention/flash_attn_4.py)
FLASH_4_NAMED_SINCE = "0.19.0"  # as attn_implementation, but not under a ring (loaders/model.py:857)

# Neither AxolotlInputConfig nor its bases have a model_config with `extra` in the releases 0.8.0, 0.10.0, 0.12.0,
# 0.13.1, 0.16.1, 0.17.0 and 0.19.0. Therefore pydantic ignores unknown keys, model_dump omits them, and nothing is
# logged.
DROPS_UNKNOWN_KEYS = "axolotl 0.19.0 utils/config/__init__.py:508, 516: model_dump of the schema's fields; 0.8.0 :296"
# Names without a field that a validator of some release reads or refuses (utils/schemas/validation.py:65 of 0.19.0).
READ_BY_VALIDATORS = frozenset(
    {
        *("unsloth_cross_entropy_loss", "unsloth_lora_mlp", "unsloth_lora_qkv", "unsloth_lora_o", "unsloth_rms_norm"),
        *("unsloth_rope", "torch_dtype", "processor_config", "relora_steps", "roles_to_train", "train_on_eos"),
        *("dispatch_batches", "split_batches", "use_liger_loss", "is_multimodal", "inference"),
    }
)

# utils/schemas/enums.py of 0.19.0: LEGACY_ATTN_FLAG_TO_IMPL, in its order of priority.
FLAG_IMPLEMENTATIONS: Mapping[str, str] = {
    "xformers_attention": "xformers",
    "sage_attention": "sage",
    "flex_attention": "flex_attention",
    "flash_attention": "flash_attention_2",
    "sdp_attention": "sdpa",
    "eager_attention": "eager",
}
# loaders/model.py:627-647 of 0.16.1: the first that is on wins; sage runs under the name flash_attention_2.
OLD_FLAG_ORDER = ("flex_attention", "flash_attention", "xformers_attention", "sdp_attention", "sage_attention")
IMPLEMENTATION_FLAGS: Mapping[str, str] = {name: flag for flag, name in FLAG_IMPLEMENTATIONS.items()}
SHORT_NAMES: Mapping[str, str] = {"flash": "flash_attention_2", "flex": "flex_attention", "sdp": "sdpa"}
CANONICAL_IMPLEMENTATIONS = frozenset(
    {*FLAG_IMPLEMENTATIONS.values(), "flash_attention_3", "flash_attention_4", "flash_attention_torch", "fp8"}
)  # CANONICAL_ATTN_IMPLS
ISOLATING_IMPLEMENTATIONS = frozenset(  # ATTN_IMPLS_SUPPORTING_PACKING
    {
        *("flash_attention_2", "flash_attention_3", "flash_attention_4", "flash_attention_torch", "flex_attention"),
        *("xformers", "sage"),
        *("kernels-community/flash-attn2", "kernels-community/flash-attn3", "kernels-community/sage-attention"),
    }
)
SAGE_CAPABILITIES = ((8, 0), (8, 6), (8, 9), (9, 0), (12, 0))  # utils/schemas/config.py:1886
# Removed names and their replacements (utils/schemas/validation.py:61 of 0.19.0).
RENAMES: Mapping[str, str] = {
    "unsloth_lora_mlp": "lora_mlp_kernel",
    "unsloth_lora_qkv": "lora_qkv_kernel",
    "unsloth_lora_o": "lora_o_kernel",
    "relora_steps": "jagged_restart_steps",  # 0.12.0 utils/schemas/training.py:188-198; needs `relora: true` too
    "relora_warmup_steps": "jagged_restart_warmup_steps",
    "relora_anneal_steps": "jagged_restart_anneal_steps",
}


def isolating_implementations(version: str) -> tuple[str, ...]:
    """Return the attention implementations with which a release separates packed documents."""
    if is_at_least(version, FLAGS_DEPRECATED_SINCE):
        others = ("sdpa", "eager") if is_at_least(version, DROPS_SDPA_MASK_SINCE) else ()
        return (*sorted(ISOLATING_IMPLEMENTATIONS), *others)
    return ("flash_attention_2", "flex_attention", "xformers")


def isolates_documents(version: str, implementation: str) -> bool:
    """Return whether a release separates packed documents with an implementation; a revision after "@" is ignored."""
    return implementation.split(":")[0].split("@")[0].strip() in isolating_implementations(version)


def find_plugin(version: str, name: str) -> str:
    """Return the folder of the plugin that has a setting; "" if no plugin of the release has it."""
    return next(
        (row.split(":")[0] for row in read_fields("axolotl", "plugins", version) if row.endswith(f":{name}")), ""
    )


def find_new_names(name: str, text: str, known_names: Mapping[str, object]) -> tuple[str, ...]:
    """Return this release's name, with the value, for a name from another release; () if it has no such setting."""
    if name in RENAMES and RENAMES[name] in known_names:
        return (f"{RENAMES[name]}: {text}",)
    if name == "context_parallel_size" and "sequence_parallel_degree" in known_names:
        return (f"sequence_parallel_degree: {text}",)
    if name == "attn_implementation" and text in IMPLEMENTATION_FLAGS and IMPLEMENTATION_FLAGS[text] in known_names:
        return (f"{IMPLEMENTATION_FLAGS[text]}: true",)
    if name in FLAG_IMPLEMENTATIONS and "attn_implementation" in known_names and text.lower() == "true":
        return (f"attn_implementation: {FLAG_IMPLEMENTATIONS[name]}",)
    return ()
