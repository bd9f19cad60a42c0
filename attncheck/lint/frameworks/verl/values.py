"""The values of a launch's keys in one release: defaults, then files, then overrides, with interpolations resolved."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from attncheck.core.launch import Setting, SourceLocation
from attncheck.lint.frameworks.verl.given import HydraInputs, Override
from attncheck.lint.frameworks.verl.tables import MANDATORY, Release
from attncheck.lint.programs.hydra_overrides import KEY_INTERPOLATION, MAX_INTERPOLATIONS, SELECT_INTERPOLATION

NUMBER = re.compile(r"[+-]?(\d[\d_]*)(\.\d*)?([eE][+-]?\d+)?")


@dataclass(frozen=True)
class UnresolvedValue:
    """A value known only at run time."""

    text: str


class Values(NamedTuple):
    """Keys and their values, as written or by default, and the settings as written."""

    by_key: Mapping[str, Any]
    written_settings: Mapping[str, Setting]

    def get(self, *keys: str) -> Any:
        """Return the first value of `keys` that is not null, with interpolations resolved; None if all are null."""
        for key in keys:
            value = self._resolve_interpolation(self.by_key.get(key), MAX_INTERPOLATIONS)
            if value is not None and value != MANDATORY:
                return value
        return None

    def get_int(self, *keys: str, fallback: int = 0) -> int:
        """Return an integer; `fallback` if there is none or it cannot be known."""
        value = _to_whole_number(self.get(*keys))
        return fallback if value is None else value

    def find_int(self, key: str) -> int | None:
        """Return an integer; None if there is none or it cannot be known."""
        return _to_whole_number(self.get(key))

    def is_on(self, *keys: str) -> bool:
        """Return whether a switch is on."""
        return self.get(*keys) is True

    def get_text(self, *keys: str) -> str:
        """Return a text; "" if there is none or it cannot be known."""
        value = self.get(*keys)
        return value if isinstance(value, str) else ""

    def has_any(self, *keys: str) -> bool:
        """Return whether the launch sets any of `keys`."""
        return any(key in self.written_settings for key in keys)

    def find_location(self, *keys: str) -> SourceLocation:
        """Return the location of the first of `keys` that the launch sets."""
        settings = self.written_settings
        return next((settings[key].location for key in keys if key in settings), SourceLocation())

    def _resolve_interpolation(self, value: Any, depth: int) -> Any:
        if not isinstance(value, str) or "${" not in value or depth == 0:
            return value
        match = SELECT_INTERPOLATION.fullmatch(value)
        if match:
            selected = self._resolve_interpolation(self.by_key.get(match[1]), depth - 1)
            return selected if match[1] in self.by_key and selected != MANDATORY else parse_scalar(match[2] or "null")
        match = KEY_INTERPOLATION.fullmatch(value)
        return self._resolve_interpolation(self.by_key.get(match[1]), depth - 1) if match else UnresolvedValue(value)


def _to_whole_number(value: Any) -> int | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return int(value) if is_number else None


def compose_values(inputs: HydraInputs, release: Release) -> Values:
    """Return the values of a launch's keys in one release."""
    schema = release.schema(inputs.config_name, inputs.group_choices) if inputs.config_name else {}
    by_key: dict[str, Any] = dict(schema)
    if not inputs.group_choices:  # another option of a group has other defaults
        for name, option in inputs.tree_options.items():
            by_key[name] = None if option.default is None else parse_scalar(option.default)
    written_settings: dict[str, Setting] = {}
    for entry in inputs.entries:
        _set_leaves(by_key, entry.name, parse_scalar(entry.value) if entry.known else UnresolvedValue(entry.value))
        written_settings[entry.name] = entry
    for override in inputs.overrides:
        if override.key in inputs.group_choices or "@" in override.key:
            continue
        if override.prefix == "~":
            by_key = {key: value for key, value in by_key.items() if not is_within(key, override.key)}
            continue
        value = parse_scalar(override.value) if override.word.known else UnresolvedValue(override.value)
        was_leaf = override.key in by_key  # then there is nothing below it
        _set_leaves(by_key, override.key, value)
        written_settings[override.key] = override_to_setting(override)
        table = f"{override.key}."
        for name in by_key if isinstance(value, dict) or not was_leaf else ():
            if name.startswith(table):  # the value is a table: `+a.b={c: 1}`
                written_settings[name] = written_settings[override.key]
    return Values(by_key, written_settings)


def override_to_setting(override: Override) -> Setting:
    """Return an override as a setting."""
    word = override.word
    return Setting(override.key, override.value, word.location, word.span, known=word.known)


def is_within(key: str, parent: str) -> bool:
    """Return whether `key` is `parent` or is below it."""
    return key == parent or key.startswith(f"{parent}.")


def _set_leaves(by_key: dict[str, Any], key: str, value: Any) -> None:
    """Set a value, or each leaf of a table."""
    if isinstance(value, dict) and value:
        for name, leaf in value.items():
            _set_leaves(by_key, f"{key}.{name}", leaf)
        return
    parts = key.split(".")
    for depth in range(1, len(parts)):
        by_key.pop(".".join(parts[:depth]), None)
    by_key[key] = value


@lru_cache(maxsize=4096)  # launches repeat the texts of their tree's configuration
def parse_scalar(text: str) -> Any:
    """Return a value as Hydra reads it: a number, a boolean, null, a list or table, or the text itself."""
    text = text.strip()
    lowered = text.lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    if lowered in ("null", "~"):
        return None
    if NUMBER.fullmatch(text):
        return _parse_number(text)
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    if text[:1] in ("[", "{"):
        return _parse_nested(text)
    return text


def _parse_number(text: str) -> int | float:
    digits = text.replace("_", "")
    try:
        return int(digits)
    except ValueError:
        pass
    try:
        return float(digits)
    except (ValueError, OverflowError):
        return 0.0


def _parse_nested(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    if text[0] == "{" and text[-1] == "}" and not any(sign in text[1:-1] for sign in "{}[]"):
        pairs = [part.partition(":") for part in text[1:-1].split(",") if part.strip()]
        return {key.strip().strip("\"'"): parse_scalar(value) for key, _, value in pairs}
    return UnresolvedValue(text)
