"""Padding and packing in transformers, by version.

Source: models/*/modeling_*.py (the text "attempting to perform batched generation with padding_side") and
masking_utils.py in the transformers wheels 4.42.4 to 5.23.0, LLaMA-Factory 0.9.3 to 0.9.5, read on 2026-11-21. A
boundary is the first release read that contains the change; 4.53.0 to 4.53.3 were all read.
"""

from packaging.version import Version

# masking_utils.find_packed_sequence_indices: since this release sdpa, eager and flex separate packed documents, if no
# attention mask and no KV cache is given.
PACKED_WITHOUT_FLASH = "4.53.1"
# Since this release masks are cast to bool, so document numbers in the attention mask (LLaMA-Factory's neat packing)
# are lost.
MASKS_ARE_BOOL = "4.53.0"
# LLaMA-Factory: 0.9.3 still packs with numbered masks; 0.9.4 raises "Neat packing is incompatible with
# transformers>=4.53.0."; 0.9.5 packs with positions and flash_attention_2, and refuses these models.
NEAT_PACKING_REFUSES = "0.9.4"
NEAT_PACKING_BY_POSITIONS = "0.9.5"
NEAT_PACKING_REFUSED_MODELS = frozenset({"gemma4", "gpt_oss"})

# (since, before, model types) whose flash attention raises "You are attempting to perform batched generation with
# padding_side='right'" if the last column of the mask holds padding and a cache is in use.
_BEFORE_4_48 = frozenset({"jetmoe", "mistral"})
_SINCE_4_48 = frozenset(
    {"jetmoe", "mimi", "mistral", "mixtral", "moshi", "phi3", "phimoe", "qwen2_moe", "qwen2_vl"}
) | {"starcoder2"}
_SINCE_4_49 = _SINCE_4_48 | {"qwen2", "qwen2_5_vl"}
_SINCE_4_51 = _SINCE_4_49 | {"phi4_multimodal", "qwen3", "qwen3_moe"}
_SINCE_4_53 = frozenset({"jetmoe", "kyutai_speech_to_text", "moshi", "phimoe", "qwen2_moe"})
RIGHT_PADDING_RAISES: tuple[tuple[str, str, frozenset[str]], ...] = (
    ("4.42", "4.48", _BEFORE_4_48),
    ("4.48", "4.49", _SINCE_4_48),
    ("4.49", "4.51", _SINCE_4_49),
    ("4.51", "4.52", _SINCE_4_51),
    ("4.52", "4.53", _SINCE_4_51 | {"qwen2_5_omni"}),
    ("4.53", "4.57", _SINCE_4_53),
    ("4.57", "5.0", _SINCE_4_53 - {"jetmoe"}),
    ("5.0", "5.2", frozenset({"kyutai_speech_to_text", "moshi"})),
)

# First release whose flash attention gets text positions instead of the three rows of m-rope positions, which led to
# far too long cu_seqlens (modeling_*.py, `text_position_ids`).
_QWEN_VL_SINCE = "4.54.0"
TEXT_POSITIONS_APART: dict[str, str] = {
    "qwen2_vl": _QWEN_VL_SINCE,
    "qwen2_5_vl": _QWEN_VL_SINCE,
    "qwen2_5_omni": _QWEN_VL_SINCE,
    "qwen3_5": "5.4.0",  # 5.3.0 passes `position_ids`, 5.4.0 `text_position_ids` to its layers
    "qwen3_5_moe": "5.4.0",
    "glm4v": "5.0.0",
    "glm4v_moe": "5.0.0",
    "ernie4_5_vl_moe": "5.0.0",
}


def right_padding_raises(version: Version, model_type: str) -> bool:
    """Return whether `model_type` under flash attention refuses right padding in this transformers."""
    return any(
        Version(first) <= version < Version(end) and model_type in types for first, end, types in RIGHT_PADDING_RAISES
    )
