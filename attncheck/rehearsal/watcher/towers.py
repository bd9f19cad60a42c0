"""Makes small models for the other models that a script names: towers of images or sound, and adapters.

Sources: transformers 5.17.0 models/auto/configuration_auto.py (`CONFIG_MAPPING_NAMES`), modeling_auto.py; peft 0.21.2
peft_model.py (`PeftModel.from_pretrained`, `load_adapter`), auto.py, config.py (`PeftConfigMixin.from_pretrained`).
"""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import json
import os
import re
import sys
import tempfile
from typing import Any

from .absent import is_script, note
from .modules import is_foreign

SIZES = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "projection_dim": 64,
    "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128, "decoder_ffn_dim": 128,
}  # fmt: skip
OWN_SIZES = {
    **dict.fromkeys(("n_embd", "embed_dim", "dim", "hidden_dim"), 64),
    **dict.fromkeys(("n_layer", "n_layers", "num_layers", "depth"), 2),
    **dict.fromkeys(("n_head", "n_heads", "num_heads", "n_kv_head", "n_kv_heads", "num_kv_heads"), 4),
    "num_key_value_heads": 2,
    **dict.fromkeys(("n_inner", "d_ff", "ffn_dim", "ffn_hidden_size", "mlp_hidden_size"), 128),
    **SIZES,
}  # of a script's own classes, too
PARTS = ("vision_config", "text_config", "audio_config")
OF_A_TOWER = ("patch_size", "num_mel_bins", "vision_config")
LANGUAGE_MODELS = ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES")
AUTO_MAPPING = {"parent_library": "transformers", "base_model_class": "AutoModelForCausalLM"}  # of a model to adapt
CONFIGURATIONS = "transformers.configuration_utils"  # of classes that derive from no model's configuration
LARGE = 256  # the width of a model that is cut
SHORT = 4  # letters: a type with fewer may be part of any word


def find_tower(name: str) -> str:
    """Return the folder of a small model of the type that a model's name has, "" if it is no tower's."""
    kind = _find_kind(os.path.basename(str(name).rstrip("/")).lower())
    folder = os.path.join(os.environ.get("ATTNCHECK_FOLDER", ""), "models")
    path = os.path.join(folder, kind)
    if not kind or not os.path.isabs(path):
        return ""
    if not os.path.isdir(path):
        os.makedirs(folder, exist_ok=True)
        made = tempfile.mkdtemp(dir=folder)
        try:
            _save_tower(kind, made)
            os.rename(made, path)
        except Exception:  # another rank was first, or the type needs another package or other sizes
            return path if os.path.isdir(path) else ""
        note(os.environ["ATTNCHECK_WATCH"], "tower", f"{os.path.basename(name)} {kind}")
    return path


@functools.cache
def _find_kind(base: str) -> str:
    """Return the longest type of a tower in a name that has no language model's type."""
    import transformers
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES  # type: ignore[attr-defined]

    spoken = {kind for mapping in LANGUAGE_MODELS for kind in getattr(modeling_auto, mapping, {})}
    spoken -= getattr(modeling_auto, "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES", {}).keys()  # whisper is both
    kinds = [kind for kind in CONFIG_MAPPING_NAMES if len(kind) >= SHORT]
    named = [kind for kind in kinds if re.search(rf"(?<![a-z]){'[-_.]?'.join(re.split('[_-]', kind))}(?![a-z])", base)]
    kind = max(named, key=len, default="") if spoken.isdisjoint(named) else ""
    try:
        config = transformers.CONFIG_MAPPING[kind]() if kind else None
    except Exception:  # of an encoder and a decoder, which a name does not say
        return ""
    return kind if any(hasattr(config, field) for field in OF_A_TOWER) else ""


def _save_tower(kind: str, folder: str) -> None:
    """Save a small model of a type, and its image processor if there is one."""
    import transformers
    from transformers.models.auto.feature_extraction_auto import FEATURE_EXTRACTOR_MAPPING
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING

    config = transformers.CONFIG_MAPPING[kind]()
    cut_sizes(config, SIZES)
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    classes: Any = IMAGE_PROCESSOR_MAPPING.get(type(config), ()) or FEATURE_EXTRACTOR_MAPPING.get(type(config), ())
    classes = tuple(classes.values()) if isinstance(classes, dict) else classes
    for processor in [made for made in (classes if isinstance(classes, tuple) else (classes,)) if made is not None][:1]:
        processor().save_pretrained(folder)


def cut_sizes(config: Any, sizes: dict[str, int]) -> str:
    """Reduce sizes in a configuration and its parts; return the names of those that were larger."""
    parts = (config, *filter(None, (getattr(config, name, None) for name in PARTS)))
    held = [(part, name, getattr(part, name)) for part in parts for name in sizes if hasattr(part, name)]
    larger = [(part, name) for part, name, own in held if isinstance(own, int) and own > sizes[name]]
    for part, name in larger:
        setattr(part, name, sizes[name])
    return ",".join(name for _, name in larger)


def note_kind(module: Any) -> None:
    """Note the type of model whose configuration a script reads from the small model, if that is of another type.

    A script's class may derive from a type's. transformers 5.17.0 configuration_utils.py: `from_pretrained` and
    `AutoConfig` end in `from_dict`, with the model's own dictionary.
    """
    base = module.PretrainedConfig
    original = base.from_dict.__func__

    @functools.wraps(original)
    def from_dict(cls: Any, config_dict: Any, *arguments: Any, **options: Any) -> Any:
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES  # type: ignore[attr-defined]

        kinds = [own for kind in cls.__mro__ if (own := getattr(kind, "model_type", "")) in CONFIG_MAPPING_NAMES]
        given = config_dict.get("model_type")
        if kinds and given == _read_small_type() and given not in kinds:
            note(os.environ["ATTNCHECK_WATCH"], "kind", kinds[0])
        return original(cls, config_dict, *arguments, **options)

    base.from_dict = classmethod(from_dict)


@functools.cache
def _read_small_type() -> str:
    """Return the type of the small model."""
    with open(os.path.join(os.environ["ATTNCHECK_MODEL"], "config.json")) as stream:
        return str(json.load(stream)["model_type"])


def build_own(cls: Any, name: Any, options: dict[str, Any]) -> Any:
    """Return a small new model of a script's own class, None if it takes the sizes of the small model in a folder."""
    kind = getattr(cls, "config_class", None)
    if kind is None or name is None or kind.__base__.__module__ != CONFIGURATIONS or not is_foreign(cls.forward):
        return None
    given, config = kind.get_config_dict(name)[0], options.get("config") or kind.from_pretrained(name)
    sizes = {key: size for key, size in OWN_SIZES.items() if key not in given}
    if given.get("model_type") == kind.model_type or not (cut := cut_sizes(config, sizes)):
        return None
    note(os.environ["ATTNCHECK_WATCH"], "sizes", f"{cls.__name__} {cut}")
    kept = ("dtype", "torch_dtype", "attn_implementation")
    given = {key: options[key] for key in kept if options.get(key) not in (None, "auto")}
    return cls._from_config(config, **given).eval()  # as `from_pretrained` returns it


def cut_large(model: Any, config: Any = None) -> None:
    """Cut the sizes of a large model that a script builds from its own configuration, and note them.

    A part of a small model may be as wide as its type's.
    """
    is_large = (getattr(config, "hidden_size", 0) or 0) > LARGE
    if is_large and "ATTNCHECK_MAX_WEIGHTS" not in os.environ and is_built(model):
        note(os.environ["ATTNCHECK_WATCH"], "sizes", f"{type(model).__name__} {cut_sizes(config, OWN_SIZES)}")


def is_built(model: Any) -> bool:
    """Return whether a script itself calls the class of a model that is being made: `GPT2LMHeadModel(config)`."""
    frame: Any = sys._getframe(1)
    inits = 0
    while frame is not None:
        is_init = frame.f_code.co_name == "__init__" and frame.f_locals.get("self") is model
        if inits and not is_init:  # the class's caller
            return is_script(frame.f_globals)
        frame, inits = frame.f_back, inits + is_init
    return False


def make_adapters(peft_model: Any) -> None:
    """Let a script load adapters that are not here, or of a large model: it gets new ones, which change nothing at
    first."""

    def is_small(name: Any) -> bool:
        """Return whether a folder has an adapter that the launch itself wrote, or the model is the user's own."""
        file, rows = os.path.join(str(name), "adapter_config.json"), os.environ["ATTNCHECK_ROWS"]
        is_here = os.path.isfile(file)
        return is_here and ("ATTNCHECK_MAX_WEIGHTS" in os.environ or os.path.getmtime(file) > os.path.getmtime(rows))

    def make_configuration(name: str) -> Any:
        if os.path.isdir(str(name)):
            note(os.environ["ATTNCHECK_WATCH"], "shrunk", os.path.basename(str(name).rstrip("/")))
            return read(importlib.import_module("peft").PeftConfig, name)
        note(os.environ["ATTNCHECK_WATCH"], "adapter", os.path.basename(str(name).rstrip("/")))
        model = os.environ["ATTNCHECK_MODEL"]  # which scripts load by the adapter's configuration
        return importlib.import_module("peft").LoraConfig(
            r=4, target_modules="all-linear", base_model_name_or_path=model, auto_mapping=AUTO_MAPPING
        )

    load, read = peft_model.PeftModel.from_pretrained.__func__, peft_model.PeftConfig.from_pretrained.__func__
    load_more = peft_model.PeftModel.load_adapter

    @functools.wraps(load)
    def from_pretrained(cls: Any, model: Any, model_id: Any, *arguments: Any, **options: Any) -> Any:
        if is_small(model_id):
            return load(cls, model, model_id, *arguments, **options)
        given = inspect.signature(load).bind(cls, model, model_id, *arguments, **options).arguments
        config = make_configuration(model_id)
        config = given.get("config") or config
        config.inference_mode = not given.get("is_trainable")
        name = given.get("adapter_name", "default")
        return importlib.import_module("peft").get_peft_model(model, config, adapter_name=name)

    @functools.wraps(read)
    def read_configuration(cls: Any, name: Any, *arguments: Any, **options: Any) -> Any:
        return read(cls, name, *arguments, **options) if os.path.isdir(name) else make_configuration(name)

    @functools.wraps(load_more)
    def load_adapter(self: Any, model_id: Any, adapter_name: str, *arguments: Any, **options: Any) -> Any:
        if is_small(model_id):
            return load_more(self, model_id, adapter_name, *arguments, **options)
        made = make_configuration(model_id)  # if it is the first; peft 0.12.0 finds "all-linear" inside adapters too
        config = copy.deepcopy(next(iter(self.peft_config.values()), made))
        config.inference_mode = not (arguments[0] if arguments else options.get("is_trainable"))
        if adapter_name not in self.peft_config:
            self.add_adapter(adapter_name, config)
        return None

    peft_model.PeftModel.load_adapter = load_adapter
    peft_model.PeftModel.from_pretrained = classmethod(from_pretrained)
    peft_model.PeftConfig.from_pretrained = classmethod(read_configuration)
