"""The policy: attncheck.toml, or [tool.attncheck] in pyproject.toml; a wrong or unknown key is an error."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from attncheck.core.findings import Allowance
from attncheck.core.io.errors import BadUsage
from attncheck.core.io.files import CannotRead, read_bounded
from attncheck.core.io.streams import print_message
from attncheck.core.io.toml import parse_toml
from attncheck.core.results.gate import Check
from attncheck.doctor.profile import PROFILES, Profile
from attncheck.gate import policy_values
from attncheck.gate.policy_values import FAIL_ON as FAIL_ON
from attncheck.gate.policy_values import FailOn
from attncheck.measure.suites import SUITES, Suite

POLICY_FILE = "attncheck.toml"
PYPROJECT_FILE = "pyproject.toml"
MAX_BYTES = 4 << 20


@dataclass(frozen=True)
class Policy:
    """The settings of the policy file; the command line takes precedence. Paths are relative to the current folder."""

    profile: Profile = "auto"
    fail_on: FailOn = "error"
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()  # codes from the command line, which needs no reason
    timeout: float = 60.0
    plan: Mapping[str, Any] = field(default_factory=dict)  # fields of `Plan`: how the job trains
    allowances: tuple[Allowance, ...] = ()  # the file's key `ignore`
    level: int = 0  # see `attncheck.gate.levels`; 0: none
    checks: tuple[Check, ...] = ()  # (): those of the level, or the default checks
    models: tuple[str, ...] = ()
    launch: tuple[str, ...] = ()  # files for lint that start or configure the job
    target: str = ""  # the machine to judge for, if it is not this one
    framework_version: str = ""
    ring_size: int = 0  # 0: no ring
    budget: float = 0.0  # seconds for the whole gate; 0: no limit
    min_efficiency: float = 0.0  # minimum efficiency of a ring, as a share of flash-attn / N; 0: no minimum
    max_error: float = 0.0  # maximum error of a passing verdict, in units of its budget; 0: no maximum
    suite: Suite | None = None  # None: that of the level, or quick
    device: str = "auto"
    baseline: str = ""  # the file with the known findings
    file: str = field(default="", compare=False)  # the file that it was read from; "" if there is none
    path: str = field(default="", compare=False)  # absolute path of that file
    digest: str = field(default="", compare=False)  # digest of the parsed settings
    named_checks: tuple[
        Check, ...
    ] = ()  # checks named on the command line: they run what the policy names without `attncheck trust`


READERS: dict[str, policy_values.Reader] = {
    "profile": policy_values.choice_reader(PROFILES),
    "fail-on": policy_values.choice_reader(FAIL_ON),
    "select": policy_values.read_codes,
    "ignore": policy_values.read_allowances,
    "timeout": policy_values.read_seconds,
    "plan": policy_values.read_plan,
    "level": policy_values.integer_reader(1, 3),
    "checks": policy_values.read_checks,
    "models": policy_values.read_strings,
    "launch": policy_values.read_strings,
    "target": policy_values.read_string,
    "framework-version": policy_values.read_version,
    "ring-size": policy_values.integer_reader(2, 1024),
    "budget": policy_values.read_seconds,
    "thresholds": policy_values.read_thresholds,
    "suite": policy_values.choice_reader(SUITES),
    "device": policy_values.choice_reader(("auto", "cpu", "cuda")),
    "baseline": policy_values.read_string,
}


def load_policy(folder: Path) -> Policy:
    """Return the nearest policy in `folder` or above it. Raises `BadUsage` naming the file and the key."""
    for candidate in (folder, *folder.parents):
        table = _read_toml(candidate / POLICY_FILE)
        if table is not None:
            policy = parse_policy(table, POLICY_FILE)
            return _relocate_paths(_add_origin(policy, candidate / POLICY_FILE, table), candidate, folder)
        tools = (_read_toml(candidate / PYPROJECT_FILE) or {}).get("tool", {})
        if isinstance(tools, dict) and "attncheck" in tools:
            policy = parse_policy(tools["attncheck"], f"{PYPROJECT_FILE} [tool.attncheck]")
            policy = _add_origin(policy, candidate / PYPROJECT_FILE, tools["attncheck"])
            return _relocate_paths(policy, candidate, folder)
    return Policy()


def _add_origin(policy: Policy, path: Path, table: object) -> Policy:
    """Return the policy with its file's path and the digest of the table that it was made from."""
    text = json.dumps(table, sort_keys=True, default=str)  # JSON cannot represent TOML's dates
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return replace(policy, path=policy_path(path.parent, path.name), digest=digest)


def policy_path(folder: Path, name: str) -> str:
    """Return the path under which a policy is trusted: the real folder in which it applies."""
    return os.path.join(os.path.realpath(folder), name)


def parse_policy(table: object, file: str) -> Policy:
    """Return the `Policy` in a table of `file`. Raises `BadUsage` naming the key and the closest valid one."""
    if not isinstance(table, dict):
        raise BadUsage(f"{file}: expected a table")
    fields: dict[str, Any] = {}
    for key, value in table.items():
        if key not in READERS:
            raise BadUsage(f"{file}: unknown key {key!r}{_suggest_key(key)}")
        try:
            parsed = READERS[key](value)
        except ValueError as error:
            raise BadUsage(f"{file}: {key}: {error}") from None
        if key == "thresholds":
            fields.update(parsed)
        else:
            fields["allowances" if key == "ignore" else key.replace("-", "_")] = parsed
    return Policy(**fields, file=file)


def override_policy(base: Policy, options: Mapping[str, object]) -> Policy:
    """Return `base` overridden by options under the file's keys; None and [] mean not given. Raises `BadUsage`."""
    overrides: dict[str, Any] = {}
    for key, value in options.items():
        if value is None or value == []:
            continue
        try:
            if key in policy_values.THRESHOLDS:
                overrides.update(policy_values.read_thresholds({key: value}))
            else:
                overrides[key.replace("-", "_")] = READERS[key](value)
        except ValueError as error:
            raise BadUsage(f"--{key.replace('models', 'model')}: {error}") from None
    return replace(base, **overrides)


def _suggest_key(key: str) -> str:
    if key.replace("_", "-") in policy_values.THRESHOLDS:
        return f"; {key.replace('_', '-')!r} belongs in the table thresholds"
    return policy_values.suggest_nearest(key, READERS, "known keys: ")


def _relocate_paths(policy: Policy, folder: Path, start: Path) -> Policy:
    """Return the policy of a file in `folder` with its paths relative to `start`, a folder below it."""
    if folder == start:
        return policy

    def relocate(path: str) -> str:
        return path if os.path.isabs(path) else os.path.relpath(folder / path, start)

    models = tuple(relocate(model) if (folder / model).exists() else model for model in policy.models)
    launch = tuple(relocate(path) for path in policy.launch)
    target = ",".join(relocate(word) if (folder / word).is_file() else word for word in policy.target.split(","))
    baseline = policy.baseline and relocate(policy.baseline)
    return replace(policy, models=models, launch=launch, target=target, baseline=baseline)


def _read_toml(path: Path) -> dict[str, Any] | None:
    """Return the table in a file, None if the file does not exist. Raises `BadUsage` if it cannot be read.

    A dangling link, a folder, or a file that belongs to another user is not skipped: it may have been meant as the
    policy. A pyproject.toml that does not parse and does not name attncheck is a warning.
    """
    content = b""
    try:
        content = read_bounded(path, MAX_BYTES)
        return parse_toml(content.decode("utf-8-sig"), path.name)
    except CannotRead as error:
        if error.is_missing:
            return None
        raise BadUsage(f"cannot read {path.name} in {path.parent}: {error.reason}") from None
    except (BadUsage, UnicodeDecodeError) as error:
        if path.name == PYPROJECT_FILE and b"attncheck" not in content:
            print_message(f"warning: {path} is not read: {error}")
            return None
        raise BadUsage(str(error) if isinstance(error, BadUsage) else f"cannot read {path.name}: {error}") from None
