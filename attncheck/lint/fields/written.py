"""Parses a value from YAML or a command line, as frameworks do: bool, number, list, table."""

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

TRUE_WORDS = frozenset({"true", "yes", "on", "y", "t", "1"})
FALSE_WORDS = frozenset({"false", "no", "off", "n", "f", "0"})
NULL_WORDS = frozenset({"", "null", "none", "~"})


def parse_value(text: str) -> Any:
    """Return the value of a scalar, or of a list or table in JSON: bool, None, int, float, list, dict or text."""
    bare = text.strip()
    if bare[:1] in ("[", "{"):
        try:
            return json.loads(bare)
        except ValueError:
            return bare
    return _parse_scalar(bare)


@lru_cache(maxsize=4096)
def _parse_scalar(bare: str) -> bool | int | float | str | None:
    quoted = re.fullmatch(r"([\"'])(.*)\1", bare)
    if quoted:
        return quoted[2]
    lowercase = bare.lower()
    if lowercase in NULL_WORDS:
        return None
    if lowercase in ("true", "yes", "on"):
        return True
    if lowercase in ("false", "no", "off"):
        return False
    return _parse_number(bare)


def _parse_number(text: str) -> int | float | str:
    if re.fullmatch(r"[+-]?\d[\d_]{0,17}", text):
        return int(text.replace("_", ""))
    if re.fullmatch(r"[+-]?(\d+\.\d*|\.?\d+)([eE][+-]?\d{1,3})?", text):
        return float(text)
    return text


def is_true(value: Any) -> bool:
    """Return whether a value is true, by the rules of YAML and pydantic."""
    return value.lower() not in FALSE_WORDS | NULL_WORDS if isinstance(value, str) else bool(value)


def switch_to_bool(value: str) -> str:
    """Return the "on" and "off" of a `Key` as true and false of YAML and options; other values are unchanged."""
    return {"on": "true", "off": "false"}.get(value, value)


def to_int(value: Any, fallback: int) -> int:
    """Return a value as an int; `fallback` if it is not one."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return fallback
    try:
        return int(str(value).replace("_", "")) if not isinstance(value, float) else int(value)
    except (ValueError, OverflowError):
        return fallback


def get_nested(values: Mapping[str, Any], name: str) -> Any:
    """Return the value of a dotted name, which is a key itself or a key in a table; None if there is neither."""
    if name in values:
        return values[name]
    head, _, rest = name.partition(".")
    table = values.get(head)
    return table.get(rest) if rest and isinstance(table, dict) else None
