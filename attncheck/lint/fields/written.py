"""What a written value is to the frameworks that read YAML and command lines: truth, number, list, table."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

TRUE = frozenset({"true", "yes", "on", "y", "t", "1"})
FALSE = frozenset({"false", "no", "off", "n", "f", "0"})
NONE = frozenset({"", "null", "none", "~"})


def value(text: str) -> Any:
    """Return what a scalar, or a list or table in JSON, stands for: bool, None, int, float, list, dict or the text."""
    bare = text.strip()
    if bare[:1] in ("[", "{"):
        try:
            return json.loads(bare)
        except ValueError:
            return bare
    quoted = re.fullmatch(r"([\"'])(.*)\1", bare)
    if quoted:
        return quoted[2]
    low = bare.lower()
    if low in NONE:
        return None
    if low in ("true", "yes", "on"):
        return True
    if low in ("false", "no", "off"):
        return False
    return _number(bare)


def _number(text: str) -> int | float | str:
    if re.fullmatch(r"[+-]?\d[\d_]{0,17}", text):
        return int(text.replace("_", ""))
    if re.fullmatch(r"[+-]?(\d+\.\d*|\.?\d+)([eE][+-]?\d{1,3})?", text):
        return float(text)
    return text


def truth(found: Any) -> bool:
    """Return whether a value is on, as Python's own truth of YAML and pydantic's words have it."""
    if isinstance(found, str):
        return found.lower() not in FALSE | NONE
    return bool(found)


def switched(value: str) -> str:
    """Return what `jobs.Key`s call "on" and "off" as YAML and options write it; another value as it is."""
    return {"on": "true", "off": "false"}.get(value, value)


def number(found: Any, otherwise: int) -> int:
    """Return a whole number, `otherwise` where the value is none."""
    if isinstance(found, bool) or not isinstance(found, (int, float, str)):
        return otherwise
    try:
        return int(str(found).replace("_", "")) if not isinstance(found, float) else int(found)
    except (ValueError, OverflowError):
        return otherwise


def inside(given: Mapping[str, Any], name: str) -> Any:
    """Return the value of a dotted name, written so or in a table."""
    if name in given:
        return given[name]
    head, _, rest = name.partition(".")
    table = given.get(head)
    return table.get(rest) if rest and isinstance(table, dict) else None
