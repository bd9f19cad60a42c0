"""The backends: one file each, holding one frozen `BACKEND`."""

from __future__ import annotations

import sys
from functools import cache

from attncheck.attention.backend import Backend
from attncheck.core import registry


@cache
def load() -> tuple[dict[str, Backend], tuple[registry.Broken, ...]]:
    """Return the backends that attncheck itself and its plugins bring, by name, and what could not be loaded."""
    extensions, broken = registry.load(sys.modules[__name__], "attncheck.backends")
    records = [getattr(extension.module, "BACKEND", None) for extension in extensions]
    return {record.name: record for record in records if isinstance(record, Backend)}, tuple(broken)
