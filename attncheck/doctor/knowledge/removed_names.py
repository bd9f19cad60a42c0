"""Names that other packages import from transformers, and the releases without them; fixes can use it without an index.

Source: the transformers wheels 4.42.4 to 5.23.0 (about 50 of them), read on 2026-11-21 and 2026-11-23. A boundary is
the first release read without the name.
"""

# Name -> (first release of transformers without it, first release with it again or "").
REMOVED_FROM_TRANSFORMERS: dict[str, tuple[str, str]] = {
    "transformers.cache_utils:HybridCache": ("5.0.0", ""),
    "transformers.cache_utils:SlidingWindowCache": ("5.0.0", ""),
    "transformers.generation.beam_search:BeamScorer": ("5.0.0", ""),
    "transformers.generation.utils:GreedySearchDecoderOnlyOutput": ("5.0.0", ""),
    "transformers.generation.utils:SampleDecoderOnlyOutput": ("5.0.0", ""),
    "transformers.modeling_flash_attention_utils:_flash_supports_window_size": ("4.54.0", ""),
    "transformers.modeling_flash_attention_utils:is_flash_attn_greater_or_equal_2_10": ("5.4.0", ""),
    "transformers.models.llama.modeling_llama:LlamaFlashAttention2": ("4.48.0", ""),
    "transformers.modeling_utils:find_pruneable_heads_and_indices": ("4.56.0", ""),
    "transformers.pytorch_utils:find_pruneable_heads_and_indices": ("5.0.0", ""),
    "transformers.pytorch_utils:is_torch_greater_or_equal_than_1_13": ("4.48.0", "4.50.0"),
    "transformers.utils:LossKwargs": ("4.54.0", ""),
    "transformers.utils:is_flash_attn_greater_or_equal_2_10": ("5.4.0", "5.5.0"),
    "transformers.utils:is_torch_fx_available": ("5.0.0", ""),
    "transformers.utils.import_utils:is_torch_fx_available": ("5.0.0", ""),
}

FLASH = "flash_attn.flash_attn_interface"
# Removed name -> its replacement: flash-attn's README, "the following functions have been renamed"; transformers
# 4.57.6, trainer.py (deprecate_kwarg "tokenizer") and models/auto/modeling_auto.py.
SUCCESSORS: dict[str, str] = {
    "transformers:AutoModelForVision2Seq": "transformers:AutoModelForImageTextToText",
    "transformers.trainer:Trainer(tokenizer)": "processing_class",
    "transformers:Trainer(tokenizer)": "processing_class",
    f"{FLASH}:flash_attn_unpadded_func": f"{FLASH}:flash_attn_varlen_func",
    f"{FLASH}:flash_attn_unpadded_kvpacked_func": f"{FLASH}:flash_attn_varlen_kvpacked_func",
    f"{FLASH}:flash_attn_unpadded_qkvpacked_func": f"{FLASH}:flash_attn_varlen_qkvpacked_func",
}

# Attributes of transformers' cache classes -> (first release without it, what to write instead). Read in cache_utils.py
# of 4.47.1 to 5.0.0; the successors come from its own deprecation messages (tests/doctor/test_removed_names.py).
CACHE_ATTRIBUTES: dict[str, tuple[str, str]] = {
    "get_max_length": ("4.49.0", "get_max_cache_shape()"),
    "seen_tokens": ("4.54.0", "get_seq_length()"),
    "get_usable_length": ("4.54.0", "get_seq_length(layer_idx)"),
    "from_legacy_cache": ("5.0.0", ""),
    "to_legacy_cache": ("5.0.0", ""),
}


def find_removal(source: str, name: str) -> str:
    """Return the first release of transformers without a name; "" if the tables do not contain it."""
    owner, _, attribute = name.rpartition(".")
    if owner.endswith("Cache") and attribute in CACHE_ATTRIBUTES:
        return CACHE_ATTRIBUTES[attribute][0]
    return REMOVED_FROM_TRANSFORMERS.get(f"{source}:{name}", ("", ""))[0]
