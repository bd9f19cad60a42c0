"""What the installed transformers says of a model: its resolved configuration, and the attention it accepts.

Runs in a child of its own: it imports torch and transformers. The model is built shrunken, on the meta device and by
transformers' own class; no weights, no remote code, no network, no attention kernel is loaded.

Read in transformers 4.57.3, 5.17.0 and 5.23.0, `modeling_utils.py`: `_check_and_adjust_attn_implementation` (a missing
flash-attn is replaced by a Hub kernel; `_compatible_flash_implementations` redirects), `_flash_attn_can_dispatch`
(`ValueError` "… does not support Flash Attention" where the class refuses, `ImportError` where the package is
missing), `_sdpa_can_dispatch`, `_flex_attn_can_dispatch`.
"""

from __future__ import annotations

from ..facts import failure, known, unreadable
from . import config as model_config
from .values import table, text, value, words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ASKED = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flash_attention_4", "flex_attention")
_DROPPED = ("auto_map", "quantization_config", "attn_implementation", "_attn_implementation")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_REFUSALS = ("does not support", "is not compatible", "only supports", "only compatible")
_UNUSABLE = ("toggled on", "not installed", "requires the following", "kernel", "Kernel", "torch>=")


def accepts(source: Any, documents: dict[str, str] | None = None) -> dict[str, Any]:
    """Return {"accepts": fact, "resolved": the configuration as the installed class fills it in}.

    `source` is a parsed config.json or what `model_config.look` takes. The fact maps each attn_implementation to ""
    (accepted) or a text that starts with "refused: " (the class), "not installed: " (a package or a device that is
    missing here) or "error: " (anything else).
    """
    try:
        document = known(source) if isinstance(source, dict) else model_config.document_of(source, documents)
        if "known" not in document:
            return {"accepts": unreadable("the model's config.json was not read"), "resolved": {}}
        return _ask(table(document["known"]))
    except Exception as error:  # transformers may raise anything over a configuration it does not like
        return {"accepts": unreadable("asking transformers failed: " + failure(error)), "resolved": {}}


def merge(answer: dict[str, Any], model: dict[str, Any]) -> dict[str, Any]:
    """Return `model`, derived from config.json, corrected by what `accepts` answered.

    A fact that the resolved configuration leaves open keeps its first value, but for what it sets to null: there the
    class has said that the model has no such thing.
    """
    merged = dict(model)
    if "accepts" in answer:
        merged["accepts"] = answer["accepts"]
    resolved = table(answer.get("resolved"))
    if not resolved:
        return merged
    derived = model_config.derive(resolved, complete=True)
    for name in ("num_layers", "num_heads", "num_kv_heads", "head_dim", "v_head_dim", "attention_dropout"):
        _overlay(merged, derived, name)
    for name in ("max_position_embeddings", "dtype", "use_cache"):
        _overlay(merged, derived, name)
    for name in ("sliding_window", "attention_chunk_size", "softcap"):
        if "unreadable" not in derived[name]:
            merged[name] = derived[name]
    for name in ("layer_types", "head_dims", "towers"):
        merged[name] = derived[name] or model[name]
    for name in ("sinks", "alibi", "mrope", "causal"):
        merged[name] = derived[name]
    return merged


def _overlay(merged: dict[str, Any], derived: dict[str, Any], name: str) -> None:
    if "known" in derived[name]:
        merged[name] = derived[name]


def _ask(document: dict[str, Any]) -> dict[str, Any]:
    import os

    os.environ["HF_HUB_OFFLINE"] = "1"  # before the import: it is read once
    os.environ["TRANSFORMERS_OFFLINE"] = "1"
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    import warnings

    warnings.simplefilter("ignore")
    transformers = _module("transformers")
    model_type = value(text(document, "model_type"), "")
    try:
        kind = transformers.CONFIG_MAPPING[model_type]
    except KeyError:
        return {"accepts": unreadable(_unknown(transformers.__version__, model_type, document)), "resolved": {}}
    config = kind.from_dict(_plain(document))
    resolved = _resolved(config)
    kind_of_model = _model_class(transformers, document, config)
    if kind_of_model is None:
        return {"accepts": unreadable("transformers has no model class for " + model_type), "resolved": resolved}
    return {"accepts": _answers(transformers, kind_of_model, kind, document), "resolved": resolved}


def _module(name: str) -> Any:
    import importlib

    return importlib.import_module(name)


def _unknown(version: str, model_type: str, document: dict[str, Any]) -> str:
    if table(document.get("auto_map")):
        return "the model brings its own code, which attncheck never runs"
    if not model_type:
        return "config.json names no model_type"
    return "transformers {} does not know model_type '{}'".format(version, model_type)


def _plain(document: dict[str, Any]) -> dict[str, Any]:
    """Return `document` without what would ask for code, kernels or quantisation packages of their own."""
    dropped = (
        "auto_map",
        "quantization_config",
        "attn_implementation",
        "_attn_implementation",
        "experts_implementation",
    )
    return {
        key: _plain(item) if isinstance(item, dict) else item for key, item in document.items() if key not in dropped
    }


def _resolved(config: Any) -> dict[str, Any]:
    import json

    document = table(json.loads(config.to_json_string(use_diff=False)))
    return _small(document)


def _small(document: dict[str, Any]) -> dict[str, Any]:
    long = ("id2label", "label2id", "task_specific_params", "bad_words_ids")
    found: dict[str, Any] = {}
    for key, item in document.items():
        if isinstance(item, dict):
            if key not in long:
                found[key] = _small(item)
        elif not isinstance(item, list) or len(item) <= 4096:
            found[key] = item
    return found


def _model_class(transformers: Any, document: dict[str, Any], config: Any) -> Any:
    base = transformers.PreTrainedModel
    for name in words(document.get("architectures"), 20):
        found = getattr(transformers, name, None) if name.isidentifier() else None
        if isinstance(found, type) and issubclass(found, base):
            return found
    modeling_auto = _module("transformers.models.auto.modeling_auto")
    composite = model_config.text_part(document) is not document  # its causal class would want the text part alone
    first = ("IMAGE_TEXT_TO_TEXT", "CAUSAL_LM") if composite else ("CAUSAL_LM", "IMAGE_TEXT_TO_TEXT")
    for mapping in (*first, "SEQ_TO_SEQ_CAUSAL_LM", "MASKED_LM"):
        table_of = getattr(modeling_auto, "MODEL_FOR_{}_MAPPING".format(mapping), {})
        if type(config) in table_of:
            return table_of[type(config)]
    return modeling_auto.MODEL_MAPPING.get(type(config), None)


def _answers(transformers: Any, kind_of_model: Any, kind: Any, document: dict[str, Any]) -> dict[str, Any]:
    modeling_utils = _module("transformers.modeling_utils")
    _load_no_kernel(modeling_utils)
    offered = _offered(modeling_utils)
    for smaller in (shrunk(_plain(document)), _plain(document)):
        found = {}
        for name in ASKED:
            if offered and name not in offered:
                found[name] = "not installed: transformers {} does not offer {}".format(transformers.__version__, name)
                continue
            found[name] = _try(kind_of_model, kind.from_dict(smaller), name)
        if not found["eager"].startswith("error: "):
            return known(found)
    return unreadable("the model cannot be built: " + found["eager"][len("error: ") :])


def _offered(modeling_utils: Any) -> list[str]:
    functions: Any = getattr(modeling_utils, "ALL_ATTENTION_FUNCTIONS", None)
    return ["eager", *functions.valid_keys()] if hasattr(functions, "valid_keys") else []


def _load_no_kernel(modeling_utils: Any) -> None:
    """Keep transformers from importing flash-attn or fetching a Hub kernel: only its own answer is wanted."""

    def refuse(name: str, *_: object, **__: object) -> None:
        if "/" in str(name):
            raise ImportError("needs the Hub kernel {}, which is not installed".format(name))

    for name in ("lazy_import_flash_attention", "load_and_register_attn_kernel", "load_and_register_kernel"):
        if hasattr(modeling_utils, name):
            setattr(modeling_utils, name, refuse)
    if hasattr(modeling_utils, "is_kernels_available"):
        modeling_utils.is_kernels_available = lambda *_, **__: False


def _try(kind_of_model: Any, config: Any, name: str) -> str:
    torch = _module("torch")
    try:
        with torch.device("meta"):
            model = kind_of_model._from_config(config, attn_implementation=name)
    except Exception as error:
        return reason_of(error)
    really = getattr(model.config, "_attn_implementation", name)
    return "" if really == name else "refused: transformers turns it into {}".format(really)


def reason_of(error: Exception) -> str:
    """Return why transformers did not build the model, with the kind of reason first."""
    message = " ".join(str(error).split())
    message = message if len(message) <= 300 else message[:299] + "…"
    if any(sign in message for sign in _UNUSABLE):
        return "not installed: " + message
    if isinstance(error, ValueError) and any(sign in message for sign in _REFUSALS):
        return "refused: " + message
    if isinstance(error, ImportError):
        return "not installed: " + message
    return "error: " + failure(error)


def shrunk(document: dict[str, Any], layers: int = 2) -> dict[str, Any]:
    """Return `document` with few layers, experts and tokens: the answer hangs on the class, not on the size."""
    small: dict[str, Any] = {}
    counts = {document.get(name) for name in ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth")}
    counts = {count for count in counts if type(count) is int and count > layers}
    for key, item in document.items():
        per_layer = isinstance(item, (list, str)) and len(item) in counts and ("layer" in key or "pattern" in key)
        if isinstance(item, dict):
            small[key] = shrunk(item, layers)
        elif type(item) is int and item in counts and ("layer" in key or key == "depth"):
            small[key] = layers
        elif per_layer:
            small[key] = item[:layers]
        elif type(item) is int and item > 8 and key in _EXPERTS:
            small[key] = 8
        else:
            small[key] = item
    return small
