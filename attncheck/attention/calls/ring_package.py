"""Imports ring-flash-attn in a worker, after restoring the names that its adapter needs in transformers.

`import ring_flash_attn` runs `ring_flash_attn/adapters/hf_adapter.py`, which imports private names of
`transformers.modeling_flash_attention_utils`. Releases add and remove these names
(`attncheck/doctor/rules/ring_flash_attn/ring_flash_attn_import.py` has the versions). If the import fails, no scheme
works, although none of them needs transformers. OpenRLHF 0.11.2 and axolotl restore the names too. This module restores
them only in its process, and the report lists them.
"""

import importlib
import re
import sys
from types import ModuleType
from typing import Any

from attncheck.attention.backend import Installed
from attncheck.attention.calls.flash_attn_package import find_distribution

DISTRIBUTION = "ring-flash-attn"
UTILITIES_MODULE = "transformers.modeling_flash_attention_utils"
SHIMMABLE_NAMES = (
    "is_flash_attn_greater_or_equal_2_10",
    "is_flash_attn_greater_or_equal",
    "_flash_supports_window",
    "_flash_supports_window_size",
)
_shimmed_names: list[str] = []


def installed() -> Installed:
    """Return the installed version, or why the package is missing."""
    return find_distribution("ring_flash_attn", DISTRIBUTION)


def load() -> ModuleType:
    """Return the imported package. Raises the import's own error if restoring names does not help."""
    if "ring_flash_attn" in sys.modules:
        return sys.modules["ring_flash_attn"]
    for _ in SHIMMABLE_NAMES:
        try:
            return importlib.import_module("ring_flash_attn")
        except ImportError as error:
            name = _missing_name(error)
            if not name:
                raise
        _shim_name(name)
        for module in [module for module in sys.modules if module.split(".")[0] == "ring_flash_attn"]:
            del sys.modules[module]
    return importlib.import_module("ring_flash_attn")


def _missing_name(error: ImportError) -> str:
    """Return the name that the adapter needs and transformers lacks, "" if the import fails for another reason."""
    match = re.search(rf"cannot import name '(\w+)' from '{re.escape(UTILITIES_MODULE)}'", str(error))
    return match[1] if match and match[1] in SHIMMABLE_NAMES and match[1] not in _shimmed_names else ""


def shimmed_names() -> tuple[str, ...]:
    """Return the names that were restored in transformers in this process."""
    return tuple(_shimmed_names)


def _shim_name(name: str) -> None:
    setattr(
        importlib.import_module(UTILITIES_MODULE), name, _make_shim(importlib.import_module("transformers.utils"), name)
    )
    _shimmed_names.append(name)


def _make_shim(public: ModuleType, name: str) -> Any:
    """Return the name from its new module in transformers, or the constant answer for every flash-attn since 2.4.1."""
    if hasattr(public, name):
        return getattr(public, name)
    return (lambda *version: True) if name.startswith("is_") else True
