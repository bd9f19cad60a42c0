"""The JSON schema of `attncheck.toml`, derived from the readers of its values; draft-07, which SchemaStore uses."""

import inspect
from dataclasses import fields
from typing import Any

from attncheck.core.plan import CHOICES, Plan
from attncheck.core.results.gate import CHECKS
from attncheck.gate import policy_values as values
from attncheck.gate.policy import READERS

DRAFT = "http://json-schema.org/draft-07/schema#"
IDENTIFIER = "https://json.schemastore.org/attncheck.json"  # SchemaStore requires its own address
DESCRIPTIONS = {
    "profile": "The kind of job; auto: derived from the installed packages.",
    "fail-on": "The least severe finding that makes the exit code 1.",
    "select": "Codes of rules, or prefixes: only these findings count.",
    "ignore": "Findings that are allowed, each with a reason and a last day.",
    "timeout": "Seconds for one import or one measured case.",
    "plan": "How the job trains, for smoke.",
    "level": "A guaranteed maximum duration: 1 is 30 seconds, 2 is 3 minutes, 3 is 30 minutes.",
    "checks": "The checks of the gate.",
    "models": "Models to judge and measure for: folders, or Hub names in the local cache.",
    "launch": "Files that start or configure the job, for lint and rehearsal.",
    "target": ("The machine to judge for, if it is not this one: h100x8, with requirements or lock files."),
    "framework-version": "The release of the training framework whose names a launch uses.",
    "ring-size": "The number of ranks across which parity, determinism, bench and doctor run.",
    "budget": "Seconds for the whole gate.",
    "thresholds": "Limits that apply in addition to the checks' own.",
    "suite": "How many cases parity runs.",
    "device": "Where to measure.",
    "baseline": "The file with the known findings.",
}
# PEP 440, appendix B; both cases of letters, because patterns of JSON Schema have no flags.
_LABEL = "([aA]([lL][pP][hH][aA])?|[bB]([eE][tT][aA])?|[cC]|[rR][cC]|[pP][rR][eE]([vV][iI][eE][wW])?)"
VERSION = (
    rf"^\s*[vV]?([0-9]+!)?[0-9]+(\.[0-9]+)*([-_.]?{_LABEL}[-_.]?[0-9]*)?"
    r"(-[0-9]+|[-_.]?([pP][oO][sS][tT]|[rR][eE][vV]|[rR])[-_.]?[0-9]*)?([-_.]?[dD][eE][vV][-_.]?[0-9]*)?"
    r"(\+[a-zA-Z0-9]+([-_.][a-zA-Z0-9]+)*)?\s*$"
)
NOT_BLANK = {"type": "string", "pattern": r"\S"}
NAME = {"type": "string", "pattern": r"^[^\0]*[^\0\s][^\0]*$"}
DATE = {"type": "string", "format": "date", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"}
SECONDS = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 86400}
SHARE = {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
_PLAN_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}


def make_policy_schema() -> dict[str, Any]:
    """Return the JSON schema of a policy, for editors that complete `attncheck.toml`."""
    properties = {key: {"description": DESCRIPTIONS[key], **_schema_of(reader)} for key, reader in READERS.items()}
    return {
        "$schema": DRAFT,
        "$id": IDENTIFIER,
        "title": "The policy of attncheck",
        "description": "attncheck.toml, or [tool.attncheck] in pyproject.toml.",
        **_table(properties),
    }


def _table(properties: dict[str, Any], **more: object) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties, **more}


def _schema_of(reader: values.Reader) -> dict[str, Any]:
    """Return the schema of the values that a reader accepts; a reader made by a factory has its choices or bounds."""
    bounds = inspect.getclosurevars(reader).nonlocals
    if "choices" in bounds:
        return {"enum": list(bounds["choices"])}
    if "minimum" in bounds:
        return {"type": "integer", "minimum": bounds["minimum"], "maximum": bounds["maximum"]}
    return _BY_READER[reader]


def _plan_properties() -> dict[str, Any]:
    """Return the schema of each field of a plan that the policy accepts."""
    default = Plan()
    named = {field.name.replace("_", "-"): field.name for field in fields(Plan)}
    return {
        key: _schema_of_field(name, getattr(default, name))
        for key, name in named.items()
        if _is_taken(key, getattr(default, name))
    }


def _is_taken(key: str, value: object) -> bool:
    try:
        return bool(values.read_plan({key: value}))
    except ValueError:
        return False


def _schema_of_field(name: str, default: object) -> dict[str, Any]:
    if name in CHOICES:
        return {"enum": list(CHOICES[name])}
    return {"type": _PLAN_TYPES[type(default)], **({"minimum": 1} if type(default) is int else {})}


_ALLOWANCE = {"code": NOT_BLANK, "reason": NOT_BLANK, "until": DATE}
_BY_READER: dict[values.Reader, dict[str, Any]] = {
    values.read_string: NAME,
    values.read_strings: {"type": "array", "items": NAME},
    values.read_version: {"type": "string", "pattern": VERSION},
    values.read_codes: {"type": "array", "items": {"type": "string"}},
    values.read_checks: {"type": "array", "minItems": 1, "items": {"enum": list(CHECKS)}},
    values.read_seconds: SECONDS,
    values.read_thresholds: _table(dict.fromkeys(values.THRESHOLDS, SHARE)),
    values.read_allowances: {"type": "array", "items": _table(_ALLOWANCE, required=list(_ALLOWANCE))},
    values.read_plan: _table(_plan_properties()),
}
