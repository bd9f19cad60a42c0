"""Small models of any architecture the installed transformers knows, cut from their configurations.

What decides attention is kept: heads, kv heads, head_dim, MLA's ranks, the pattern of layers, windows (made shorter
than a document), soft-caps, sinks, position embeddings. Cut are the layers' number, the hidden size where the heads do
not follow from it, the vocabulary and the experts (all of which are then used, so that rounding cannot choose others).
No weights are read but with `full`; no remote code runs, nothing is fetched.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from attncheck.measure.smoke.language import WORDS

VOCABULARY = 64  # the language's words, then room for special tokens
SPECIAL = 3  # the last tokens of a vocabulary: padding, the beginning, the end
HIDDEN = 256  # where heads do not follow from it
MOST_LAYERS = 6
WINDOW = 24  # tokens: shorter than most documents
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "top_k")
KEPT_EXPERTS = 4
SHARP = 0.1  # standard deviation of weights under which attention is far from uniform

_SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "tie_word_embeddings": False,
}
# Configurations that stand for an architecture where no model is named.
SHAPES: Mapping[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **_SMALL},
    "qwen2": {"model_type": "qwen2", **_SMALL},
    "qwen3": {"model_type": "qwen3", **_SMALL},
    "mistral": {"model_type": "mistral", **_SMALL, "sliding_window": WINDOW},
    "gemma2": {"model_type": "gemma2", **_SMALL, "sliding_window": WINDOW, "query_pre_attn_scalar": 32},
    "gemma3": {
        "model_type": "gemma3_text",
        **_SMALL,
        "sliding_window": WINDOW,
        "query_pre_attn_scalar": 32,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "gpt_oss": {
        "model_type": "gpt_oss",
        **_SMALL,
        "sliding_window": WINDOW,
        "num_local_experts": 2,
        "num_experts_per_tok": 2,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "mixtral": {"model_type": "mixtral", **_SMALL, "num_local_experts": 2, "num_experts_per_tok": 2},
    "deepseek_v3": {
        "model_type": "deepseek_v3",
        **{key: value for key, value in _SMALL.items() if key != "head_dim"},
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
    "qwen3_next": {
        "model_type": "qwen3_next",
        **_SMALL,
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
    """A model that cannot be built here; the message says why and what to do."""


@dataclass(frozen=True)
class Architecture:
    """What to build: a parsed config.json, and the folder or repository of real weights where they are wanted."""

    name: str
    document: Mapping[str, Any] = field(default_factory=dict)
    weights: str = ""  # with `--full`
    vocabulary: int = VOCABULARY

    @property
    def pad(self) -> int:
        """The token that pads."""
        return self.vocabulary - 1


def architecture(name: str, full: bool = False) -> Architecture:
    """Return a shape by name, or the model in a folder or in the Hub's local cache. Raises `Unbuildable`."""
    if name in SHAPES:
        return Architecture(name, SHAPES[name])
    from attncheck.probes.payload import model_config

    found = model_config.document_of(name, None)
    document = found.get("known")
    if not isinstance(document, dict):
        raise Unbuildable(f"the model {name} cannot be read: {found.get('absent') or found.get('unreadable')}")
    if not full:
        return Architecture(name, document)
    words = document.get("vocab_size") or document.get("text_config", {}).get("vocab_size") or VOCABULARY
    return Architecture(name, document, name, int(words))


def build(
    source: Architecture, implementation: str, dtype: torch.dtype, device: Any, longest: int, seed: int, sharp: bool
) -> nn.Module:
    """Return the model in train mode, dropout off, with the same weights for the same seed.

    Raises `Unbuildable` for an architecture that the installed transformers cannot build, and what transformers raises
    for an implementation that it refuses.
    """
    import transformers

    chosen = {"attn_implementation": implementation} if implementation else {}
    if source.weights:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            source.weights, local_files_only=True, trust_remote_code=False, dtype=dtype, **chosen
        )
        return _ready(model, dtype, device)
    config = configuration(source, longest)
    for wider in (False, True):
        cut = _widened(config) if wider else config
        if sharp:
            _set(cut, "initializer_range", SHARP)
        model = _made(transformers, copy.deepcopy(cut), chosen, seed)
        if _heads_kept(model, config):
            break
    _sharpen_sinks(model, seed)
    return _ready(model, dtype, device)


def _ready(model: Any, dtype: torch.dtype, device: Any) -> nn.Module:
    ready: nn.Module = model.to(dtype).to(device).train()
    return ready


def _made(transformers: Any, config: Any, chosen: dict[str, str], seed: int) -> Any:
    torch.manual_seed(seed)
    known = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING
    if type(config) not in known:
        text = config.get_text_config() if hasattr(config, "get_text_config") else config
        if type(text) not in known:
            raise Unbuildable(
                f"transformers {transformers.__version__} has no causal language model for {config.model_type}; "
                "smoke trains those only"
            )
        config = text
    return transformers.AutoModelForCausalLM.from_config(config, **chosen)


def configuration(source: Architecture, longest: int) -> Any:
    """Return the cut configuration as transformers' own object. Raises `Unbuildable`."""
    import transformers

    document = _plain(source.document)
    kind = document.get("model_type", "")
    try:
        whole = transformers.CONFIG_MAPPING[kind].from_dict(document)
    except KeyError:
        own = " and brings its own code, which attncheck never runs" if source.document.get("auto_map") else ""
        raise Unbuildable(
            f"transformers {transformers.__version__} does not know model_type {kind!r}{own}; "
            "install a transformers that does, or name another model"
        ) from None
    config = whole.get_text_config() if hasattr(whole, "get_text_config") else whole
    if source.document is SHAPES.get(source.name):
        return _finished(config, longest, source)
    _cut_layers(config)
    _cut_experts(config)
    if getattr(config, "head_dim", None) is None and not hasattr(config, "qk_nope_head_dim"):
        heads = getattr(config, "num_attention_heads", 0)
        if heads:
            _set(config, "head_dim", config.hidden_size // heads, even_if_absent=True)
    config.cut_from_hidden = config.hidden_size
    if config.hidden_size > HIDDEN:
        config.hidden_size = HIDDEN
    for name in ("intermediate_size", "shared_expert_intermediate_size"):
        _set(config, name, 2 * config.hidden_size)
    _set(config, "moe_intermediate_size", config.hidden_size // 2)
    _set(config, "vocab_size_per_layer_input", source.vocabulary)
    window = getattr(config, "sliding_window", None)
    if isinstance(window, int) and window > WINDOW:
        config.sliding_window = WINDOW
    return _finished(config, longest, source)


def _finished(config: Any, longest: int, source: Architecture) -> Any:
    config.vocab_size = source.vocabulary
    for name in ("attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", "dropout"):
        _set(config, name, 0.0)
    for name, token in (
        ("pad_token_id", source.pad),
        ("bos_token_id", source.pad - 1),
        ("eos_token_id", source.pad - 2),
    ):
        setattr(config, name, token)
    if (getattr(config, "max_position_embeddings", None) or longest) < longest:
        config.max_position_embeddings = longest
    return config


def _plain(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config.json without what would ask for code, kernels or quantisation packages of their own."""
    dropped = ("auto_map", "quantization_config", "attn_implementation", "_attn_implementation")
    copied: dict[str, Any] = json.loads(json.dumps(dict(document)))
    for level in (copied, *(value for value in copied.values() if isinstance(value, dict))):
        for name in dropped:
            level.pop(name, None)
    return copied


def _cut_layers(config: Any) -> None:
    """Keep a few layers, every kind of them, and cut all lists that have one entry for each layer."""
    total = int(getattr(config, "num_hidden_layers", 2))
    kinds = list(getattr(config, "layer_types", None) or [])
    wanted = next((n for n in range(2, total + 1) if set(kinds[:n]) == set(kinds)), 2)
    keep = list(range(min(total, wanted)))
    if len(keep) > MOST_LAYERS:  # the first of each kind
        keep = sorted({kinds.index(kind) for kind in kinds})
    for name, value in list(vars(config).items()):
        if isinstance(value, list) and len(value) == total and total > 2:
            setattr(config, name, [value[index] for index in keep])
    config.num_hidden_layers = len(keep)
    for name in ("first_k_dense_replace", "num_nextn_predict_layers"):
        value = getattr(config, name, None)
        if isinstance(value, int):
            setattr(config, name, min(value, 1 if name.startswith("first") else 0))


def _cut_experts(config: Any) -> None:
    """Keep few experts and use them all."""
    for name in EXPERTS:
        count = getattr(config, name, None)
        if isinstance(count, int) and count > 0:
            setattr(config, name, min(count, KEPT_EXPERTS))
            for per_token in PER_TOKEN:
                _set(config, per_token, min(count, KEPT_EXPERTS))
            for group in ("n_group", "topk_group"):
                _set(config, group, 1)


def _set(config: Any, name: str, value: Any, even_if_absent: bool = False) -> None:
    if even_if_absent or isinstance(getattr(config, name, None), (int, float)):
        setattr(config, name, value)


def _widened(config: Any) -> Any:
    """Return the configuration with the hidden size that the heads need, where the class derives head_dim from it."""
    wide = copy.deepcopy(config)
    wide.hidden_size = getattr(config, "cut_from_hidden", config.hidden_size)
    return wide


def _heads_kept(model: Any, config: Any) -> bool:
    """Say whether q's projection is as wide as heads × head_dim ask."""
    wanted = getattr(config, "head_dim", None)
    for name, module in model.named_modules():
        if wanted and name.endswith(".q_proj") and hasattr(module, "out_features"):
            width = config.num_attention_heads * wanted
            return bool(module.out_features in (width, 2 * width))  # qwen3_next's also holds a gate
    return True


def _sharpen_sinks(model: Any, seed: int) -> None:
    """Give attention sinks values that matter: transformers may leave them empty."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if name.endswith(".sinks"):
            parameter.data.copy_(1.0 + torch.randn(parameter.shape, generator=generator))


def stay_offline() -> None:
    """Keep transformers from looking anything up on the Hub; call it before transformers is imported."""
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")


def words() -> int:
    """Return how many tokens of the vocabulary the language uses."""
    return WORDS
