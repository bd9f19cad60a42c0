"""The keys of a TOML file, and where they stand as far as that can be told line by line."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from attncheck.core.errors import BadUsage
from attncheck.core.launch import NOWHERE, Source, Span
from attncheck.lint.files.entry import DEEPEST, Entry, Read, entry
from attncheck.lint.files.json import written

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HEADER = re.compile(r"\s*\[([^\[\]]+)\]\s*(?:#.*)?")
ASSIGNMENT = re.compile(
    r"""\s*((?:[A-Za-z0-9_-]+|"[^"\\]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"\\]*"))*)\s*=\s*"""
)
PLACE = re.compile(r"\(at line (\d+), column (\d+)\)")
LONGEST = 1 << 18  # characters
MOST_PARTS = 300  # of a dotted key: tomllib takes them in quadratic time
LINES = 60  # over which a value is followed


def read(source: Source) -> Read:
    """Return the keys of a TOML file. Raises `BadUsage` with the place of what is no TOML."""
    if len(source.text) > LONGEST or any(one.count(".") > MOST_PARTS for one in re.split(r"[=\n,{]", source.text)):
        raise BadUsage(f"{source.name}: larger than {LONGEST >> 10} KiB, or nested too deeply, to be read")
    try:
        whole = tomllib.loads(source.text)
    except tomllib.TOMLDecodeError as error:
        place = PLACE.search(str(error))
        where = f"{source.name}:{place[1]}:{place[2]}" if place else source.name
        raise BadUsage(f"{where}: {PLACE.sub('', str(error)).strip()}") from None
    except (ValueError, RecursionError):
        raise BadUsage(f"{source.name}: nested too deeply, or a number too long, to be read") from None
    places = dict(_places(source))
    return Read(tuple(_entries(source, whole, (), places)))


def _entries(
    source: Source,
    table: Mapping[str, Any],
    path: tuple[str, ...],
    places: Mapping[tuple[str, ...], tuple[Span, int, Any]],
) -> Iterator[Entry]:
    if len(path) > DEEPEST:
        raise BadUsage(f"{source.name}: nested too deeply to be read")
    for key, value in table.items():
        here = (*path, key)
        if isinstance(value, dict) and value:
            yield from _entries(source, value, here, places)
            continue
        (start, begin), end, held = places.get(here, (NOWHERE, -1, None))
        if start >= 0 and held == value and type(held) is type(value):
            yield entry(source, here, written(value), start, (start, end), (begin, end))
        else:
            yield entry(source, here, written(value), 0)


def _places(source: Source) -> Iterator[tuple[tuple[str, ...], tuple[Span, int, Any]]]:
    """Yield, for each `key = value` that stands on lines of its own, its path, where it begins and ends, its value."""
    lines = source.text.splitlines(keepends=True)
    table: tuple[str, ...] = ()
    offset = 0
    skip = 0
    for index, line in enumerate(lines):
        start, offset = offset, offset + len(line)
        if index < skip:
            continue
        header = HEADER.fullmatch(line.rstrip("\r\n"))
        if header or line.lstrip().startswith("[["):
            table = _path(header[1]) if header else ("[[",)  # tables of a list are no places of their own
            continue
        key = ASSIGNMENT.match(line)
        if key is None:
            continue
        found = _value("".join(lines[index : index + LINES])[key.end() :])
        if found is not None:
            length, value = found
            skip = index + 1 + source.text.count("\n", start, start + key.end() + length)
            begin = start + key.end()
            yield (*table, *_path(key[1])), ((start + key.start(1), begin), begin + length, value)


def _path(written_key: str) -> tuple[str, ...]:
    parts = re.findall(r"\"([^\"]*)\"|'([^']*)'|([A-Za-z0-9_-]+)", written_key)
    return tuple(next(one for one in (*part, "") if one) if any(part) else "" for part in parts)


def _value(text: str) -> tuple[int, Any] | None:
    """Return how long the value is with which `text` begins, and the value."""
    ends = [match.start() for match in re.finditer(r"[ \t]*(?:#|\r?\n|$)", text)][: 2 * LINES]
    for end in ends:
        try:
            return end, tomllib.loads(f"x = {text[:end]}")["x"]
        except (ValueError, RecursionError):
            continue
    return None
