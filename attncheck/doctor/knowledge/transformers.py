"""Changes in transformers that the rest of the attention stack depends on.

Source: the wheels of the releases named (`transformers/utils/import_utils.py`, `dependency_versions_table.py`,
`modeling_flash_attention_utils.py`, `modeling_utils.py`), read on 2026-11-21; the list holds the releases on PyPI on
that day.
"""

from functools import cache

from packaging.specifiers import SpecifierSet
from packaging.version import Version

LAST_RELEASE_READ = "5.23.0"  # the newest release that was read

# Releases since 4.43, oldest first.
RELEASES = """
    4.43.0 4.43.1 4.43.2 4.43.3 4.43.4 4.44.0 4.44.1 4.44.2 4.45.0 4.45.1 4.45.2 4.46.1 4.46.2 4.46.3 4.47.0 4.47.1
    4.48.0 4.48.1 4.48.2 4.48.3 4.49.0 4.50.0 4.50.1 4.50.2 4.50.3 4.51.0 4.51.1 4.51.2 4.51.3 4.52.1 4.52.2 4.52.3
    4.52.4 4.53.0 4.53.1 4.53.2 4.53.3 4.54.0 4.54.1 4.55.0 4.55.1 4.55.2 4.55.3 4.55.4 4.56.0 4.56.1 4.56.2 4.57.1
    4.57.2 4.57.3 4.57.4 4.57.5 4.57.6 5.0.0 5.1.0 5.2.0 5.3.0 5.4.0 5.5.0 5.5.1 5.5.2 5.5.3 5.5.4 5.6.0 5.6.1 5.6.2
    5.7.0 5.8.0 5.8.1 5.9.0 5.10.1 5.10.2 5.10.4 5.11.0 5.12.0 5.12.1 5.13.0 5.13.1 5.14.0 5.14.1 5.15.0 5.15.1 5.16.0
    5.16.1 5.17.0 5.18.0 5.19.0 5.20.0 5.20.1 5.20.2 5.21.0 5.21.1 5.22.0 5.22.1 5.22.2 5.23.0
"""

# First transformers version -> oldest torch. With an older torch it warns "Disabling PyTorch because PyTorch >= X is
# required" at import and offers no model (import_utils.py, is_torch_available).
MINIMUM_TORCH: dict[str, str] = {"4.52": "2.1", "5.0": "2.2", "5.1": "2.4", "5.15": "2.5", "5.20": "2.6"}

# Values of an environment variable, in capitals, that transformers and huggingface_hub treat as true.
TRUE_VALUES = ("1", "ON", "YES", "TRUE")

# attn_implementation -> the one distribution that it loads; kernels from the Hub have none: 5.17.0,
# modeling_flash_attention_utils.py `_lazy_imports`
FLASH_DISTRIBUTIONS = {
    "flash_attention_2": "flash-attn",
    "flash_attention_3": "flash-attn-3",
    "flash_attention_4": "flash-attn-4",
}

# First transformers version -> the `kernels` it is written for (dependency_versions_table.py).
COMPATIBLE_KERNELS: dict[str, str] = {
    "4.50": ">=0.3.2,<0.4",
    "4.52": ">=0.4.4,<0.5",
    "4.53": ">=0.6.1,<0.7",
    "4.55": ">=0.6.1,<=0.9",
    "5.0": ">=0.10.2,<0.11",
    "5.4": ">=0.12.0,<0.13",
    "5.13": ">=0.15.2,<0.16",
    "5.15": ">=0.16.0,<0.17",
    "5.18": ">=0.17.0,<0.18",
    "5.20": ">=0.17.2,<0.18",
    "5.23": ">=0.18.2,<0.19",
}

# These transformers check no upper bound and import any `kernels`. Since the first version of `kernels` the names do
# not match, and the Hub's kernels are off although is_kernels_available() returns True. Since the second, importing
# transformers.modeling_utils raises "Either a revision or a version must be specified". Tried on 2026-11-21 with
# transformers 5.0.0, 5.3.0, 5.4.0, 5.12.0 and kernels 0.9.1 to 0.17.2.
KERNELS_UNGUARDED = ">=5.0,<5.13"
FIRST_KERNELS_NOT_USED = "0.14"
FIRST_KERNELS_BREAKING_IMPORT = "0.17"
KERNELS_ERROR = "Either a revision or a version must be specified"

# The Trainer of these passes `gradient_accumulation_steps` to accelerate (trainer.py, `grad_acc_kwargs["num_steps"]`).
# accelerate's `backward` then divides the loss by it again: wheels 4.45.2 to 5.24.0, read on 2026-11-26.
DIVIDES_GRADIENTS_TWICE = ">=5.2,<5.5.4"

# 5.1.0 unpacks one value as two when it loads a checkpoint and converts its weights under ZeRO-3
# (integrations/deepspeed.py, `realized_value, _ = mapping.convert(`). trl 1.2.0 excludes it in its extra "deepspeed".
FITS_DEEPSPEED = "!=5.1.0"

# First trl version -> the transformers that it imports from, which its metadata does not state. Until 0.7.11, core.py
# imports top_k_top_p_filtering: 4.38.2 has it, 4.39.0 does not (wheels, read on 2026-11-27).
TRANSFORMERS_BY_TRL: dict[str, str] = {"0": "<4.39.0", "0.8.0": ""}


def entry_for_version(table: dict[str, str], version: Version) -> str | None:
    """Return the entry of `table` (first version -> value, oldest first) that applies to `version`, or None."""
    return next((value for since, value in reversed(table.items()) if version >= Version(since)), None)


@cache
def known_releases(specifier: SpecifierSet) -> list[Version]:
    """Return the known releases that satisfy `specifier`, oldest first."""
    return [Version(release) for release in RELEASES.split() if release in specifier]
