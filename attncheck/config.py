"""Settings from attncheck.toml or [tool.attncheck] in pyproject.toml; a wrong or unknown key is an error."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from attncheck.errors import BadUsage
from attncheck.needs import PROFILES, Profile
from attncheck.plan import Plan

FailOn = Literal["error", "warning", "never"]
FAIL_ON: tuple[FailOn, ...] = get_args(FailOn)


@dataclass(frozen=True)
class Config:
    """What the configuration file says; the command line wins over it."""

    profile: Profile = "auto"
    fail_on: FailOn = "error"
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    timeout: float = 60.0
    plan: Mapping[str, Any] = field(default_factory=dict)  # fields of `Plan`, how the job trains


def load(folder: Path) -> Config:
    """Return the configuration nearest to `folder`, upwards. Raises `BadUsage` naming the file and the key."""
    for candidate in (folder, *folder.parents):
        own = candidate / "attncheck.toml"
        if own.is_file():
            return parse(_read(own), own.name)
        project = candidate / "pyproject.toml"
        if project.is_file():
            table = _read(project).get("tool", {})
            if isinstance(table, dict) and "attncheck" in table:
                return parse(table["attncheck"], f"{project.name} [tool.attncheck]")
    return Config()


def parse(table: object, where: str) -> Config:
    """Return the `Config` written in a table. Raises `BadUsage` naming the key and the nearest right one."""
    if not isinstance(table, dict):
        raise BadUsage(f"{where}: expected a table")
    keys = {"profile": _choice(PROFILES), "fail-on": _choice(FAIL_ON), "select": _codes, "ignore": _codes}
    readers = {**keys, "timeout": _seconds, "plan": _plan}
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in readers:
            near = difflib.get_close_matches(key, readers, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known keys: {', '.join(readers)}"
            raise BadUsage(f"{where}: unknown key {key!r}{hint}")
        try:
            values[key.replace("-", "_")] = readers[key](value)
        except ValueError as error:
            raise BadUsage(f"{where}: {key}: {error}") from None
    return Config(**values)


def _read(path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadUsage(f"cannot read {path.name}: {error}") from None


def _choice(choices: tuple[str, ...]) -> Any:
    def reader(value: object) -> str:
        if not isinstance(value, str) or value not in choices:
            raise ValueError(f"{value!r} is not one of {', '.join(choices)}")
        return value

    return reader


def _codes(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError("expected an array of rule codes or prefixes")
    return tuple(value)


def _plan(value: object) -> dict[str, Any]:
    """Return a table of a plan's fields; what a field may be is judged where the plan is made."""
    if not isinstance(value, dict):
        raise ValueError("expected a table")
    blank = Plan()
    known = {
        f.name.replace("_", "-"): f.name
        for f in fields(Plan)
        if f.name not in ("environ", "shims", "ring_size", "seed")
    }
    found = {}
    for key, item in value.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            raise ValueError(f"unknown key {key!r}; {f'did you mean {near[0]!r}?' if near else ', '.join(known)}")
        wanted = type(getattr(blank, known[key]))
        if not isinstance(item, (int, float) if wanted is float else wanted) or (wanted is int and item is True):
            raise ValueError(f"{key}: {item!r} is not a {wanted.__name__}")
        found[known[key]] = item
    return found


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 86400:
        raise ValueError(f"{value!r} is not a number of seconds")
    return float(value)
