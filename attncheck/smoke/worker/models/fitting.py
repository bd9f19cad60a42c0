"""Keeps a configuration consistent while it is scaled down: dependent sizes, and the class's own requirements."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

# A multiple of the hidden size, in xlstm, rwkv and zamba, opt, qwen4_exp.
WIDTH_FIELDS = ("embedding_dim", "attention_hidden_size", "word_embed_proj_dim", "ple_embed_dim")
# Heads of a state space, their size, their groups, and heads × size as a multiple of the hidden size: in mamba2, in
# bamba and granitemoehybrid, in zamba2, in nemotron_h.
STATE_SPACE_FIELDS = (
    ("num_heads", "head_dim", "n_groups", "expand"),
    ("mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_expand"),
    ("n_mamba_heads", "mamba_headdim", "mamba_ngroups", "mamba_expand"),
    ("mamba_num_heads", "mamba_head_dim", "n_groups", "expand"),
)
STATE_SPACE_WIDTH = "mamba_d_ssm"  # falcon_h1's own field, instead of a multiple
MAX_ERROR_LENGTH = 300  # characters of an error's text
TOWER_FIELDS = ("vision_config", "audio_config")

# A correction that may satisfy a class: it sets fields, and returns their old values.
Correction = Callable[[], dict[str, Any]]


def set_number(config: Any, name: str, value: Any, even_if_absent: bool = False) -> None:
    """Set a field of a configuration if it already holds a number, or always with `even_if_absent`."""
    if even_if_absent or isinstance(getattr(config, name, None), (int, float)):
        setattr(config, name, value)


def set_fields(config: Any, fields: dict[str, Any]) -> dict[str, Any]:
    """Set fields of a configuration, and return their old values."""
    former = {name: getattr(config, name) for name in fields}
    for name, value in fields.items():
        setattr(config, name, value)
    return former


def iter_parts(config: Any) -> Iterator[Any]:
    """Yield a decoder's configuration and its parts: dbrx's attention and experts have their own.

    Towers are not included, which the model GIT has in its decoder.
    """
    yield config
    for name, value in vars(config).items():
        if hasattr(value, "to_dict") and name not in TOWER_FIELDS:
            yield value


def set_hidden_size(config: Any, size: int) -> dict[str, Any]:
    """Set a decoder's hidden size and the fields that follow from it; return their old values."""
    former = config.hidden_size
    fields: dict[str, Any] = {"hidden_size": size}
    for name in WIDTH_FIELDS:
        width = getattr(config, name, None)
        if isinstance(width, int) and width and width % former == 0:
            fields[name] = width // former * size
    for names in STATE_SPACE_FIELDS:
        heads, head_dim, groups, expand = (_read_number(config, name) for name in names)
        own_width = _read_number(config, STATE_SPACE_WIDTH)
        if heads and head_dim and heads * head_dim == own_width:
            fields[STATE_SPACE_WIDTH] = min(own_width, expand * size)
            fields |= _fit_state_space(names, fields[STATE_SPACE_WIDTH], heads, head_dim, groups)
        elif heads and head_dim and heads * head_dim == expand * former:
            fields |= _fit_state_space(names, expand * size, heads, head_dim, groups)
    for part in list(iter_parts(config))[1:]:
        if getattr(part, "hidden_size", None) == former:
            part.hidden_size = size
    return set_fields(config, fields)


def _read_number(config: Any, name: str) -> int:
    value = getattr(config, name, None)
    return value if isinstance(value, int) else 0


def _fit_state_space(names: Sequence[str], width: int, heads: int, head_dim: int, groups: int) -> dict[str, Any]:
    """Return the fields of a state space with this width: fewer heads of the same size, otherwise smaller ones."""
    if width % head_dim == 0:
        heads = width // head_dim
    else:
        heads = next(count for count in range(min(heads, width), 0, -1) if width % count == 0)
        head_dim = width // heads
    fields: dict[str, Any] = {names[0]: heads, names[1]: head_dim}
    if groups:
        fields[names[2]] = next(count for count in range(min(groups, heads), 0, -1) if heads % count == 0)
    return fields


def fit_validators(configs: Sequence[Any], decoder: Any, corrections: Sequence[Correction]) -> None:
    """Try each fix of the decoder while the configurations' own classes refuse them; keep those that help.

    transformers 5 validates them when a model is saved and read; earlier releases have no such check.
    """
    complaint = find_complaint(configs)
    for correct in corrections:
        if not complaint:
            return
        former = correct()
        remaining = find_complaint(configs)
        if remaining == complaint:
            set_fields(decoder, former)
        complaint = remaining


def find_complaint(configs: Sequence[Any]) -> str:
    """Return why a class refuses its configuration, "" if none does."""
    for config in configs:
        if callable(getattr(config, "validate", None)):
            try:
                config.validate()
            except Exception as error:  # the class decides the type of the exception
                return describe_error(error)
    return ""


def describe_error(error: BaseException) -> str:
    """Return an error's text in one line; for a validator's error, that of the original exception."""
    cause = error.__cause__ or error
    return f"{type(cause).__name__}: {' '.join(str(cause).split())}"[:MAX_ERROR_LENGTH]
