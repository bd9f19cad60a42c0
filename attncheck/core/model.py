"""A model as its configuration files describe it: plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from attncheck.core.facts import Fact


@dataclass(frozen=True)
class Tokenizer:
    """The padding settings in tokenizer_config.json."""

    padding_side: Fact[str]
    pad_token: Fact[str]
    eos_token: Fact[str]


@dataclass(frozen=True)
class Tower:
    """The attention of a vision or audio part of a model: bidirectional, with its own head size."""

    name: str  # the sub-config: "vision_config"
    num_heads: int
    head_dim: int


@dataclass(frozen=True)
class Model:
    """A model as its config.json and tokenizer_config.json describe it; no weights, no remote code."""

    source: str
    model_type: str
    architectures: tuple[str, ...]
    dtype: Fact[str]
    num_layers: Fact[int]
    num_heads: Fact[int]
    num_kv_heads: Fact[int]
    head_dim: Fact[int]  # of q and k, the largest over the layers
    v_head_dim: Fact[int]
    head_dims: tuple[int, ...]  # every distinct q/k head size over the layers
    max_position_embeddings: Fact[int]
    layer_types: tuple[str, ...]  # "full_attention", "sliding_attention", "linear_attention", "chunked_attention" …
    sliding_window: Fact[int]  # Absent unless some layer uses it
    attention_chunk_size: Fact[int]
    softcap: Fact[float]  # attn_logit_softcapping
    attention_dropout: Fact[float]
    sinks: bool
    alibi: bool
    mrope: bool  # positions of shape [3, batch, seqlen]
    causal: bool
    use_cache: Fact[bool]
    output_attentions: bool
    attn_implementation: Fact[str]  # as in config.json
    towers: tuple[Tower, ...]
    remote_code: bool  # config.json names code of its own (auto_map)
    remote_imports: tuple[
        str, ...
    ]  # what that code imports, never run: "einops", "flash_attn.bert_padding:unpad_input"
    tokenizer: Fact[Tokenizer]
    accepts: Fact[Mapping[str, str]]  # attn_implementation -> "" accepted, or the installed transformers' refusal
