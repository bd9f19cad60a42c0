"""The JSON schema of the report and the snapshot, derived from the types that are written.

`python -m attncheck.report.schema` prints it; the copy in `attncheck/report/report.schema.json` is what a release
promises, and a test keeps the two the same.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from attncheck.core.facts import Absent, Known
from attncheck.core.report import Report
from attncheck.core.snapshot import SCHEMA_VERSION

_SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean"}


def schema(kind: Any = Report) -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of the dataclass `kind`."""
    definitions: dict[str, Any] = {}
    root = _of(kind, definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"attncheck {kind.__name__.lower()}, schema version {SCHEMA_VERSION}",
        **root,
        "$defs": dict(sorted(definitions.items())),
    }


def _of(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, arguments = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, definitions)
    if origin is Union and Absent in arguments:
        return _fact(arguments, definitions)
    if origin is tuple:
        return _tuple(arguments, definitions)
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": _of(arguments[1], definitions)}
    if origin is Literal:
        return {"enum": list(arguments)}
    return {"type": _SCALARS[kind]}


def _dataclass(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    if kind.__name__ not in definitions:
        definitions[kind.__name__] = {}  # before its fields, so that a type may hold itself
        hints = get_type_hints(kind)
        properties = {field.name: _of(hints[field.name], definitions) for field in dataclasses.fields(kind)}
        definitions[kind.__name__] = {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }
    return {"$ref": f"#/$defs/{kind.__name__}"}


def _fact(arguments: tuple[Any, ...], definitions: dict[str, Any]) -> dict[str, Any]:
    value = next(get_args(argument)[0] for argument in arguments if get_origin(argument) is Known)
    states = {"known": _of(value, definitions), "absent": {"type": "string"}, "unreadable": {"type": "string"}}
    return {
        "oneOf": [
            {"type": "object", "properties": {state: shape}, "required": [state], "additionalProperties": False}
            for state, shape in states.items()
        ]
    }


def _tuple(arguments: tuple[Any, ...], definitions: dict[str, Any]) -> dict[str, Any]:
    if arguments[-1] is Ellipsis:
        return {"type": "array", "items": _of(arguments[0], definitions)}
    items = [_of(argument, definitions) for argument in arguments]
    return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}


if __name__ == "__main__":
    print(json.dumps(schema(), indent=2))
