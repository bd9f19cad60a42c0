"""The JSON schema of the report and the snapshot, derived from the types that are written."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from attncheck.core.report import ANSWERS, SEVERITIES, OpenQuestion
from attncheck.core.snapshot import Absent, Known, Snapshot
from attncheck.report.document import FIELDS, SCHEMA_VERSION, load_sections

JSON_SCHEMA_DRAFT = "https://json-schema.org/draft/2020-12/schema"
IDENTIFIER = f"https://github.com/attncheck/attncheck/schemas/report-{SCHEMA_VERSION}.json"
_SCALAR_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}


def make_report_schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of a report as `attncheck.report.document` writes it."""
    definitions: dict[str, Any] = {}
    count = {"type": "integer"}
    fields = {name: _schema_of_type(kind, definitions) for name, kind in FIELDS.items()}
    required = {
        "schema_version": {"const": SCHEMA_VERSION},
        "command": fields.pop("command"),
        "exit_code": fields.pop("exit_code"),
        "counts": _make_object_schema(dict.fromkeys(SEVERITIES, count)),
        "answers": _make_object_schema(dict.fromkeys(ANSWERS, count)),
        "unanswered": _schema_of_type(tuple[OpenQuestion, ...], definitions),
        **fields,
        "snapshot": _schema_of_type(Snapshot, definitions),
    }
    sections = {name: _schema_of_type(kind, definitions) for name, kind in load_sections().items()}
    return {
        "$schema": JSON_SCHEMA_DRAFT,
        "$id": IDENTIFIER,
        "title": f"attncheck report, schema version {SCHEMA_VERSION}",
        **_make_object_schema(required),
        "properties": {**required, **sections},
        "$defs": dict(sorted(definitions.items())),
    }


def _make_object_schema(properties: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an object that has exactly these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _schema_of_type(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, arguments = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind):
        return _schema_of_dataclass(kind, definitions)
    if origin is Union and Absent in arguments:
        return _schema_of_fact(arguments, definitions)
    if origin is tuple:
        return _schema_of_tuple(arguments, definitions)
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": _schema_of_type(arguments[1], definitions)}
    if origin is Literal:
        return {"enum": list(arguments)}
    return {"type": _SCALAR_TYPES[kind]}


def _schema_of_dataclass(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    if kind.__name__ not in definitions:
        definitions[kind.__name__] = {}  # before its fields, so that a type may contain itself
        hints = get_type_hints(kind)
        properties = {field.name: _schema_of_type(hints[field.name], definitions) for field in dataclasses.fields(kind)}
        definitions[kind.__name__] = _make_object_schema(properties)
    return {"$ref": f"#/$defs/{kind.__name__}"}


def _schema_of_fact(arguments: tuple[Any, ...], definitions: dict[str, Any]) -> dict[str, Any]:
    value = next(get_args(argument)[0] for argument in arguments if get_origin(argument) is Known)
    states = {
        "known": _schema_of_type(value, definitions),
        "absent": {"type": "string"},
        "unreadable": {"type": "string"},
    }
    return {
        "oneOf": [
            {"type": "object", "properties": {state: shape}, "required": [state], "additionalProperties": False}
            for state, shape in states.items()
        ]
    }


def _schema_of_tuple(arguments: tuple[Any, ...], definitions: dict[str, Any]) -> dict[str, Any]:
    if arguments[-1] is Ellipsis:
        return {"type": "array", "items": _schema_of_type(arguments[0], definitions)}
    items = [_schema_of_type(argument, definitions) for argument in arguments]
    return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
