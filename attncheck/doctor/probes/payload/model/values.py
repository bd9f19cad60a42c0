"""Typed access to a parsed configuration, in which any value may have the wrong type.

The `read_…` functions return a fact: known, absent (the name is missing or its value is null), or unreadable with the
reason.
"""

from __future__ import annotations

from typing import Any, Callable

from ..facts import absent, known, unreadable

MAX_VALUE = 1 << 40  # far above any size in a model configuration


def known_value(fact: dict[str, Any], default: Any = None) -> Any:
    """Return the value of `fact`, or `default` if it is unknown."""
    return fact.get("known", default)


def read_int(document: dict[str, Any], *names: str, minimum: int = 1) -> dict[str, Any]:
    """Return the first of `names` that is present as a fact; it must be a whole number of at least `minimum`."""
    return _read_first(
        {name: document.get(name) for name in names},
        lambda value: value if type(value) is int and minimum <= value <= MAX_VALUE else None,
        "a whole number of at least {}".format(minimum),
    )


def read_float(document: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return the first of `names` that is present as a fact; it must be a finite, non-negative number."""
    return _read_first(
        {name: document.get(name) for name in names},  # NaN and infinity fail the comparison
        lambda value: float(value) if type(value) in (int, float) and 0 <= value <= MAX_VALUE else None,
        "a number",
    )


def read_bool(document: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return the first of `names` that is present as a fact; it must be true or false."""
    return _read_first(
        {name: document.get(name) for name in names},
        lambda value: value if isinstance(value, bool) else None,
        "true or false",
    )


def read_str(document: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return the first of `names` that is present and not empty as a fact; it must be a string."""
    values = {name: document.get(name) for name in names}
    return _read_first(
        {name: None if value == "" else value for name, value in values.items()},
        lambda value: value[:200] if isinstance(value, str) else None,
        "a text",
    )


def _read_first(values: dict[str, Any], convert: Callable[[Any], Any], expected: str) -> dict[str, Any]:
    """Return the first value that is not null as a fact; `convert` returns None for one that is not as expected."""
    for name, value in values.items():
        if value is not None:
            converted = convert(value)
            if converted is not None:
                return known(converted)
            return unreadable("{} is {}, not {}".format(name, describe_value(value), expected))
    return absent("config.json does not give " + next(iter(values)))


def as_str_list(value: Any, max_length: int = 4096) -> list[str]:
    """Return `value` if it is a list of at most `max_length` strings; otherwise an empty list."""
    if isinstance(value, list) and len(value) <= max_length and all(isinstance(item, str) for item in value):
        return [item[:100] for item in value]
    return []


def as_int_list(value: Any, max_length: int = 4096) -> list[int]:
    """Return `value` if it is a list of at most `max_length` whole numbers; otherwise an empty list."""
    if isinstance(value, list) and len(value) <= max_length and all(type(item) is int for item in value):
        return list(value)
    return []


def as_object(value: Any) -> dict[str, Any]:
    """Return `value` if it is a JSON object; otherwise an empty one."""
    return value if isinstance(value, dict) else {}


def describe_value(value: Any) -> str:
    """Return a value of the wrong type as a short text."""
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "an object"
    if type(value) is int and abs(value) > MAX_VALUE:  # printing a number with thousands of digits raises
        return "a number beyond 2**40"
    return repr(value)[:40]
