"""Parses a TOML file: its keys with their values, and their spans if they can be found line by line."""

import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from attncheck.core.io.errors import BadUsage
from attncheck.core.launch import NOWHERE, Source, Span
from attncheck.lint.files.entry import MAX_DEPTH, Configuration, Entry, make_entry
from attncheck.lint.files.json import format_value

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TABLE_HEADER = re.compile(r"\s*\[([^\[\]]+)\]\s*(?:#.*)?")
ASSIGNMENT = re.compile(
    r"""\s*((?:[A-Za-z0-9_-]+|"[^"\\]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"\\]*"))*)\s*=\s*"""
)
ERROR_LOCATION = re.compile(r"\(at line (\d+), column (\d+)\)")
MAX_CHARACTERS = 1 << 18
MAX_KEY_PARTS = 300  # parts of a dotted key, which take tomllib quadratic time
MAX_VALUE_LINES = 60  # lines of one value; a longer one has no span


def parse(source: Source) -> Configuration:
    """Return the keys of a TOML file. Raises `BadUsage` with the location of invalid TOML."""
    if len(source.text) > MAX_CHARACTERS or any(
        key.count(".") > MAX_KEY_PARTS for key in re.split(r"[=\n,{]", source.text)
    ):
        raise BadUsage(f"{source.name}: larger than {MAX_CHARACTERS >> 10} KiB, or nested too deeply, to be read")
    try:
        document = tomllib.loads(source.text)
    except tomllib.TOMLDecodeError as error:
        position = ERROR_LOCATION.search(str(error))
        location = f"{source.name}:{position[1]}:{position[2]}" if position else source.name
        raise BadUsage(f"{location}: {ERROR_LOCATION.sub('', str(error)).strip()}") from None
    except (ValueError, RecursionError):
        raise BadUsage(f"{source.name}: nested too deeply, or a number too long, to be read") from None
    assignments = dict(_iter_assignments(source))
    return Configuration(tuple(_iter_entries(source, document, (), assignments)))


def _iter_entries(
    source: Source,
    table: Mapping[str, Any],
    path: tuple[str, ...],
    assignments: Mapping[tuple[str, ...], tuple[Span, int, Any]],
) -> Iterator[Entry]:
    if len(path) > MAX_DEPTH:
        raise BadUsage(f"{source.name}: nested too deeply to be read")
    for key, value in table.items():
        key_path = (*path, key)
        if isinstance(value, dict) and value:
            yield from _iter_entries(source, value, key_path, assignments)
            continue
        (start, value_start), end, parsed = assignments.get(key_path, (NOWHERE, -1, None))
        if start >= 0 and parsed == value and type(parsed) is type(value):
            yield make_entry(source, key_path, format_value(value), start, (start, end), (value_start, end))
        else:
            yield make_entry(source, key_path, format_value(value), 0)


def _iter_assignments(source: Source) -> Iterator[tuple[tuple[str, ...], tuple[Span, int, Any]]]:
    """Yield key path, (start of the key, start of the value), end and value of each `key = value` on its own lines."""
    lines = source.text.splitlines(keepends=True)
    table: tuple[str, ...] = ()
    offset = 0
    next_index = 0
    for index, line in enumerate(lines):
        start, offset = offset, offset + len(line)
        if index < next_index:
            continue
        header = TABLE_HEADER.fullmatch(line.rstrip("\r\n"))
        if header or line.lstrip().startswith("[["):
            table = _split_key(header[1]) if header else ("[[",)  # tables in a list have no spans
            continue
        key = ASSIGNMENT.match(line)
        if key is None:
            continue
        parsed = _parse_value("".join(lines[index : index + MAX_VALUE_LINES])[key.end() :])
        if parsed is not None:
            length, value = parsed
            next_index = index + 1 + source.text.count("\n", start, start + key.end() + length)
            value_start = start + key.end()
            yield (*table, *_split_key(key[1])), ((start + key.start(1), value_start), value_start + length, value)


def _split_key(key: str) -> tuple[str, ...]:
    parts = re.findall(r"\"([^\"]*)\"|'([^']*)'|([A-Za-z0-9_-]+)", key)
    return tuple(next(name for name in (*part, "") if name) if any(part) else "" for part in parts)


def _parse_value(text: str) -> tuple[int, Any] | None:
    """Return the length of the value at the start of `text`, and the value; None if none can be parsed."""
    ends = [match.start() for match in re.finditer(r"[ \t]*(?:#|\r?\n|$)", text)][: 2 * MAX_VALUE_LINES]
    for end in ends:
        try:
            return end, tomllib.loads(f"x = {text[:end]}")["x"]
        except (ValueError, RecursionError):
            continue
    return None
