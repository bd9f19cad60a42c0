"""Readers of the policy file's values, one for each kind of value; an invalid value raises `ValueError`."""

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


def suggest_nearest(key: str, known_keys: Iterable[str], default_prefix: str = "") -> str:
    """Return the end of a message about an unknown key: the closest known key, or all known keys."""
    matches = difflib.get_close_matches(key, known_keys, n=1)
    return f"; did you mean {matches[0]!r}?" if matches else f"; {default_prefix}{', '.join(known_keys)}"


def choice_reader(choices: tuple[str, ...]) -> Reader:
    """Return a reader that accepts one of `choices`."""

    def read_choice(value: object) -> str:
        if not isinstance(value, str) or value not in choices:
            raise ValueError(f"{value!r} is not one of {', '.join(choices)}")
        return value

    return read_choice


def integer_reader(minimum: int, maximum: int) -> Reader:
    """Return a reader that accepts a whole number within bounds."""

    def read_integer(value: object) -> int:
        if type(value) is not int or not minimum <= value <= maximum:
            raise ValueError(f"{value!r} is not a whole number from {minimum} to {maximum}")
        return value

    return read_integer


def read_string(value: object) -> str:
    """Return a string that is not blank."""
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise ValueError(f"{value!r} is not a name: expected a string")
    return value


def read_strings(value: object) -> tuple[str, ...]:
    """Return an array of strings that are not blank."""
    if not isinstance(value, list):
        raise ValueError(
            f"expected an array of strings: [{value!r}]" if isinstance(value, str) else "expected an array"
        )
    return tuple(read_string(item) for item in value)


def read_version(value: object) -> str:
    """Return the version of a package as a string; as a number, 0.10 would become 0.1."""
    try:
        if not isinstance(value, str):
            raise ValueError(f'{value!r} is not a string: write it as "{value}"')
        return str(Version(value))
    except InvalidVersion:
        raise ValueError(f"{value!r} is not a version") from None


def read_codes(value: object) -> tuple[str, ...]:
    """Return an array of rule codes or prefixes."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError("expected an array of rule codes or prefixes")
    return tuple(item.strip().upper() for item in value)


def read_checks(value: object) -> tuple[Check, ...]:
    """Return the distinct checks of a gate in the order in which they run."""
    if not isinstance(value, list) or not value:
        raise ValueError(f"expected an array of checks: {', '.join(CHECKS)}")
    for item in value:
        if item not in CHECKS:
            raise ValueError(f"{item!r} is not a check{suggest_nearest(str(item), CHECKS)}")
    return tuple(check for check in CHECKS if check in value)


def read_seconds(value: object) -> float:
    """Return a number of seconds, less than a day."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 86400:
        raise ValueError(f"{value!r} is not a number of seconds")
    return float(value)


def read_thresholds(value: object) -> dict[str, float]:
    """Return a table of thresholds, each a share above 0 and up to 1, by the names of `Policy`'s fields."""
    if not isinstance(value, dict):
        raise ValueError(f"expected a table of {' and '.join(THRESHOLDS)}")
    for key, number in value.items():
        if key not in THRESHOLDS:
            raise ValueError(f"unknown key {key!r}{suggest_nearest(key, THRESHOLDS)}")
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 < number <= 1:
            raise ValueError(f"{key}: {number!r} is not a number above 0 and up to 1")
    return {THRESHOLDS[key]: float(number) for key, number in value.items()}


def read_allowances(value: object) -> tuple[Allowance, ...]:
    """Return the allowances: each with its codes, its reason and its last day."""
    if not isinstance(value, list):
        raise ValueError(f"expected an array of tables such as {_format_example('ATN140')}")
    return tuple(_read_allowance(item) for item in value)


def _read_allowance(value: object) -> Allowance:
    if isinstance(value, str):
        raise ValueError(f"{value!r} lacks a reason and a date; write {_format_example(value)}")
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} is not a table such as {_format_example('ATN140')}")
    keys = ("code", "reason", "until")
    for key in value:
        if key not in keys:
            raise ValueError(f"unknown key {key!r}{suggest_nearest(str(key), keys)}")
    for key in keys:
        if key not in value:
            example_code = value.get("code", "ATN140")
            raise ValueError(
                f"{f'{example_code}: ' if key != 'code' else ''}{key} is missing; write {_format_example(example_code)}"
            )
    code, reason = value["code"], value["reason"]
    if not isinstance(code, str) or not code.strip():
        raise ValueError(f"code: {code!r} is not a rule's code or prefix")
    if not isinstance(reason, str) or not reason.strip():
        raise ValueError(f"{code}: reason: {reason!r} is not a reason")
    return Allowance(code.strip().upper(), reason.strip(), _read_date(code, value["until"]))


def _read_date(code: str, value: object) -> str:
    if type(value) is datetime.date:  # TOML has a type for dates
        return value.isoformat()
    try:
        if not isinstance(value, str) or value[4::3] != "--":  # since Python 3.11 fromisoformat accepts other forms too
            raise ValueError
        return datetime.date.fromisoformat(value).isoformat()
    except ValueError:
        raise ValueError(f"{code}: until: {value!s} is not a date such as {_example_date()}") from None


def _format_example(code: object) -> str:
    return f'{{code = "{code}", reason = "why it may pass", until = "{_example_date()}"}}'


def _example_date() -> str:
    return (datetime.datetime.now(datetime.timezone.utc).date() + datetime.timedelta(days=90)).isoformat()


def read_plan(value: object) -> dict[str, Any]:
    """Return a table of settings of a plan, by the names of the fields of `Plan`."""
    if not isinstance(value, dict):
        raise ValueError("expected a table")
    default_plan = Plan()
    excluded = ("environ", "shims", "ring_size", "seed")
    field_names = {f.name.replace("_", "-"): f.name for f in fields(Plan) if f.name not in excluded}
    plan_fields = {}
    for key, item in value.items():
        if key not in field_names:
            raise ValueError(f"unknown key {key!r}{suggest_nearest(key, field_names)}")
        name = field_names[key]
        expected_type = type(getattr(default_plan, name))
        if not isinstance(item, (int, float) if expected_type is float else expected_type) or (
            expected_type is not bool and isinstance(item, bool)
        ):
            raise ValueError(f"{key}: {item!r} is not a {expected_type.__name__}")
        if name in CHOICES and item not in CHOICES[name]:
            raise ValueError(f"{key}: {item!r} is not one of {', '.join(CHOICES[name])}")
        if expected_type is int and item < 1:
            raise ValueError(f"{key}: {item!r} is not 1 or more")
        plan_fields[name] = item
    return plan_fields
