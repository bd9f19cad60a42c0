"""A model's configuration files are read for what they say, and class defaults fill what they leave out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from attncheck.core import codec
from attncheck.core.facts import Fact, Known, Unreadable
from attncheck.core.model import Model
from attncheck.doctor.probes.payload.model import config as model_config

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "max_position_embeddings": 131072,
    "attention_dropout": 0.0,
    "torch_dtype": "bfloat16",
    "use_cache": True,
}
QWEN2 = {
    "model_type": "qwen2",
    "hidden_size": 3584,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "num_hidden_layers": 28,
    "max_window_layers": 28,
    "sliding_window": 131072,
    "use_sliding_window": False,
}
QWEN3 = {
    "model_type": "qwen3",
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_hidden_layers": 28,
    "sliding_window": None,
    "use_sliding_window": False,
}
QWEN3_NEXT = {
    "model_type": "qwen3_next",
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "num_hidden_layers": 48,
    "full_attention_interval": 4,
}
GEMMA2 = {
    "model_type": "gemma2",
    "hidden_size": 3584,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "num_hidden_layers": 42,
}
GEMMA3 = {
    "model_type": "gemma3",
    "torch_dtype": "bfloat16",
    "text_config": {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "num_hidden_layers": 34,
        "sliding_window": 1024,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    },
    "vision_config": {"hidden_size": 1152, "num_attention_heads": 16, "num_hidden_layers": 27},
}
GEMMA4 = {
    "model_type": "gemma4",
    "text_config": {
        "model_type": "gemma4_text",
        "hidden_size": 2304,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "global_head_dim": 512,
        "num_hidden_layers": 30,
        "sliding_window": 512,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 5,
    },
    "vision_config": {"hidden_size": 768, "num_attention_heads": 12, "head_dim": 64},
}
GPT_OSS = {
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "head_dim": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "num_hidden_layers": 24,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
}
MISTRAL = {
    "model_type": "mistral",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "sliding_window": 4096,
}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "auto_map": {"AutoModelForCausalLM": "modeling_deepseek.DeepseekV3ForCausalLM"},
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "num_hidden_layers": 61,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "kv_lora_rank": 512,
}
LLAMA4 = {
    "model_type": "llama4",
    "text_config": {
        "model_type": "llama4_text",
        "hidden_size": 5120,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_hidden_layers": 8,
        "attention_chunk_size": 8192,
        "no_rope_layers": [],
    },
    "vision_config": {"hidden_size": 1408, "num_attention_heads": 16},
}
FALCON_7B = {
    "model_type": "falcon",
    "hidden_size": 4544,
    "num_attention_heads": 71,
    "num_hidden_layers": 32,
    "multi_query": True,
    "new_decoder_architecture": False,
    "alibi": False,
}
FALCON_40B = {
    "model_type": "falcon",
    "hidden_size": 8192,
    "num_attention_heads": 128,
    "num_kv_heads": 8,
    "num_hidden_layers": 60,
    "multi_query": True,
    "new_decoder_architecture": True,
}
BLOOM = {"model_type": "bloom", "hidden_size": 4096, "n_head": 32, "n_layer": 30, "attention_dropout": 0.0}
MPT = {"model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32, "attn_config": {"attn_pdrop": 0.1}}
GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "attn_pdrop": 0.1}
PHI3 = {
    "model_type": "phi3",
    "hidden_size": 3072,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "num_hidden_layers": 32,
    "sliding_window": 2047,
    "_attn_implementation": "flash_attention_2",
}
CHATGLM = {
    "model_type": "chatglm",
    "auto_map": {"AutoModel": "modeling_chatglm.ChatGLMModel"},
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "kv_channels": 128,
    "multi_query_attention": True,
    "multi_query_group_num": 2,
    "num_layers": 40,
    "seq_length": 131072,
}
QWEN2_5_VL = {
    **QWEN2,
    "model_type": "qwen2_5_vl",
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "vision_config": {"depth": 32, "hidden_size": 1280, "num_heads": 16, "out_hidden_size": 3584},
}
JAMBA = {
    "model_type": "jamba",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 8,
    "attn_layer_period": 8,
    "attn_layer_offset": 4,
    "sliding_window": None,
}
BERT = {"model_type": "bert", "hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 12}


@dataclass(frozen=True)
class Holder:
    model: Fact[Model]


def write_model_folder(path: Path, config: object, **files: object) -> str:
    """Write config.json and other files into `path` and return its name."""
    for name, content in {"config.json": config, **files}.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (path / name).write_text(text, encoding="utf-8")
    return str(path)


def read_model(source: str, **options: Any) -> Fact[Model]:
    """Return the model at `source` as attncheck reads it."""
    return codec.read(Holder, {"model": model_config.collect_model(source, **options)}).model


def read_written_model(path: Path, config: object, **files: object) -> Model:
    """Write a model folder with `config` and return the model read from it; it must be readable."""
    model = read_model(write_model_folder(path, config, **files))
    assert isinstance(model, Known)
    return model.value


@pytest.mark.parametrize(
    ("config", "heads", "kv_heads", "head_dims", "v_head_dim"),
    [
        pytest.param(config, *sizes, id=f"{config['model_type']}-{sizes[0]}")
        for config, sizes in (
            (LLAMA, (32, 8, (128,), 128)),
            (QWEN2, (28, 4, (128,), 128)),
            (QWEN3, (16, 8, (128,), 128)),
            (QWEN3_NEXT, (16, 2, (256,), 256)),
            (GEMMA2, (16, 8, (256,), 256)),
            (GEMMA3, (8, 4, (256,), 256)),
            (GEMMA4, (8, 4, (256, 512), 512)),
            (GPT_OSS, (64, 8, (64,), 64)),
            (MISTRAL, (32, 8, (128,), 128)),
            ({**MISTRAL, "model_type": "mixtral", "sliding_window": None}, (32, 8, (128,), 128)),
            (DEEPSEEK_V3, (128, 128, (192,), 128)),
            (LLAMA4, (40, 8, (128,), 128)),
            (FALCON_7B, (71, 1, (64,), 64)),
            (FALCON_40B, (128, 8, (64,), 64)),
            (BLOOM, (32, 32, (128,), 128)),
            (MPT, (32, 32, (128,), 128)),
            (GPT2, (12, 12, (64,), 64)),
            (PHI3, (32, 32, (96,), 96)),
            (CHATGLM, (32, 2, (128,), 128)),
            (QWEN2_5_VL, (28, 4, (128,), 128)),
            (JAMBA, (32, 8, (128,), 128)),
            (BERT, (12, 12, (64,), 64)),
        )
    ],
)
def test_heads(
    tmp_path: Path, config: dict[str, Any], heads: int, kv_heads: int, head_dims: tuple[int, ...], v_head_dim: int
) -> None:
    model = read_written_model(tmp_path, config)
    assert (model.num_heads, model.num_kv_heads) == (Known(heads), Known(kv_heads))
    assert (model.head_dims, model.head_dim) == (head_dims, Known(max(head_dims)))
    assert model.v_head_dim == Known(v_head_dim)


@pytest.mark.parametrize(
    ("config", "window", "windowed"),
    [
        (QWEN2, None, 0),
        ({**QWEN2, "use_sliding_window": True, "max_window_layers": 20}, 131072, 8),
        (MISTRAL, 4096, 32),
        ({**MISTRAL, "sliding_window": None}, None, 0),
        (GEMMA2, 4096, 21),
        (GEMMA3, 1024, 29),
        (GEMMA4, 512, 25),
        (GPT_OSS, 128, 12),
        (PHI3, 2047, 32),
        ({"model_type": "cohere2", "num_hidden_layers": 8, "sliding_window_pattern": 4}, 4096, 6),
        (
            {"model_type": "exaone4", "num_hidden_layers": 8, "sliding_window": 99, "sliding_window_pattern": "LLLG"},
            99,
            6,
        ),
        (
            {
                "model_type": "modernbert",
                "num_hidden_layers": 6,
                "local_attention": 128,
                "global_attn_every_n_layers": 3,
            },
            128,
            4,
        ),
    ],
    ids=lambda value: value.get("model_type") if isinstance(value, dict) else None,
)
def test_windows(tmp_path: Path, config: dict[str, Any], window: int | None, windowed: int) -> None:
    model = read_written_model(tmp_path, config)
    assert model.layer_types.count("sliding_attention") == windowed
    assert (model.sliding_window.value if isinstance(model.sliding_window, Known) else None) == window


@pytest.mark.parametrize(
    ("config", "kinds"),
    [
        (QWEN3_NEXT, {"linear_attention": 36, "full_attention": 12}),
        (JAMBA, {"mamba": 7, "full_attention": 1}),
        (LLAMA4, {"chunked_attention": 6, "full_attention": 2}),
        ({"model_type": "bamba", "num_hidden_layers": 4, "attn_layer_indices": [1]}, {"mamba": 3, "full_attention": 1}),
        ({"model_type": "falcon_h1", "num_hidden_layers": 3}, {"hybrid": 3}),
        ({"model_type": "mamba2", "num_hidden_layers": 3}, {"mamba": 3}),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "M-M*"}, {"mamba": 2, "mlp": 1, "full_attention": 1}),
        (
            {"model_type": "kimi_linear", "num_hidden_layers": 4, "linear_attn_config": {"full_attn_layers": [4]}},
            {"linear_attention": 3, "full_attention": 1},
        ),
        ({"model_type": "lfm2", "num_hidden_layers": 4, "full_attn_idxs": [2]}, {"conv": 3, "full_attention": 1}),
        (
            {"model_type": "minimax", "num_hidden_layers": 3, "attn_type_list": [0, 0, 1]},
            {"linear_attention": 2, "full_attention": 1},
        ),
        (
            {"model_type": "recurrent_gemma", "num_hidden_layers": 3, "block_types": ["recurrent", "attention"]},
            {"linear_attention": 2, "sliding_attention": 1},
        ),
        (
            {"model_type": "gpt_neo", "num_layers": 2, "attention_layers": ["global", "local"], "window_size": 256},
            {"full_attention": 1, "sliding_attention": 1},
        ),
    ],
    ids=lambda value: value.get("model_type") if isinstance(value, dict) else None,
)
def test_layers(tmp_path: Path, config: dict[str, Any], kinds: dict[str, int]) -> None:
    model = read_written_model(tmp_path, config)
    assert {kind: model.layer_types.count(kind) for kind in set(model.layer_types)} == kinds


def test_what_else_attention_needs(tmp_path: Path) -> None:
    gemma = read_written_model(tmp_path, GEMMA2)
    assert gemma.softcap == Known(50.0)
    assert read_written_model(tmp_path, GPT_OSS).sinks
    assert read_written_model(tmp_path, BLOOM).alibi and read_written_model(tmp_path, MPT).alibi
    assert not read_written_model(tmp_path, FALCON_7B).alibi
    assert read_written_model(tmp_path, QWEN2_5_VL).mrope and not read_written_model(tmp_path, QWEN2).mrope
    assert (
        not read_written_model(tmp_path, BERT).causal
        and read_written_model(tmp_path, {**BERT, "is_decoder": True}).causal
    )
    assert not read_written_model(tmp_path, {"model_type": "t5", "is_encoder_decoder": True}).causal
    assert read_written_model(tmp_path, MPT).attention_dropout == Known(0.1)
    assert read_written_model(tmp_path, LLAMA4).attention_chunk_size == Known(8192)
    assert read_written_model(tmp_path, GEMMA3).dtype == Known("bfloat16")
    assert read_written_model(tmp_path, {**LLAMA, "torch_dtype": "torch.float16"}).dtype == Known("float16")
    assert read_written_model(tmp_path, PHI3).attn_implementation == Known("flash_attention_2")
    assert read_written_model(tmp_path, GPT2).max_position_embeddings == Known(1024)


def test_towers_have_their_own_heads(tmp_path: Path) -> None:
    heads = {tower.name: (tower.num_heads, tower.head_dim) for tower in read_written_model(tmp_path, QWEN2_5_VL).towers}
    assert heads == {"vision_config": (16, 80)}
    omni = {
        "model_type": "omni",
        "thinker_config": {"text_config": LLAMA, "audio_config": {"d_model": 1280, "n_head": 20}},
    }
    model = read_written_model(tmp_path, omni)
    assert model.num_heads == Known(32)
    assert [(tower.name, tower.head_dim) for tower in model.towers] == [("audio_config", 64)]


def test_the_tokenizer_is_read_from_its_small_files(tmp_path: Path) -> None:
    config = {"padding_side": "left", "pad_token": None, "eos_token": {"content": "</s>"}}
    special = {"pad_token": {"content": "<pad>"}, "eos_token": "ignored"}
    files: dict[str, object] = {"tokenizer_config.json": config, "special_tokens_map.json": special}
    tokenizer = read_written_model(tmp_path, LLAMA, **files).tokenizer
    assert isinstance(tokenizer, Known)
    assert tokenizer.value.padding_side == Known("left")
    assert (tokenizer.value.pad_token, tokenizer.value.eos_token) == (Known("<pad>"), Known("</s>"))


def test_remote_code_is_read_and_never_run(tmp_path: Path) -> None:
    code = """
import torch, einops.layers
from flash_attn.bert_padding import unpad_input
from transformers.modeling_flash_attention_utils import _flash_supports_window_size
from .configuration_chatglm import ChatGLMConfig
try:
    import xformers
except ImportError:
    pass
if is_flash_attn_2_available():
    from flash_attn import flash_attn_func
raise SystemExit("this file was run")
"""
    model = read_written_model(tmp_path, CHATGLM, **{"modeling_chatglm.py": code, "broken.py": "def ("})
    assert model.remote_code
    assert set(model.remote_imports) == {
        *("torch", "einops", "flash_attn", "transformers", "flash_attn.bert_padding:unpad_input"),
        "transformers.modeling_flash_attention_utils:_flash_supports_window_size",
    }
    assert not read_written_model(tmp_path, LLAMA).remote_imports


def test_a_hub_name_is_found_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = tmp_path / "hub" / "models--meta-llama--Llama-3.1-8B"
    snapshot = repository / "snapshots" / "0e9e39f"
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0e9e39f\n")
    write_model_folder(snapshot, LLAMA)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.delenv("HUGGINGFACE_HUB_CACHE", raising=False)
    model = read_model("meta-llama/Llama-3.1-8B")
    assert isinstance(model, Known) and model.value.source == "meta-llama/Llama-3.1-8B"
    explicit = read_model("meta-llama/Llama-3.1-8B", cache_dirs=[str(tmp_path / "hub")])
    assert explicit == model
    missing = read_model("meta-llama/Llama-2-7b")
    assert isinstance(missing, Unreadable) and "cache" in missing.reason


def test_documents_in_hand_are_read_without_a_disk() -> None:
    model = read_model("org/name", documents={"config.json": json.dumps(LLAMA)})
    assert isinstance(model, Known) and model.value.num_heads == Known(32)
    assert isinstance(read_model("org/name", documents={}), Unreadable)


def test_a_config_file_may_be_named_itself(tmp_path: Path) -> None:
    assert isinstance(read_model(write_model_folder(tmp_path, LLAMA) + "/config.json"), Known)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ("", "empty"),
        ("{", "not JSON"),
        ("[1]", "not an object"),
        ("[" * 100000, "nested too deeply"),
        ("\udcff", "not UTF-8"),
    ],
)
def test_damaged_files_say_why(tmp_path: Path, config: str, reason: str) -> None:
    (tmp_path / "config.json").write_bytes(config.encode("utf-8", "surrogateescape"))
    model = read_model(str(tmp_path))
    assert isinstance(model, Unreadable) and reason in model.reason


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(100_000_000)
    assert read_model(str(tmp_path)) == Unreadable("config.json is 100 MB; a model's is a few kB")


@pytest.mark.parametrize("source", ["", " ", "/nowhere/at/all", "a/b/c/d", "..", "\0", "org--x/y", "./missing"])
def test_a_source_that_is_none(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert isinstance(read_model(source, cache_dirs=[]), Unreadable)


@pytest.mark.parametrize("value", ["32", -1, 0, 1.5, True, [32], {"a": 1}, float("nan"), 10**30])
def test_a_value_of_the_wrong_kind_is_named(tmp_path: Path, value: object) -> None:
    model = read_written_model(tmp_path, {**LLAMA, "num_attention_heads": value})
    assert isinstance(model.num_heads, Unreadable) and "num_attention_heads" in model.num_heads.reason
    assert isinstance(model.head_dim, Unreadable) and model.head_dims == ()
