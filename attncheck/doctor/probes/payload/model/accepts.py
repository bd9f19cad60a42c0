"""The installed transformers' view of a model: its resolved configuration, and the attention it accepts.

Runs in its own child, because it imports torch and transformers. transformers' own class builds a shrunken model on the
meta device. No weights, remote code or attention kernel is loaded, and the network is not used.

Read in transformers 4.57.3, 5.17.0 and 5.23.0, `modeling_utils.py`: `_check_and_adjust_attn_implementation` (a missing
flash-attn is replaced by a Hub kernel; `_compatible_flash_implementations` redirects), `_flash_attn_can_dispatch`
(`ValueError` "… does not support Flash Attention" if the class refuses, `ImportError` if the package is missing),
`_sdpa_can_dispatch`, `_flex_attn_can_dispatch`.
"""

from __future__ import annotations

from typing import Any

from ..facts import describe_error, known, unreadable
from . import config as model_config
from .values import as_object, as_str_list, known_value, read_str

IMPLEMENTATIONS = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flash_attention_4", "flex_attention")
_EXPERT_COUNT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts")
_REFUSAL_MESSAGES = ("does not support", "is not compatible", "only supports", "only compatible")
_NOT_INSTALLED_MESSAGES = ("toggled on", "not installed", "requires the following", "kernel", "Kernel", "torch>=")


def query_attention_support(source: Any, documents: dict[str, str] | None = None) -> dict[str, Any]:
    """Return {"accepts": fact, "resolved": the configuration completed by the installed class}, and build facts.

    "embedding_rows" is the number of rows of the class's input embedding. "build_failure" says why it cannot be built,
    and "mask_calls" how the class's file makes its masks.

    `source` is a parsed config.json or an argument for `config.collect_model`. The fact maps each attn_implementation
    to "" (accepted) or a text that starts with "refused: " (the class), "not installed: " (a package or device is
    missing here) or "error: " (anything else).
    """
    try:
        document = known(source) if isinstance(source, dict) else model_config.read_config(source, documents)
        if "known" not in document:
            return {"accepts": unreadable("the model's config.json was not read"), "resolved": {}}
        return _query_transformers(as_object(document["known"]))
    except Exception as error:  # transformers may raise any exception for an unsupported configuration
        return {"accepts": unreadable("querying transformers failed: " + describe_error(error)), "resolved": {}}


def merge_resolved(answer: dict[str, Any], model: dict[str, Any]) -> dict[str, Any]:
    """Return `model`, derived from config.json, corrected by the answer of `query_attention_support`.

    A fact that the resolved configuration leaves open keeps its first value, unless the value there is null: then the
    class states that the model lacks that feature.
    """
    merged = dict(model)
    for name in ("accepts", "embedding_rows", "build_failure", "mask_calls"):
        if name in answer:
            merged[name] = answer[name]
    resolved = as_object(answer.get("resolved"))
    if not resolved:
        return merged
    derived = model_config.derive_model(resolved, complete=True)
    for name in ("num_layers", "num_heads", "num_kv_heads", "head_dim", "v_head_dim", "attention_dropout"):
        _overlay_known(merged, derived, name)
    for name in ("max_position_embeddings", "dtype", "use_cache"):
        _overlay_known(merged, derived, name)
    for name in ("sliding_window", "attention_chunk_size", "softcap"):
        if "unreadable" not in derived[name]:
            merged[name] = derived[name]
    for name in ("layer_types", "head_dims", "towers"):
        merged[name] = derived[name] or model[name]
    for name in ("sinks", "alibi", "mrope", "causal"):
        merged[name] = derived[name]
    return merged


def _overlay_known(merged: dict[str, Any], derived: dict[str, Any], name: str) -> None:
    if "known" in derived[name]:
        merged[name] = derived[name]


def _query_transformers(document: dict[str, Any]) -> dict[str, Any]:
    import os

    os.environ["HF_HUB_OFFLINE"] = "1"  # before the import, because it is read only once
    os.environ["TRANSFORMERS_OFFLINE"] = "1"
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    import warnings

    warnings.simplefilter("ignore")
    transformers = _import_module("transformers")
    model_type = known_value(read_str(document, "model_type"), "")
    try:
        config_class = transformers.CONFIG_MAPPING[model_type]
    except KeyError:
        return {
            "accepts": unreadable(_unknown_model_reason(transformers.__version__, model_type, document)),
            "resolved": {},
        }
    try:
        config = config_class.from_dict(_strip_document(document))
    except Exception as error:
        failure = _find_cause(error, transformers, config_class, document)
        reason = "the configuration is refused: " + failure["error"]
        return {"accepts": unreadable(reason), "resolved": {}, "build_failure": known(failure)}
    resolved = _resolved_document(config)
    model_class = _find_model_class(transformers, document, config)
    if model_class is None:
        return {"accepts": unreadable("transformers has no model class for " + model_type), "resolved": resolved}
    answer = {"accepts": _try_implementations(transformers, model_class, config_class, document), "resolved": resolved}
    answer.update(_build_once(transformers, model_class, config_class, document))
    answer["mask_calls"] = _read_mask_calls(model_class)
    return answer


def _read_mask_calls(model_class: Any) -> dict[str, Any]:
    """Return how the class's file makes its masks, as a fact."""
    import inspect

    from .mask_calls import find_mask_calls

    try:
        with open(inspect.getfile(model_class), encoding="utf-8") as file:
            return known(find_mask_calls(file.read()))
    except (OSError, SyntaxError, TypeError) as error:
        return unreadable("the class's file was not read: " + describe_error(error))


def _build_once(transformers: Any, model_class: Any, config_class: Any, document: dict[str, Any]) -> dict[str, Any]:
    """Return the rows of the class's input embedding, or why the class cannot be built."""
    failed_with: Exception | None = None
    for variant in (shrink_config(_strip_document(document)), _strip_document(document)):
        try:
            model = _build_on_meta(model_class, config_class.from_dict(variant), "eager")
        except Exception as error:
            failed_with = error
            continue
        rows = getattr(model.get_input_embeddings(), "num_embeddings", None)
        return {"embedding_rows": known(rows)} if type(rows) is int else {}
    if failed_with is None or isinstance(failed_with, ImportError):
        return {}  # the class itself requires a missing package
    return {"build_failure": known(_find_cause(failed_with, transformers, config_class, document))}


def _find_cause(error: Exception, transformers: Any, config_class: Any, document: dict[str, Any]) -> dict[str, Any]:
    from . import build_failure

    def build(candidate: dict[str, Any]) -> None:
        config = config_class.from_dict(_strip_document(candidate))
        _build_on_meta(_find_model_class(transformers, candidate, config), config, "eager")

    def shrink_and_build(candidate: dict[str, Any]) -> None:
        build(shrink_config(candidate))

    try:
        shrink_and_build(document)
    except Exception:
        return build_failure.describe_build_failure(error, document, shrink_and_build)
    return build_failure.describe_build_failure(error, document, build)


def _import_module(name: str) -> Any:
    import importlib

    return importlib.import_module(name)


def _unknown_model_reason(version: str, model_type: str, document: dict[str, Any]) -> str:
    if as_object(document.get("auto_map")):
        return "the model brings its own code, which attncheck never runs"
    if not model_type:
        return "config.json names no model_type"
    return "transformers {} does not know model_type '{}'".format(version, model_type)


def _strip_document(document: dict[str, Any]) -> dict[str, Any]:
    """Return `document` without the keys that would request remote code, kernels or quantisation packages."""
    dropped = (
        "auto_map",
        "quantization_config",
        "attn_implementation",
        "_attn_implementation",
        "experts_implementation",
    )
    return {
        key: _strip_document(item) if isinstance(item, dict) else item
        for key, item in document.items()
        if key not in dropped
    }


def _resolved_document(config: Any) -> dict[str, Any]:
    import json

    document = as_object(json.loads(config.to_json_string(use_diff=False)))
    return _drop_long_values(document)


def _drop_long_values(document: dict[str, Any]) -> dict[str, Any]:
    dropped = ("id2label", "label2id", "task_specific_params", "bad_words_ids")
    short: dict[str, Any] = {}
    for key, item in document.items():
        if isinstance(item, dict):
            if key not in dropped:
                short[key] = _drop_long_values(item)
        elif not isinstance(item, list) or len(item) <= 4096:
            short[key] = item
    return short


def _find_model_class(transformers: Any, document: dict[str, Any], config: Any) -> Any:
    base = transformers.PreTrainedModel
    for name in as_str_list(document.get("architectures"), 20):
        candidate = getattr(transformers, name, None) if name.isidentifier() else None
        if isinstance(candidate, type) and issubclass(candidate, base):
            return candidate
    modeling_auto = _import_module("transformers.models.auto.modeling_auto")
    # The causal class of a composite model would expect only the text part.
    composite = model_config.find_text_config(document) is not document
    preferred = ("IMAGE_TEXT_TO_TEXT", "CAUSAL_LM") if composite else ("CAUSAL_LM", "IMAGE_TEXT_TO_TEXT")
    for task in (*preferred, "SEQ_TO_SEQ_CAUSAL_LM", "MASKED_LM"):
        classes = getattr(modeling_auto, "MODEL_FOR_{}_MAPPING".format(task), {})
        if type(config) in classes:
            return classes[type(config)]
    return modeling_auto.MODEL_MAPPING.get(type(config), None)


def _try_implementations(
    transformers: Any, model_class: Any, config_class: Any, document: dict[str, Any]
) -> dict[str, Any]:
    modeling_utils = _import_module("transformers.modeling_utils")
    _block_kernel_loading(modeling_utils)
    offered = _offered_implementations(modeling_utils)
    for variant in (shrink_config(_strip_document(document)), _strip_document(document)):
        answers = {}
        for name in IMPLEMENTATIONS:
            if offered and name not in offered:
                answers[name] = "not installed: transformers {} does not offer {}".format(
                    transformers.__version__, name
                )
                continue
            answers[name] = _try_implementation(model_class, config_class.from_dict(variant), name)
        if not answers["eager"].startswith("error: "):
            return known(answers)
    return unreadable("the model cannot be built: " + answers["eager"][len("error: ") :])


def _offered_implementations(modeling_utils: Any) -> list[str]:
    functions: Any = getattr(modeling_utils, "ALL_ATTENTION_FUNCTIONS", None)
    return ["eager", *functions.valid_keys()] if hasattr(functions, "valid_keys") else []


def _block_kernel_loading(modeling_utils: Any) -> None:
    """Prevent transformers from importing flash-attn or fetching a Hub kernel, because only its own answer matters."""

    def refuse(name: str, *_: object, **__: object) -> None:
        if "/" in str(name):
            raise ImportError("needs the Hub kernel {}, which is not installed".format(name))

    for name in ("lazy_import_flash_attention", "load_and_register_attn_kernel", "load_and_register_kernel"):
        if hasattr(modeling_utils, name):
            setattr(modeling_utils, name, refuse)
    if hasattr(modeling_utils, "is_kernels_available"):
        modeling_utils.is_kernels_available = lambda *_, **__: False


def _try_implementation(model_class: Any, config: Any, name: str) -> str:
    try:
        model = _build_on_meta(model_class, config, name)
    except Exception as error:
        return classify_error(error)
    actual = getattr(model.config, "_attn_implementation", name)
    return "" if actual == name else "refused: transformers turns it into {}".format(actual)


def _build_on_meta(model_class: Any, config: Any, name: str) -> Any:
    torch = _import_module("torch")
    with torch.device("meta"):
        return model_class._from_config(config, attn_implementation=name)


def classify_error(error: Exception) -> str:
    """Return why transformers did not build the model, with the kind of reason first."""
    message = " ".join(str(error).split())
    message = message if len(message) <= 300 else message[:299] + "…"
    if any(phrase in message for phrase in _NOT_INSTALLED_MESSAGES):
        return "not installed: " + message
    if isinstance(error, ValueError) and any(phrase in message for phrase in _REFUSAL_MESSAGES):
        return "refused: " + message
    if isinstance(error, ImportError):
        return "not installed: " + message
    return "error: " + describe_error(error)


def shrink_config(document: dict[str, Any], layers: int = 2) -> dict[str, Any]:
    """Return `document` with few layers, experts and tokens; the answer depends on the class, not on the size."""
    shrunk: dict[str, Any] = {}
    counts = {document.get(name) for name in ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth")}
    counts = {count for count in counts if type(count) is int and count > layers}
    for key, item in document.items():
        per_layer = isinstance(item, (list, str)) and len(item) in counts and ("layer" in key or "pattern" in key)
        if isinstance(item, dict):
            shrunk[key] = shrink_config(item, layers)
        elif type(item) is int and item in counts and ("layer" in key or key == "depth"):
            shrunk[key] = layers
        elif per_layer:
            shrunk[key] = item[:layers]
        elif type(item) is int and item > 8 and key in _EXPERT_COUNT_KEYS:
            shrunk[key] = 8
        else:
            shrunk[key] = item
    return shrunk
