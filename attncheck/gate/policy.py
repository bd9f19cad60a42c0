"""The policy: attncheck.toml, or [tool.attncheck] in pyproject.toml; a wrong or unknown key is an error."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from attncheck.core.errors import BadUsage
from attncheck.core.findings import Allowance
from attncheck.core.results.gate import Check
from attncheck.doctor.profile import PROFILES, Profile
from attncheck.gate import policy_values as values
from attncheck.gate.policy_values import FAIL_ON as FAIL_ON
from attncheck.gate.policy_values import FailOn
from attncheck.measure.suites import SUITES, Suite

OWN = "attncheck.toml"
PROJECT = "pyproject.toml"


@dataclass(frozen=True)
class Config:
    """What the configuration file says; the command line wins over it. Paths are relative to where we were started."""

    profile: Profile = "auto"
    fail_on: FailOn = "error"
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()  # codes of the command line, which needs no reason
    timeout: float = 60.0
    plan: Mapping[str, Any] = field(default_factory=dict)  # fields of `Plan`, how the job trains
    allowances: tuple[Allowance, ...] = ()  # the file's `ignore`
    checks: tuple[Check, ...] = ()  # (): what a gate asks by itself
    models: tuple[str, ...] = ()
    launch: tuple[str, ...] = ()  # files that start or configure the job, for lint
    target: str = ""  # the machine to judge for, where that is not this one
    framework_version: str = ""
    ring_size: int = 0  # 0: no ring
    budget: float = 0.0  # seconds for the whole gate; 0: no bound
    min_efficiency: float = 0.0  # of a ring, as a share of flash-attn / N; 0: any
    max_error: float = 0.0  # of a verdict that passes, in units of its budget; 0: any
    suite: Suite = "quick"
    device: str = "auto"
    baseline: str = ""  # the file that holds the findings known already
    file: str = field(default="", compare=False)  # where all this was read; "" where there is no file


READERS: dict[str, values.Reader] = {
    "profile": values.choice(PROFILES),
    "fail-on": values.choice(FAIL_ON),
    "select": values.codes,
    "ignore": values.allowances,
    "timeout": values.seconds,
    "plan": values.plan,
    "checks": values.checks,
    "models": values.words,
    "launch": values.words,
    "target": values.word,
    "framework-version": values.version,
    "ring-size": values.whole(2, 1024),
    "budget": values.seconds,
    "thresholds": values.thresholds,
    "suite": values.choice(SUITES),
    "device": values.choice(("auto", "cpu", "cuda")),
    "baseline": values.word,
}


def load(folder: Path) -> Config:
    """Return the configuration nearest to `folder`, upwards. Raises `BadUsage` naming the file and the key."""
    for candidate in (folder, *folder.parents):
        own = candidate / OWN
        if own.is_file():
            return _placed(parse(_read(own), own.name), candidate, folder)
        project = candidate / PROJECT
        if project.is_file():
            table = _read(project).get("tool", {})
            if isinstance(table, dict) and "attncheck" in table:
                return _placed(parse(table["attncheck"], f"{project.name} [tool.attncheck]"), candidate, folder)
    return Config()


def parse(table: object, where: str) -> Config:
    """Return the `Config` written in a table. Raises `BadUsage` naming the key and the nearest right one."""
    if not isinstance(table, dict):
        raise BadUsage(f"{where}: expected a table")
    found: dict[str, Any] = {}
    for key, value in table.items():
        if key not in READERS:
            raise BadUsage(f"{where}: unknown key {key!r}{_hint(key)}")
        try:
            read = READERS[key](value)
        except ValueError as error:
            raise BadUsage(f"{where}: {key}: {error}") from None
        if key == "thresholds":
            found.update(read)
        else:
            found["allowances" if key == "ignore" else key.replace("-", "_")] = read
    return Config(**found, file=where)


def over(base: Config, options: Mapping[str, object]) -> Config:
    """Return `base` with options on top, by the file's keys; None and [] were not said. Raises `BadUsage`."""
    found: dict[str, Any] = {}
    for key, value in options.items():
        if value is None or value == []:
            continue
        try:
            if key in values.THRESHOLDS:
                found.update(values.thresholds({key: value}))
            else:
                found[key.replace("-", "_")] = READERS[key](value)
        except ValueError as error:
            raise BadUsage(f"--{key.replace('models', 'model')}: {error}") from None
    return replace(base, **found)


def _hint(key: str) -> str:
    if key.replace("_", "-") in values.THRESHOLDS:
        return f"; {key.replace('_', '-')!r} belongs into the table thresholds"
    return values.nearest(key, READERS, "known keys: ")


def _placed(config: Config, folder: Path, here: Path) -> Config:
    """Return the configuration with the paths of a file further up as they are seen from `here`."""
    if folder == here:
        return config

    def seen(path: str) -> str:
        return path if os.path.isabs(path) else os.path.relpath(folder / path, here)

    models = tuple(seen(model) if (folder / model).exists() else model for model in config.models)
    launch = tuple(seen(path) for path in config.launch)
    return replace(config, models=models, launch=launch, baseline=config.baseline and seen(config.baseline))


def read_text(text: str, name: str) -> dict[str, Any]:
    """Return the table that a TOML document holds. Raises `BadUsage` naming the file."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadUsage(f"cannot read {name}: {error}") from None


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_text(path.read_text(encoding="utf-8"), path.name)
    except (OSError, ValueError) as error:
        raise BadUsage(f"cannot read {path.name}: {error}") from None
