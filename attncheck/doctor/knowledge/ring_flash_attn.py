"""ring-flash-attn's Hugging Face adapter, and the transformers that it works with.

Source: the wheels of ring_flash_attn 0.1.0 to 0.1.8 (`ring_flash_attn/adapters/hf_adapter.py`: its imports, and the
number of parameters of its replacements of `_flash_attention_forward`) and of 45 transformers releases from 4.42.4 to
5.23.0 (`transformers/modeling_flash_attention_utils.py`), read as syntax trees on 2026-11-21.
"""

from packaging.version import Version

LAST_RELEASE_READ = "0.1.8"  # the newest release that was read
FORWARD_FUNCTION = "transformers.modeling_flash_attention_utils:_flash_attention_forward"
MOVED_SYMBOL = "is_flash_attn_greater_or_equal_2_10"

# First ring-flash-attn version -> parameter counts of `_flash_attention_forward` that it has a replacement for.
ACCEPTED_PARAMETER_COUNTS: dict[str, frozenset[int]] = {
    "0.1.0": frozenset({13}),
    "0.1.4": frozenset({13, 18, 19}),
    "0.1.6": frozenset({13, 18, 19, 20}),
}
# First transformers version -> number of parameters of `_flash_attention_forward` (the module is new in 4.43.0).
FORWARD_PARAMETER_COUNTS: dict[str, int] = {
    "4.43.0": 12,
    "4.44.0": 13,
    "4.47.0": 18,
    "4.48.0": 19,
    "4.53.0": 20,
    "5.19.0": 23,
}
# First ring-flash-attn version -> the name it imports from transformers, and the releases that have it.
IMPORTED_NAMES: dict[str, tuple[str, str]] = {
    "0.1.0": ("_flash_supports_window_size", ">=4.43,<4.54"),
    "0.1.7": ("_flash_supports_window", ">=4.43,<4.55.1"),  # or _flash_supports_window_size, which it tries second
    "0.1.8": (MOVED_SYMBOL, ">=4.51,<5.4"),
}
# First ring-flash-attn version -> transformers that it can import and has a replacement for.
COMPATIBLE_TRANSFORMERS: dict[str, str] = {
    "0.1.0": ">=4.44,<4.47",
    "0.1.4": ">=4.44,<4.53",
    "0.1.6": ">=4.44,<4.54",
    "0.1.7": ">=4.44,<4.55.1",
    "0.1.8": ">=4.51,<5.4",
}
# transformers with which 0.1.8 works if the symbol, now in transformers.utils, is restored in its old module.
COMPATIBLE_WITH_SHIM = ">=5.5,<5.19"
WITHOUT_SYMBOL = ">=5.4,<5.5"  # the symbol is in neither module
SHIM_CODE = f"""import transformers.modeling_flash_attention_utils as flash
from transformers.utils import {MOVED_SYMBOL}
flash.{MOVED_SYMBOL} = {MOVED_SYMBOL}  # before `import ring_flash_attn`"""


def accepted_parameter_counts(ring: Version) -> frozenset[int]:
    """Return the parameter counts that `ring` has a replacement for; empty for a release older than the table."""
    return next(
        (counts for since, counts in reversed(ACCEPTED_PARAMETER_COUNTS.items()) if ring >= Version(since)), frozenset()
    )


def forward_parameter_count(transformers: Version) -> int | None:
    """Return how many parameters `_flash_attention_forward` has in `transformers`; None before it existed."""
    return next(
        (count for since, count in reversed(FORWARD_PARAMETER_COUNTS.items()) if transformers >= Version(since)), None
    )


def imported_name(ring: Version) -> tuple[str, str]:
    """Return the name that `ring` imports from transformers and the releases of transformers that have it."""
    return next(row for since, row in reversed(IMPORTED_NAMES.items()) if since == "0.1.0" or ring >= Version(since))


def compatible_transformers(ring: Version) -> str:
    """Return the transformers releases that the unmodified `ring` works with."""
    return next(
        row for since, row in reversed(COMPATIBLE_TRANSFORMERS.items()) if since == "0.1.0" or ring >= Version(since)
    )


def is_known_release(ring: Version) -> bool:
    """Return whether `ring` is a release that the tables cover."""
    return Version("0.1.0") <= ring <= Version(LAST_RELEASE_READ)
