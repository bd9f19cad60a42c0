"""A model as its configuration files describe it: plain data."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from attncheck.core.facts import Absent, Fact
from attncheck.core.links import UnresolvedName


@dataclass(frozen=True)
class Tokenizer:
    """The padding settings of a tokenizer, and what is known about its token numbers."""

    padding_side: Fact[str]
    pad_token: Fact[str]
    eos_token: Fact[str]
    added_token: Fact[str] = Absent("the files were not checked for this")  # the added token with the highest number
    added_token_id: Fact[int] = Absent("the files were not checked for this")
    token_ids: Mapping[str, int] = field(default_factory=dict)  # "pad_token" -> number, for tokens in the vocabulary
    # tokens in no vocabulary -> the number that they get on loading
    appended: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Tower:
    """The attention of a vision or audio part of a model: bidirectional, with its own head size."""

    name: str  # the sub-config: "vision_config"
    num_heads: int
    head_dim: int


@dataclass(frozen=True)
class BuildFailure:
    """Why the installed class cannot be built from a configuration, observed by building it without weights.

    `fields` are the fields of config.json whose removal, each on its own, lets the class be built:
    "text_config.pad_token_id".
    """

    error: str  # the exception's type and message
    fields: Mapping[str, str] = field(default_factory=dict)  # name -> value, as JSON


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
    head_dim: Fact[int]  # head size of q and k, the largest over the layers
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
    remote_code: bool  # config.json names its own code (auto_map)
    remote_imports: tuple[
        str, ...
    ]  # imports of that code, which is never run: "einops", "flash_attn.bert_padding:unpad_input"
    tokenizer: Fact[Tokenizer]
    # attn_implementation -> "" if accepted, otherwise the installed transformers' error
    accepts: Fact[Mapping[str, str]]
    vocab_size: Fact[int] = Absent("config.json was not checked for this")
    embedding_rows: Fact[int] = Absent("the class was not built")  # of the installed class, built without weights
    token_ids: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # "config.json: pad_token_id" -> numbers
    build_failure: Fact[BuildFailure] = Absent("the class was not built")
    # implementations that the model's own code registers without a mask function
    registered_attentions: tuple[str, ...] = ()
    # the dtype that 4-bit layers compute in
    quantised_dtype: Fact[str] = Absent("config.json does not quantise in 4 bits")
    links: Fact[tuple[UnresolvedName, ...]] = Absent(
        "its code was not compared with the packages"
    )  # what no longer exists there
    rounded_positions: tuple[str, ...] = ()  # where its code counts positions in a buffer's dtype: "modeling.py:12"
    ties_embeddings: Fact[bool] = Absent("config.json was not checked for this")  # tie_word_embeddings
    # calls of mask functions in its file: "create_causal_mask(config)"
    mask_calls: Fact[tuple[str, ...]] = Absent("the class was not read")
