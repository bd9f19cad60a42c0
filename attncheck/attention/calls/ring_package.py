"""ring-flash-attn in a worker: the genuine package, with what its adapter misses in transformers put back first.

`import ring_flash_attn` runs `ring_flash_attn/adapters/hf_adapter.py`, which imports private names of
`transformers.modeling_flash_attention_utils` that come and go
(`attncheck/doctor/rules/ring_flash_attn/ring_flash_attn_import.py` has the versions); where that fails, every scheme is
lost, though none of them needs transformers. OpenRLHF 0.11.2 and axolotl put the names back, as is done here: in this
process only, and said in the report.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import re
import sys
from types import ModuleType
from typing import Any

from attncheck.attention.backend import Installed

NAME = "ring-flash-attn"
UTILITIES = "transformers.modeling_flash_attention_utils"
NAMES = (
    "is_flash_attn_greater_or_equal_2_10",
    "is_flash_attn_greater_or_equal",
    "_flash_supports_window",
    "_flash_supports_window_size",
)
_put_back: list[str] = []


def find() -> Installed:
    """Return the installed version, or why there is none."""
    if importlib.util.find_spec("ring_flash_attn") is None:
        return Installed(missing="ring-flash-attn is not installed")
    try:
        return Installed(version=importlib.metadata.version("ring-flash-attn"))
    except importlib.metadata.PackageNotFoundError:
        return Installed(version="unknown")


def load() -> ModuleType:
    """Return the package, imported. Raises what its import raises where putting names back does not help."""
    if "ring_flash_attn" in sys.modules:
        return sys.modules["ring_flash_attn"]
    for _ in NAMES:
        try:
            return importlib.import_module("ring_flash_attn")
        except ImportError as error:
            name = _wanted(error)
            if not name:
                raise
        _put_name_back(name)
        for loaded in [loaded for loaded in sys.modules if loaded.split(".")[0] == "ring_flash_attn"]:
            del sys.modules[loaded]
    return importlib.import_module("ring_flash_attn")


def _wanted(error: ImportError) -> str:
    """Return the name that the adapter misses in transformers, "" where it is something else."""
    found = re.search(rf"cannot import name '(\w+)' from '{re.escape(UTILITIES)}'", str(error))
    return found[1] if found and found[1] in NAMES and found[1] not in _put_back else ""


def put_back() -> tuple[str, ...]:
    """Return the names that were put back into transformers in this process."""
    return tuple(_put_back)


def _put_name_back(name: str) -> None:
    setattr(importlib.import_module(UTILITIES), name, _stand_in(importlib.import_module("transformers.utils"), name))
    _put_back.append(name)


def _stand_in(public: ModuleType, name: str) -> Any:
    """Return the name as transformers has it elsewhere, or what it said of every flash-attn since 2.4.1."""
    if hasattr(public, name):
        return getattr(public, name)
    return (lambda *version: True) if name.startswith("is_") else True
