"""The architectures that smoke trains: stand-ins by name, and models by their config.json."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

VOCABULARY_SIZE = 64  # the language's tokens, plus some for special ones
SPECIAL_TOKENS = 3  # the last ones of a vocabulary: padding, beginning and end of a text
WINDOW = 24  # tokens: shorter than most documents

_SMALL_CONFIG: dict[str, Any] = {
    "vocab_size": VOCABULARY_SIZE,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "tie_word_embeddings": False,
}
# Configurations that represent an architecture without a named model.
SHAPES: Mapping[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **_SMALL_CONFIG},
    "qwen2": {"model_type": "qwen2", **_SMALL_CONFIG},
    "qwen3": {"model_type": "qwen3", **_SMALL_CONFIG},
    "mistral": {"model_type": "mistral", **_SMALL_CONFIG, "sliding_window": WINDOW},
    "gemma2": {"model_type": "gemma2", **_SMALL_CONFIG, "sliding_window": WINDOW, "query_pre_attn_scalar": 32},
    "gemma3": {
        "model_type": "gemma3_text",
        **_SMALL_CONFIG,
        "sliding_window": WINDOW,
        "query_pre_attn_scalar": 32,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "gpt_oss": {
        "model_type": "gpt_oss",
        **_SMALL_CONFIG,
        "sliding_window": WINDOW,
        "num_local_experts": 2,
        "num_experts_per_tok": 2,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "mixtral": {"model_type": "mixtral", **_SMALL_CONFIG, "num_local_experts": 2, "num_experts_per_tok": 2},
    "deepseek_v3": {
        "model_type": "deepseek_v3",
        **{key: value for key, value in _SMALL_CONFIG.items() if key != "head_dim"},
        "num_key_value_heads": 4,
        "q_lora_rank": 64,
        "kv_lora_rank": 64,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "v_head_dim": 32,
        "n_routed_experts": 4,
        "num_experts_per_tok": 4,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 64,
    },
    "qwen2_5_vl": {  # positions of shape (3, batch, seqlen): time, height, width
        "model_type": "qwen2_5_vl",
        **_SMALL_CONFIG,
        "rope_scaling": {"rope_type": "default", "mrope_section": [4, 6, 6]},
        "vision_start_token_id": 5,  # the class reads it, but its default has none (transformers 4.56.2)
        "vision_config": {"depth": 1, "hidden_size": 64, "num_heads": 2, "intermediate_size": 64},
    },
    "qwen3_next": {
        "model_type": "qwen3_next",
        **_SMALL_CONFIG,
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "num_experts": 2,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
    },
}


class Unbuildable(Exception):
    """A model that cannot be built here; the message gives the reason and what to do."""


@dataclass(frozen=True)
class Architecture:
    """A model to build: its parsed config.json, and the folder or repository of real weights if they are requested."""

    name: str
    document: Mapping[str, Any] = field(default_factory=dict)
    weights: str = ""  # with `--full`
    vocabulary_size: int = VOCABULARY_SIZE
    # whether heads are removed instead of keeping the full width, if head_dim follows from the width
    cuts_heads: bool = False

    @property
    def pad_token_id(self) -> int:
        """The id of the padding token."""
        return self.vocabulary_size - 1


def load_architecture(name: str, full: bool = False) -> Architecture:
    """Return a stand-in by its name, or the model in a folder or in the Hub's local cache. Raises `Unbuildable`."""
    if name in SHAPES:
        return Architecture(name, SHAPES[name])
    from attncheck.doctor.probes.payload.model import config
    from attncheck.workers.inside.paths import user_path

    fact = config.read_config(name, None)
    document = fact.get("known")
    if not isinstance(document, dict):
        raise Unbuildable(f"the model {name} cannot be read: {fact.get('absent') or fact.get('unreadable')}")
    if not full:
        return Architecture(name, document)
    vocabulary_size = document.get("vocab_size") or document.get("text_config", {}).get("vocab_size") or VOCABULARY_SIZE
    return Architecture(name, document, user_path(name), int(vocabulary_size))
