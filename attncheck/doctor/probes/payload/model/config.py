"""A model as its configuration files describe it, in the shape of `snapshot.Model`. No weights, no code, no network.

`look` never raises for what it finds: a damaged file is a fact that says so. Fields that config.json leaves out take
the class defaults of `model_defaults`; the import lane asks the installed class (`model_accepts`) and overrides them.
"""

from __future__ import annotations

from ..facts import absent, failure, known, unreadable
from . import files, heads, layers, tokenizer
from .defaults import filled
from .values import flag, real, table, text, value, whole, words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_TEXT_PARTS = ("text_config", "llm_config", "language_config", "language_model_config", "thinker_config", "decoder")
_TOWERS = ("vision_config", "audio_config", "vision_encoder_config", "speech_config", "visual")
# Names in transformers 5.23.0: deepseek_v4, flint, gpt_oss, granite_swa, granitemoe_swa, hy_v4, mimo_v2_flash and
# openai_privacy_filter hand `s_aux` to their attention function (models/*/modeling_*.py).
_SINKS = """
    deepseek_v4 flint gpt_oss granite_swa granitemoe_swa hy_v4 mimo_v2_flash openai_privacy_filter
"""
_ENCODERS = """
    albert bert big_bird camembert convbert data2vec-text deberta deberta-v2 distilbert electra ernie esm eurobert
    flaubert fnet funnel ibert layoutlm layoutlmv3 longformer luke mobilebert modernbert mpnet mra nomic_bert
    nystromformer rembert roberta roberta-prelayernorm roc_bert roformer splinter squeezebert tapas xlm-roberta
    xlm-roberta-xl xmod yoso
"""


def look(source: str, documents: dict[str, str] | None = None, cache_dirs: list[str] | None = None) -> dict[str, Any]:
    """Return the model `source` names (a folder, a config.json, a Hub name in the local cache) as a fact.

    `documents` are its files already in hand, by name; then nothing is read from disk.
    """
    try:
        return _look(source, documents, cache_dirs)
    except Exception as error:  # whatever a damaged file does, it costs this fact alone
        return unreadable("reading the model failed: " + failure(error))


def _look(source: str, documents: dict[str, str] | None, cache_dirs: list[str] | None) -> dict[str, Any]:
    folder: dict[str, Any] = known("") if documents is not None else files.folder_of(source, cache_dirs)
    if "known" not in folder:
        return folder
    config = files.parsed(folder["known"], "config.json", documents)
    if "known" not in config:
        return unreadable(config.get("unreadable") or "there is no config.json")
    document = config["known"]
    remote = bool(table(document.get("auto_map")))
    model = derive(document)
    model["source"] = source
    model["remote_code"] = remote
    model["remote_imports"] = []
    if remote and documents is None:
        from . import remote_code

        model["remote_imports"] = remote_code.look(folder["known"])
    model["tokenizer"] = tokenizer.look(folder["known"], documents)
    model["accepts"] = unreadable("the import lane did not run")
    return known(model)


def document_of(
    source: str, documents: dict[str, str] | None = None, cache_dirs: list[str] | None = None
) -> dict[str, Any]:
    """Return the parsed config.json of `source` as a fact."""
    folder: dict[str, Any] = known("") if documents is not None else files.folder_of(source, cache_dirs)
    return files.parsed(folder["known"], "config.json", documents) if "known" in folder else folder


def derive(document: dict[str, Any], complete: bool = False) -> dict[str, Any]:
    """Return what follows from a parsed configuration; `complete` where its class has filled in every field."""
    part = text_part(document)
    kind = value(text(part, "model_type")) or value(text(document, "model_type")) or ""
    if not complete:
        part = filled(kind, part)
    model = layers.look(part, kind)
    model.update(heads.look(part, kind, model["layer_types"]))
    model.update(_settings(part, document))
    model.update(
        model_type=value(text(document, "model_type")) or "",
        architectures=words(document.get("architectures"), 20),
        max_position_embeddings=_positions(part),
        softcap=_positive(real(part, "attn_logit_softcapping")),
        sinks=kind in _SINKS.split(),
        alibi=_alibi(part, kind),
        mrope=_mrope(part) or _mrope(document),
        causal=_causal(part, document, kind),
        towers=_towers(document),
    )
    return model


def text_part(document: dict[str, Any], depth: int = 3) -> dict[str, Any]:
    """Return the configuration of the text part: `document` itself, or the nested one that holds the heads."""
    for name in _TEXT_PARTS:
        nested = document.get(name)
        if isinstance(nested, dict) and nested and depth:
            inner = text_part(nested, depth - 1)
            if inner is not nested or len(inner) > 1:
                return inner
    return document


def _settings(part: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that a nested text part may leave to the outer configuration."""
    both = dict(document)
    both.update((key, item) for key, item in part.items() if item is not None)
    attention = table(part.get("attn_config"))
    dropout = real(both, "attention_dropout", "attn_pdrop", "attention_probs_dropout_prob")
    dtype = text(both, "dtype", "torch_dtype")
    return {
        "dtype": known(dtype["known"].replace("torch.", "")) if "known" in dtype else dtype,
        "attention_dropout": real(attention, "attn_pdrop") if "absent" in dropout and attention else dropout,
        "use_cache": flag(both, "use_cache"),
        "output_attentions": both.get("output_attentions") is True,
        "attn_implementation": text(both, "attn_implementation", "_attn_implementation"),
    }


def _positions(part: dict[str, Any]) -> dict[str, Any]:
    return whole(part, "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length")


def _positive(fact: dict[str, Any]) -> dict[str, Any]:
    return absent("it is 0") if fact.get("known") == 0 else fact


def _alibi(part: dict[str, Any], kind: str) -> bool:
    if kind == "mpt":
        return table(part.get("attn_config")).get("alibi") is not False
    return kind == "bloom" or part.get("alibi") is True or part.get("position_embedding_type") == "alibi"


def _mrope(part: dict[str, Any]) -> bool:
    scaling = [part, *(table(part.get(name)) for name in ("rope_scaling", "rope_parameters"))]
    return any(table_of.get("mrope_section") is not None or table_of.get("type") == "mrope" for table_of in scaling)


def _causal(part: dict[str, Any], document: dict[str, Any], kind: str) -> bool:
    if part.get("is_causal") is False or part.get("use_bidirectional_attention") in (True, "all"):
        return False
    if document.get("is_encoder_decoder") is True:
        return False
    return kind not in _ENCODERS.split() or part.get("is_decoder") is True


def _towers(document: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    for holder in (document, table(document.get("thinker_config"))):
        for name in _TOWERS:
            if isinstance(holder.get(name), dict):
                tower = heads.tower(name, holder[name])
                if "known" in tower:
                    found.append(tower["known"])
    return found
