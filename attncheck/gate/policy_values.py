"""Reads the values of the configuration file, each by what its key wants; a wrong one raises `ValueError`."""

from __future__ import annotations

import datetime
import difflib
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any, Literal, get_args

from packaging.version import InvalidVersion, Version

from attncheck.core.findings import Allowance
from attncheck.core.plan import CHOICES, Plan
from attncheck.core.results.gate import CHECKS, Check

FailOn = Literal["error", "warning", "never"]
FAIL_ON: tuple[FailOn, ...] = get_args(FailOn)
Reader = Callable[[object], Any]
THRESHOLDS = {"min-efficiency": "min_efficiency", "max-error": "max_error"}


def nearest(key: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return the end of a message about an unknown key: the nearest right one, else all of them."""
    near = difflib.get_close_matches(key, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; {otherwise}{', '.join(known)}"


def choice(choices: tuple[str, ...]) -> Reader:
    """Return a reader of one of `choices`."""

    def reader(value: object) -> str:
        if not isinstance(value, str) or value not in choices:
            raise ValueError(f"{value!r} is not one of {', '.join(choices)}")
        return value

    return reader


def whole(least: int, most: int) -> Reader:
    """Return a reader of a whole number within bounds."""

    def reader(value: object) -> int:
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"{value!r} is not a whole number from {least} to {most}")
        return value

    return reader


def word(value: object) -> str:
    """Return a string that says something."""
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise ValueError(f"{value!r} is not a name: expected a string")
    return value


def words(value: object) -> tuple[str, ...]:
    """Return an array of strings."""
    if not isinstance(value, list):
        raise ValueError(
            f"expected an array of strings: [{value!r}]" if isinstance(value, str) else "expected an array"
        )
    return tuple(word(item) for item in value)


def version(value: object) -> str:
    """Return the version of a package, as a string: 0.10 would be 0.1 as a number."""
    try:
        if not isinstance(value, str):
            raise ValueError(f'{value!r} is not a string: write it as "{value}"')
        return str(Version(value))
    except InvalidVersion:
        raise ValueError(f"{value!r} is not a version") from None


def codes(value: object) -> tuple[str, ...]:
    """Return an array of rule codes or prefixes."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError("expected an array of rule codes or prefixes")
    return tuple(item.strip().upper() for item in value)


def checks(value: object) -> tuple[Check, ...]:
    """Return the checks of a gate, each once, in the order in which they run."""
    if not isinstance(value, list) or not value:
        raise ValueError(f"expected an array of checks: {', '.join(CHECKS)}")
    for item in value:
        if item not in CHECKS:
            raise ValueError(f"{item!r} is no check{nearest(str(item), CHECKS)}")
    return tuple(check for check in CHECKS if check in value)


def seconds(value: object) -> float:
    """Return a number of seconds, less than a day."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 86400:
        raise ValueError(f"{value!r} is not a number of seconds")
    return float(value)


def thresholds(value: object) -> dict[str, float]:
    """Return a table of thresholds, each a share above 0 and up to 1, by the names of `Config`'s fields."""
    if not isinstance(value, dict):
        raise ValueError(f"expected a table of {' and '.join(THRESHOLDS)}")
    for key, number in value.items():
        if key not in THRESHOLDS:
            raise ValueError(f"unknown key {key!r}{nearest(key, THRESHOLDS)}")
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 < number <= 1:
            raise ValueError(f"{key}: {number!r} is not a number above 0 and up to 1")
    return {THRESHOLDS[key]: float(number) for key, number in value.items()}


def allowances(value: object) -> tuple[Allowance, ...]:
    """Return what is let pass, each with its reason and its last day."""
    if not isinstance(value, list):
        raise ValueError(f"expected an array of tables such as {_example('ATN140')}")
    return tuple(_allowance(item) for item in value)


def _allowance(value: object) -> Allowance:
    if isinstance(value, str):
        raise ValueError(f"{value!r} lacks a reason and a date; write {_example(value)}")
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} is not a table such as {_example('ATN140')}")
    wanted = ("code", "reason", "until")
    for key in value:
        if key not in wanted:
            raise ValueError(f"unknown key {key!r}{nearest(str(key), wanted)}")
    for key in wanted:
        if key not in value:
            named = value.get("code", "ATN140")
            raise ValueError(f"{f'{named}: ' if key != 'code' else ''}{key} is missing; write {_example(named)}")
    code, reason = value["code"], value["reason"]
    if not isinstance(code, str) or not code.strip():
        raise ValueError(f"code: {code!r} is not a rule's code or the beginning of one")
    if not isinstance(reason, str) or not reason.strip():
        raise ValueError(f"{code}: reason: {reason!r} says nothing")
    return Allowance(code.strip().upper(), reason.strip(), _date(code, value["until"]))


def _date(code: str, value: object) -> str:
    if type(value) is datetime.date:  # TOML has dates of its own
        return value.isoformat()
    try:
        if not isinstance(value, str) or len(value) != 10:
            raise ValueError
        return datetime.date.fromisoformat(value).isoformat()
    except ValueError:
        raise ValueError(f"{code}: until: {value!s} is not a date such as {_soon()}") from None


def _example(code: object) -> str:
    return f'{{code = "{code}", reason = "why it may pass", until = "{_soon()}"}}'


def _soon() -> str:
    return (datetime.datetime.now(datetime.timezone.utc).date() + datetime.timedelta(days=90)).isoformat()


def plan(value: object) -> dict[str, Any]:
    """Return a table of a plan's fields."""
    if not isinstance(value, dict):
        raise ValueError("expected a table")
    blank = Plan()
    left_out = ("environ", "shims", "ring_size", "seed")
    known = {f.name.replace("_", "-"): f.name for f in fields(Plan) if f.name not in left_out}
    found = {}
    for key, item in value.items():
        if key not in known:
            raise ValueError(f"unknown key {key!r}{nearest(key, known)}")
        name = known[key]
        wanted = type(getattr(blank, name))
        if not isinstance(item, (int, float) if wanted is float else wanted) or (wanted is not bool and item is True):
            raise ValueError(f"{key}: {item!r} is not a {wanted.__name__}")
        if name in CHOICES and item not in CHOICES[name]:
            raise ValueError(f"{key}: {item!r} is not one of {', '.join(CHOICES[name])}")
        if wanted is int and item < 1:
            raise ValueError(f"{key}: {item!r} is not 1 or more")
        found[name] = item
    return found
