"""Builds a small multimodal model of the job's own class: the usual small text part, and a small vision tower.

Sizes are read from the configuration's fields, whose names the classes share; no model is listed by name. If a class
does not run with the small tower's width, the tower keeps the width of its configuration.
"""

import copy
import inspect
import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from attncheck.smoke.worker.models import build, names
from attncheck.smoke.worker.models.architectures import SHAPES, Architecture, Unbuildable
from attncheck.smoke.worker.models.fitting import describe_error, set_number
from attncheck.smoke.worker.models.shrink import (
    decoder_config,
    iter_fewer_heads,
    read_full_config,
    shrink_full_config,
)

TOWER_LAYERS = 2  # `vision_feature_layer` -2 is the one before the last
TOWER_WIDTH, TOWER_HEADS = 64, 2
OWN_BASE = 23456.0
PATCHES = 8  # per side of the largest image; 4 if it has fewer
EXTRA_TOKENS = 48  # tokens of the vocabulary for image markers, before the three special ones
OUTPUT_WIDTH_FIELDS = ("out_hidden_size", "projection_dim")  # as wide as the decoder
# The number of an image's tokens: proportional to its area.
TOKEN_COUNT_FIELDS = ("mm_tokens_per_image", "image_seq_length", "num_image_tokens")
MARKER = re.compile(r"\bconfig\.((?:image|video|vision|audio)\w*_token_id)\b")  # that a class reads
FEATURE_LAYER_FIELDS = ("vision_feature_layer", "vision_feature_layers")


def is_multimodal(source: Architecture) -> bool:
    """Return whether a configuration has a vision tower and transformers has a class for image-to-text models."""
    import transformers

    try:
        config = read_full_config(source)
    except Unbuildable:
        return False
    mapping = getattr(transformers.models.auto.modeling_auto, "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING", {})
    return type(config) in mapping and getattr(config, "vision_config", None) is not None


def find_type(name: str, classes: Collection[str] = ()) -> str:
    """Return the installed type of a language model that a model's name decides, or else its class; "" if none does."""
    import transformers
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES  # type: ignore[attr-defined]

    def has_experts(kind: str) -> bool:
        config = decoder_config(transformers.CONFIG_MAPPING[kind]())
        return any(field.startswith("n") and field.endswith("experts") for field in vars(config))

    kind = names.find_type(name, CONFIG_MAPPING_NAMES, has_experts) if name else ""
    mappings = ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES")
    known = {own for mapping in mappings for own in getattr(modeling_auto, mapping, {})}
    kinds = {kind} & known or {
        getattr(getattr(getattr(transformers, made, None), "config_class", None), "model_type", "") for made in classes
    } & known
    return kinds.pop() if len(kinds) == 1 else ""


def load_type(name: str) -> Architecture:
    """Return a type without a released model: its default configuration, and what its class needs besides.

    Qwen2-VL's default has no `mrope_section` (transformers 4.57.3 and 5.5.4), which the class reads, and releases have.
    """
    import transformers

    if SHAPES.get(name, {}).get("model_type") == name:
        return build.load_architecture(name)
    source = Architecture(name, {"model_type": name})
    if "mrope_section" not in _read_modeling(transformers.CONFIG_MAPPING[name]):
        return source
    config = read_full_config(source)
    text = decoder_config(config)
    pairs = getattr(text, "head_dim", text.hidden_size // text.num_attention_heads) // 2
    space = pairs * 3 // 8  # Qwen2-VL's parts: 16 pairs for time, 24 each for height and width
    rope = {"rope_scaling": {"rope_type": "default", "mrope_section": [pairs - 2 * space, space, space]}}
    # before transformers 4.52 there is one configuration
    return Architecture(name, {"model_type": name, **(rope if text is config else {"text_config": rope})})


def _read_modeling(config_class: type) -> str:
    """Return the source of the models of a configuration's class, "" if there is none."""
    modeling = Path(inspect.getfile(config_class).replace("configuration_", "modeling_"))
    return modeling.read_text() if modeling.exists() else ""


def change_base(source: Architecture) -> Architecture:
    """Return an architecture with a rotary base that no release has, so that one that is fixed in a script differs."""
    config = read_full_config(source)
    rope = getattr(config, "rope_parameters", None)  # transformers 5
    has_base = getattr(config, "rope_theta", None) if rope is None else rope.get("rope_theta")
    if (
        not has_base
        or (rope or {}).get("rope_type", "default") != "default"
        or getattr(config, "rope_scaling", rope) != rope
    ):
        return source
    return replace(source, document={**source.document, "rope_theta": OWN_BASE})


def has_text_class(source: Architecture) -> bool:
    """Return whether `AutoModelForCausalLM` turns a multimodal configuration, such as mllama's, into another class."""
    import transformers

    classes, config = transformers.models.auto.modeling_auto, read_full_config(source)
    text_class = classes.MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    return text_class not in (None, classes.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING[type(config)])


def check_text_class(folder: Path) -> None:
    """Raise `Unbuildable` if the text class does not load the weights of the other class, as qwen3_5's does."""
    import transformers

    load: Any = transformers.AutoModelForCausalLM.from_pretrained
    _, loading = load(folder, local_files_only=True, output_loading_info=True)
    if loading["missing_keys"] or loading["mismatched_keys"]:
        raise build.Unbuildable("its text class does not load the weights of the other class")


def build_multimodal_model(source: Architecture, implementation: str, max_tokens: int, seed: int) -> Any:
    """Return the job's class with a small tower, in float32 on the CPU, in train mode.

    Raises `Unbuildable` if no small one runs, and transformers' own error for an implementation that it refuses.
    """
    import transformers

    if source.name not in _small_configs:
        _small_configs[source.name] = _find_small_config(source, max_tokens)
    torch.manual_seed(seed)
    options = {"attn_implementation": implementation} if implementation else {}
    config = copy.deepcopy(_small_configs[source.name])
    model = transformers.AutoModelForImageTextToText.from_config(config, **options)
    _fill_zeros(model, seed)
    return build.prepare_for_training(model, torch.float32, "cpu")


def _fill_zeros(model: Any, seed: int) -> None:
    """Set zero-initialised matrices to nonzero values.

    gemma3's projection of images is one, and would hide images.
    """
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.dim() > 1 and not bool(parameter.any()):
            parameter.data.copy_(build.SHARP_STD * torch.randn(parameter.shape, generator=generator))


_small_configs: dict[str, Any] = {}  # by the model's name: the first one that runs


def _find_small_config(source: Architecture, max_tokens: int) -> Any:
    import transformers

    reason: Exception | None = None
    for config in iter_small_configs(source, max_tokens):
        try:
            model = transformers.AutoModelForImageTextToText.from_config(
                copy.deepcopy(config), attn_implementation="eager"
            )
            # some releases require token types in training, and accept only text without them
            build.run_once(model.eval())
        except Exception as error:  # the class decides the type of the exception
            reason = reason or error
            continue
        return config
    raise Unbuildable(f"smoke cannot scale {source.name} with its tower down: {describe_error(reason or Exception())}")


def iter_small_configs(source: Architecture, max_tokens: int) -> Iterator[Any]:
    """Yield the configuration scaled down with its tower: a narrow tower first, then one with the original width.

    For each, the text part first has all heads, then fewer, because its class may derive the heads' size from the
    width.
    """
    former_width = getattr(decoder_config(read_full_config(source)), "hidden_size", 0)
    for is_narrow in (True, False):
        config = shrink_full_config(source, max_tokens)
        for candidate in (copy.deepcopy(config), *iter_fewer_heads(config)):
            text = decoder_config(candidate)
            vars(text).pop("cut_from", None)
            cut_tower(candidate, is_narrow, former_width)
            set_markers(candidate, source)
            for level in (candidate, text):
                set_number(level, "initializer_range", build.SHARP_STD)
            yield candidate


def cut_tower(config: Any, is_narrow: bool, former_width: int) -> None:
    """Reduce a configuration's vision tower: its layers, the images' size, and its width if `is_narrow`.

    `former_width` is the hidden size that the text part had.
    """
    tower, text = config.vision_config, decoder_config(config)
    for name in ("depth", "num_hidden_layers", "encoder_layers", "num_layers"):
        set_number(tower, name, TOWER_LAYERS)
    for name, value in list(vars(tower).items()):
        if name.endswith(("_indexes", "_indices")) and isinstance(value, list):  # one index per layer
            setattr(tower, name, [0])
        elif name == "layer_types" and isinstance(value, list):
            setattr(tower, name, value[:TOWER_LAYERS])
    for name in FEATURE_LAYER_FIELDS:
        layers = getattr(config, name, None)
        if isinstance(layers, int):
            setattr(config, name, _fit_layer(layers))
        elif isinstance(layers, (list, tuple)):
            setattr(config, name, [_fit_layer(layer) for layer in layers])
    _cut_pictures(config, tower, text)
    if is_narrow:
        width = "embed_dim" if isinstance(getattr(tower, "embed_dim", None), int) else "hidden_size"
        set_number(tower, width, TOWER_WIDTH)
        for name in ("num_heads", "num_attention_heads"):
            set_number(tower, name, TOWER_HEADS)
        set_number(tower, "head_dim", TOWER_WIDTH // TOWER_HEADS)
        set_number(tower, "intermediate_size", 2 * TOWER_WIDTH)
        if width == "embed_dim":
            set_number(tower, "hidden_size", text.hidden_size)
    for level in (config, tower):
        for name in OUTPUT_WIDTH_FIELDS:
            set_number(level, name, text.hidden_size)
    for level in (config, *vars(config).values()):  # a connector may also have a configuration
        if level not in (tower, text) and getattr(level, "hidden_size", None) == former_width:
            level.hidden_size = text.hidden_size


def _fit_layer(layer: int) -> int:
    return layer if -TOWER_LAYERS <= layer <= TOWER_LAYERS else -1


def _cut_pictures(config: Any, tower: Any, text: Any) -> None:
    """Make the largest image PATCHES patches high and wide, with the fields that follow from its size."""
    former, patch = picture_side(tower), patch_side(tower)
    if not former or not patch:
        return
    patches = PATCHES if former >= PATCHES * patch else PATCHES // 2
    side = patches * patch
    tower.image_size = type(tower.image_size)([side, side]) if not isinstance(tower.image_size, int) else side
    for level in (config, text, tower):
        for name in TOKEN_COUNT_FIELDS:
            count = getattr(level, name, None)
            if isinstance(count, int):
                setattr(level, name, max(1, round(count * (patches / (former // patch)) ** 2)))
        set_number(level, "image_size", side) if level is config else None
    if getattr(config, "image_grid_pinpoints", None):
        config.image_grid_pinpoints = [[side, side], [side, 2 * side]]


def picture_side(tower: Any) -> int:
    """Return the height of a tower's images in pixels, 0 if it accepts any."""
    size = getattr(tower, "image_size", 0) or 0
    return int(size[0]) if isinstance(size, (list, tuple)) else int(size)


def patch_side(tower: Any) -> int:
    """Return the height of a patch in pixels, 0 if the tower has none."""
    size = getattr(tower, "patch_size", 0) or 0
    return int(size[0]) if isinstance(size, (list, tuple)) else int(size)


def set_markers(config: Any, source: Architecture) -> None:
    """Give each marker of images, video and sound its token in the small vocabulary."""
    text = decoder_config(config)
    numbers: dict[str, int] = {}
    for name in sorted({*MARKER.findall(_read_modeling(type(config)))}):
        if not hasattr(config, name):  # Qwen2-VL's class reads what only released configurations have: 4.49.0
            setattr(config, name, 0)
    first = source.vocabulary_size - 3 - EXTRA_TOKENS
    for level in (config, text, config.vision_config):
        for name in _list_marker_fields(level):
            setattr(level, name, numbers.setdefault(name, first + len(numbers)))
    set_number(config, "vocab_size", source.vocabulary_size)
    set_number(config, "pad_token_id", source.pad_token_id)


def list_markers(config: Any) -> dict[str, int]:
    """Return the number of each marker of images, video and sound in a configuration, by its field."""
    return {name: getattr(config, name) for name in _list_marker_fields(config)}


def _list_marker_fields(config: Any) -> list[str]:
    own = ("pad_token_id", "bos_token_id", "eos_token_id")
    endings = ("_token_id", "_token_index", "_start_id", "_end_id", "_newline_id")
    return [
        name
        for name, value in vars(config).items()
        if name.endswith(endings) and isinstance(value, int) and name not in own
    ]


def image_token(config: Any) -> int:
    """Return the token that an image's features replace. Raises `Unbuildable` if the configuration has none."""
    for name in ("image_token_id", "image_token_index"):
        token = getattr(config, name, None)
        if isinstance(token, int):
            return token
    raise Unbuildable(f"{type(config).__name__} names no token that an image's features replace")
