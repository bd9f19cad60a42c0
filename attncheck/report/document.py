"""Converts a report to a JSON document and back.

The fields that readers with jq need most come first: the command, its exit code, counts, findings. Each section is at
the top level under its own name (`.parity.verdicts`). The snapshot, which is long, comes last.
"""

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from typing import Any

from attncheck.core import codec, results
from attncheck.core.codec import BadDocument
from attncheck.core.report import ANSWERS, Allowance, Finding, Report, Section, Skip
from attncheck.core.snapshot import Snapshot

SCHEMA_VERSION = 3
# Fields with other names in schema 2, by section; reports of that schema can still be read.
RENAMED_SINCE_2 = {
    **{name: {"reservations": "warnings"} for name in ("parity", "bench", "smoke")},
    "rehearsal": {"reservations": "warnings", "mended": "corrected"},
    "ring": {"reservations": "warnings", "watch": "stopwatch"},
    "repair": {"mends": "targets"},
    "upgrade": {"mends": "fixes", "kept": "unchanged", "not_known": "unknown"},
}
# The fields of a report in the order of the document, with their types; sections come after them.
FIELDS: dict[str, Any] = {
    "command": str,
    "exit_code": int,
    "findings": tuple[Finding, ...],
    "baselined": tuple[Finding, ...],
    "allowed": tuple[Finding, ...],
    "allowances": tuple[Allowance, ...],
    "skips": tuple[Skip, ...],
    "passed": tuple[str, ...],
    "suppressed": tuple[str, ...],
}


@cache
def load_sections() -> dict[str, type[Section]]:
    """Return the type of every section by its name; needed to read a report, not to write one."""
    sections: dict[str, type[Section]] = {}
    for info in pkgutil.iter_modules(results.__path__):
        kind = getattr(importlib.import_module(f"{results.__name__}.{info.name}"), "SECTION", None)
        if kind is not None:
            sections[kind.name] = kind
    return sections


def dumps(report: Report, indent: int | None = 2) -> str:
    """Return the report as JSON text."""
    return codec.write(to_document(report), indent)


def to_document(report: Report) -> dict[str, Any]:
    """Return the report as dictionaries, lists and scalars."""
    fields = {name: codec.to_plain(getattr(report, name)) for name in FIELDS}
    return {
        "schema_version": SCHEMA_VERSION,
        "command": fields.pop("command"),
        "exit_code": fields.pop("exit_code"),
        "counts": report.count_by_severity(),
        "answers": {answer: sum(v.answer == answer for v in report.verdicts) for answer in ANSWERS},
        "unanswered": [asdict(question) for question in report.unanswered],
        **fields,
        **{name: codec.to_plain(section) for name, section in report.sections.items()},
        "snapshot": codec.to_plain(report.snapshot),
    }


def loads(text: str) -> Report:
    """Return the report in this JSON text. Raises `BadDocument`, naming the path to the fault."""
    return from_document(codec.parse(text))


def from_document(document: Any) -> Report:
    """Return the report in a document of this schema or schema 2. Raises `BadDocument`, naming the path."""
    version = document.get("schema_version") if isinstance(document, dict) else None
    if type(version) is int and version > SCHEMA_VERSION:
        raise BadDocument(f"$: schema version {version}; this attncheck reads {SCHEMA_VERSION}: update attncheck")
    if type(version) is int and version == 2:
        document = {name: _rename(value, RENAMED_SINCE_2.get(name, {})) for name, value in document.items()}
    elif version != SCHEMA_VERSION:
        raise BadDocument(f"$: not a report of schema version 2 or {SCHEMA_VERSION}")
    for name in ("snapshot", *FIELDS):
        if name not in document:
            raise BadDocument(f"$: {name} is missing")
    kinds = load_sections()
    sections = {name: codec.read(kinds[name], value) for name, value in document.items() if name in kinds}
    fields = {name: codec.read(kind, document[name]) for name, kind in FIELDS.items()}
    return Report(snapshot=codec.read(Snapshot, document["snapshot"]), sections=sections, **fields)


def _rename(plain: Any, names: Mapping[str, str]) -> Any:
    """Return a part of a document with its fields renamed, at any depth."""
    if names and isinstance(plain, dict):
        return {names.get(key, key): _rename(value, names) for key, value in plain.items()}
    return [_rename(value, names) for value in plain] if names and isinstance(plain, list) else plain
