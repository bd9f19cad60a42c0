"""The values that a launch's keys have in one release: defaults, files, overrides, interpolations followed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attncheck.core.launch import Setting, SourceLocation
from attncheck.lint.frameworks.verl.given import Given, Override
from attncheck.lint.frameworks.verl.tables import MANDATORY, Names

SELECT = re.compile(r"\$\{oc\.select:\s*([\w.]+)\s*(?:,(.*))?\}")
FOLLOW = re.compile(r"\$\{([\w.]+)\}")
DEPTH = 12  # interpolations that follow one another; more is a circle
NUMBER = re.compile(r"[+-]?(\d[\d_]*)(\.\d*)?([eE][+-]?\d+)?")


@dataclass(frozen=True)
class Unknowable:
    """A value that only running the launch can tell."""

    text: str


@dataclass(frozen=True)
class Values:
    """Keys and their values, as written or by default, with what wrote them."""

    held: Mapping[str, Any]
    writers: Mapping[str, Setting]

    def get(self, *keys: str) -> Any:
        """Return the value of the first of `keys` that has one that is not null; None where none has."""
        for key in keys:
            value = self._followed(self.held.get(key), DEPTH)
            if value is not None and value != MANDATORY:
                return value
        return None

    def number(self, *keys: str, default: int = 0) -> int:
        """Return a whole number, `default` where it is none or cannot be known."""
        value = self.get(*keys)
        return default if isinstance(value, bool) or not isinstance(value, (int, float)) else int(value)

    def known(self, key: str) -> int | None:
        """Return a whole number, None where it is none or cannot be known."""
        value = self.get(key)
        return None if isinstance(value, bool) or not isinstance(value, (int, float)) else int(value)

    def on(self, *keys: str) -> bool:
        """Say whether a switch is on."""
        return self.get(*keys) is True

    def text(self, *keys: str) -> str:
        """Return a text, "" where there is none or it cannot be known."""
        value = self.get(*keys)
        return value if isinstance(value, str) else ""

    def written(self, *keys: str) -> bool:
        """Say whether any of `keys` is written in the launch."""
        return any(key in self.writers for key in keys)

    def place(self, *keys: str) -> SourceLocation:
        """Return where the first of `keys` that is written stands."""
        return next((self.writers[key].location for key in keys if key in self.writers), SourceLocation())

    def under(self, key: str) -> bool:
        """Say whether any key below `key` is there."""
        return any(name.startswith(f"{key}.") for name in self.held)

    def _followed(self, value: Any, depth: int) -> Any:
        if not isinstance(value, str) or "${" not in value or depth == 0:
            return value
        found = SELECT.fullmatch(value)
        if found:
            chosen = self._followed(self.held.get(found[1]), depth - 1)
            return chosen if found[1] in self.held and chosen != MANDATORY else scalar(found[2] or "null")
        found = FOLLOW.fullmatch(value)
        return self._followed(self.held.get(found[1]), depth - 1) if found else Unknowable(value)


def values(given: Given, names: Names) -> Values:
    """Return what the keys of a launch are worth in one release."""
    held: dict[str, Any] = dict(names.schema(given.config, given.choices)) if given.config else {}
    writers: dict[str, Setting] = {}
    for entry in given.entries:
        _put(held, entry.name, scalar(entry.value) if entry.known else Unknowable(entry.value))
        writers[entry.name] = entry
    for override in given.overrides:
        if override.key in given.choices or "@" in override.key:
            continue
        if override.prefix == "~":
            held = {key: value for key, value in held.items() if not within(key, override.key)}
            continue
        _put(held, override.key, scalar(override.value) if override.word.known else Unknowable(override.value))
        writers[override.key] = setting(override)
        for name in held:
            if name.startswith(f"{override.key}."):  # a table given at once: `+a.b={c: 1}`
                writers[name] = writers[override.key]
    return Values(held, writers)


def setting(override: Override) -> Setting:
    """Return an override as a setting."""
    word = override.word
    return Setting(override.key, override.value, word.location, word.span, known=word.known)


def within(key: str, parent: str) -> bool:
    """Say whether `key` is `parent` or below it."""
    return key == parent or key.startswith(f"{parent}.")


def _put(held: dict[str, Any], key: str, value: Any) -> None:
    """Lay one value in; of a table each leaf."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            _put(held, f"{key}.{name}", inner)
        return
    parts = key.split(".")
    for stop in range(1, len(parts)):
        held.pop(".".join(parts[:stop]), None)
    held[key] = value


def scalar(text: str) -> Any:
    """Return a value as Hydra reads it: a number, a truth value, null, a list or table, or the text itself."""
    text = text.strip()
    lowered = text.lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    if lowered in ("null", "~"):
        return None
    if NUMBER.fullmatch(text):
        return _number(text)
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    if text[:1] in ("[", "{"):
        return _nested(text)
    return text


def _number(text: str) -> int | float:
    plain = text.replace("_", "")
    try:
        return int(plain)
    except ValueError:
        pass
    try:
        return float(plain)
    except (ValueError, OverflowError):
        return 0.0


def _nested(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    if text[0] == "{" and text[-1] == "}" and not any(sign in text[1:-1] for sign in "{}[]"):
        pairs = [part.partition(":") for part in text[1:-1].split(",") if part.strip()]
        return {key.strip().strip("\"'"): scalar(value) for key, _, value in pairs}
    return Unknowable(text)
