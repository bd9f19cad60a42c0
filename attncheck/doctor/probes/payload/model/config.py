"""Reads a model's configuration files into the shape of `core.model.Model`, without weights, code or the network.

`collect_model` never raises for the files it reads: a damaged file becomes a fact that says so. Fields that config.json
leaves out take the class defaults of `defaults`. The import lane queries the installed class (`accepts`) and overrides
them.
"""

from __future__ import annotations

from typing import Any

from ..facts import absent, describe_error, known, unreadable
from . import files, heads, layers, token_ids, tokenizer
from .defaults import fill_defaults
from .values import as_object, as_str_list, known_value, read_bool, read_float, read_int, read_str

_TEXT_CONFIGS = ("text_config", "llm_config", "language_config", "language_model_config", "thinker_config", "decoder")
_TOWER_CONFIGS = ("vision_config", "audio_config", "vision_encoder_config", "speech_config", "visual")
# Names in transformers 5.23.0: deepseek_v4, flint, gpt_oss, granite_swa, granitemoe_swa, hy_v4, mimo_v2_flash and
# openai_privacy_filter pass `s_aux` to their attention function (models/*/modeling_*.py).
_SINK_MODELS = """
    deepseek_v4 flint gpt_oss granite_swa granitemoe_swa hy_v4 mimo_v2_flash openai_privacy_filter
"""
_ENCODER_MODELS = """
    albert bert big_bird camembert convbert data2vec-text deberta deberta-v2 distilbert electra ernie esm eurobert
    flaubert fnet funnel ibert layoutlm layoutlmv3 longformer luke mobilebert modernbert mpnet mra nomic_bert
    nystromformer rembert roberta roberta-prelayernorm roc_bert roformer splinter squeezebert tapas xlm-roberta
    xlm-roberta-xl xmod yoso
"""


def collect_model(
    source: str, documents: dict[str, str] | None = None, cache_dirs: list[str] | None = None
) -> dict[str, Any]:
    """Return the model that `source` names (a folder, a config.json, a Hub name in the local cache) as a fact.

    `documents` maps the names of its files to their text, if already read; then nothing is read from disk.
    """
    try:
        return _collect_model(source, documents, cache_dirs)
    except Exception as error:  # a damaged file must affect only this fact
        return unreadable("reading the model failed: " + describe_error(error))


def _collect_model(source: str, documents: dict[str, str] | None, cache_dirs: list[str] | None) -> dict[str, Any]:
    folder: dict[str, Any] = known("") if documents is not None else files.find_model_folder(source, cache_dirs)
    if "known" not in folder:
        return folder
    config = files.read_json(folder["known"], "config.json", documents)
    if "known" not in config:
        return unreadable(config.get("unreadable") or "there is no config.json")
    document = config["known"]
    remote = bool(as_object(document.get("auto_map")))
    model = derive_model(document)
    model["source"] = source
    model["remote_code"] = remote
    model["remote_imports"] = []
    if remote and documents is None:
        from . import remote_code

        model["remote_imports"] = remote_code.collect_remote_imports(folder["known"])
        model["rounded_positions"] = remote_code.collect_rounded_positions(folder["known"])
        model["registered_attentions"] = remote_code.collect_unmasked_attentions(folder["known"])
    model["tokenizer"] = tokenizer.collect_tokenizer(folder["known"], documents)
    generation = as_object(files.read_json(folder["known"], "generation_config.json", documents).get("known"))
    model["token_ids"] = token_ids.collect_config_ids(document, find_text_config(document), generation)
    model["accepts"] = unreadable("the import lane did not run")
    return known(model)


def read_config(
    source: str, documents: dict[str, str] | None = None, cache_dirs: list[str] | None = None
) -> dict[str, Any]:
    """Return the parsed config.json of `source` as a fact."""
    folder: dict[str, Any] = known("") if documents is not None else files.find_model_folder(source, cache_dirs)
    return files.read_json(folder["known"], "config.json", documents) if "known" in folder else folder


def derive_model(document: dict[str, Any], complete: bool = False) -> dict[str, Any]:
    """Return the model fields that follow from a parsed configuration.

    If `complete`, the configuration's class has filled in every field, so no defaults are added."""
    text_config = find_text_config(document)
    model_type = known_value(read_str(text_config, "model_type")) or known_value(read_str(document, "model_type")) or ""
    if not complete:
        text_config = fill_defaults(model_type, text_config)
    model = layers.derive_layer_fields(text_config, model_type)
    model.update(heads.derive_head_fields(text_config, model_type, model["layer_types"]))
    model.update(_derive_settings(text_config, document))
    model.update(
        model_type=known_value(read_str(document, "model_type")) or "",
        architectures=as_str_list(document.get("architectures"), 20),
        max_position_embeddings=_max_positions(text_config),
        quantised_dtype=_quantised_dtype(as_object(document.get("quantization_config"))),
        vocab_size=read_int(text_config, "vocab_size", "padded_vocab_size"),
        softcap=_absent_if_zero(read_float(text_config, "attn_logit_softcapping")),
        sinks=model_type in _SINK_MODELS.split(),
        alibi=_uses_alibi(text_config, model_type),
        mrope=_uses_mrope(text_config) or _uses_mrope(document),
        causal=_is_causal(text_config, document, model_type),
        towers=_collect_towers(document),
    )
    return model


def find_text_config(document: dict[str, Any], depth: int = 3) -> dict[str, Any]:
    """Return the configuration of the text part: `document` itself, or the nested one that states the heads."""
    for name in _TEXT_CONFIGS:
        nested = document.get(name)
        if isinstance(nested, dict) and nested and depth:
            inner = find_text_config(nested, depth - 1)
            if inner is not nested or len(inner) > 1:
                return inner
    return document


def _derive_settings(text_config: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that a nested text part may leave to the outer configuration."""
    merged = dict(document)
    merged.update((key, item) for key, item in text_config.items() if item is not None)
    attention = as_object(text_config.get("attn_config"))
    dropout = read_float(merged, "attention_dropout", "attn_pdrop", "attention_probs_dropout_prob")
    dtype = read_str(merged, "dtype", "torch_dtype")
    return {
        "dtype": known(dtype["known"].replace("torch.", "")) if "known" in dtype else dtype,
        "attention_dropout": read_float(attention, "attn_pdrop") if "absent" in dropout and attention else dropout,
        "use_cache": read_bool(merged, "use_cache"),
        "ties_embeddings": read_bool(merged, "tie_word_embeddings"),
        "output_attentions": merged.get("output_attentions") is True,
        "attn_implementation": read_str(merged, "attn_implementation", "_attn_implementation"),
    }


def _quantised_dtype(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the dtype in which bitsandbytes' 4-bit layers compute; float32 if it is not set."""
    if settings.get("load_in_4bit") is not True:
        return absent("config.json does not quantise in 4 bits")
    dtype = read_str(settings, "bnb_4bit_compute_dtype")
    return known(known_value(dtype, "float32").replace("torch.", "")) if "unreadable" not in dtype else dtype


def _max_positions(text_config: dict[str, Any]) -> dict[str, Any]:
    return read_int(
        text_config, "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length"
    )


def _absent_if_zero(fact: dict[str, Any]) -> dict[str, Any]:
    return absent("it is 0") if fact.get("known") == 0 else fact


def _uses_alibi(text_config: dict[str, Any], model_type: str) -> bool:
    if model_type == "mpt":
        return as_object(text_config.get("attn_config")).get("alibi") is not False
    return (
        model_type == "bloom"
        or text_config.get("alibi") is True
        or text_config.get("position_embedding_type") == "alibi"
    )


def _uses_mrope(config: dict[str, Any]) -> bool:
    tables = [config, *(as_object(config.get(name)) for name in ("rope_scaling", "rope_parameters"))]
    return any(table.get("mrope_section") is not None or table.get("type") == "mrope" for table in tables)


def _is_causal(text_config: dict[str, Any], document: dict[str, Any], model_type: str) -> bool:
    if text_config.get("is_causal") is False or text_config.get("use_bidirectional_attention") in (True, "all"):
        return False
    if document.get("is_encoder_decoder") is True:
        return False
    return model_type not in _ENCODER_MODELS.split() or text_config.get("is_decoder") is True


def _collect_towers(document: dict[str, Any]) -> list[dict[str, Any]]:
    towers = []
    for holder in (document, as_object(document.get("thinker_config"))):
        for name in _TOWER_CONFIGS:
            if isinstance(holder.get(name), dict):
                tower = heads.derive_tower(name, holder[name])
                if "known" in tower:
                    towers.append(tower["known"])
    return towers
