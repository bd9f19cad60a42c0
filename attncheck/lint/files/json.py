"""Parses a JSON file: its keys with their values and spans."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from attncheck.core.io.errors import BadUsage
from attncheck.core.launch import Source
from attncheck.lint.files.entry import MAX_DEPTH, MAX_KEYS, Configuration, Entry, make_entry

BLANK = re.compile(r"[ \t\r\n]*")


def parse(source: Source) -> Configuration:
    """Return the keys of a JSON object. Raises `BadUsage` with the location of invalid JSON."""
    try:
        document = json.loads(source.text)
    except json.JSONDecodeError as error:
        raise BadUsage(f"{source.location(error.pos)}: {error.msg}") from None
    except (ValueError, RecursionError):
        raise BadUsage(f"{source.name}: nested too deeply, or a number too long, to be read") from None
    if not isinstance(document, dict):
        raise BadUsage(f"{source.name}: a configuration must be an object")
    return Configuration(tuple(_ObjectReader(source).iter_entries()))


def list_keys(source: Source) -> list[Entry] | None:
    """Return the keys of a JSON object without their places, much faster than `parse` does; None for bad JSON."""
    try:
        document = json.loads(source.text)
        return list(_list_keys(source, document, ())) if isinstance(document, dict) else None
    except (ValueError, RecursionError):
        return None


def _list_keys(source: Source, value: Any, path: tuple[str, ...]) -> Iterator[Entry]:
    if isinstance(value, dict) and (value or not path):
        for key, inner in value.items():
            yield from _list_keys(source, inner, (*path, key))
    else:
        yield make_entry(source, path, format_value(value), 0)


class _ObjectReader:
    """Walks a text that is known to be a valid JSON object."""

    def __init__(self, source: Source) -> None:
        self.source, self.text = source, source.text
        self.decoder = json.JSONDecoder()
        self.value_end = 0
        self.remaining_keys = MAX_KEYS

    def iter_entries(self) -> Iterator[Entry]:
        """Yield the entries of the text."""
        yield from self._iter_object(self._skip_blanks(0), ())

    def _skip_blanks(self, offset: int) -> int:
        match = BLANK.match(self.text, offset)
        return match.end() if match else offset

    def _iter_object(self, offset: int, path: Sequence[str]) -> Iterator[Entry]:
        """Yield the entries of the object at `offset`; `value_end` is then the end of the object."""
        if len(path) > MAX_DEPTH:
            raise BadUsage(f"{self.source.location(offset)}: nested too deeply to be read")
        offset = self._skip_blanks(offset + 1)
        while self.text[offset] != "}":
            self.remaining_keys -= 1
            if self.remaining_keys < 0:
                raise BadUsage(f"{self.source.name}: more than {MAX_KEYS} keys")
            key, key_end = self.decoder.raw_decode(self.text, offset)
            value_start = self._skip_blanks(self._skip_blanks(key_end) + 1)
            yield from self._iter_value(offset, value_start, (*path, str(key)))
            offset = self._skip_blanks(self.value_end)
            offset = self._skip_blanks(offset + 1) if self.text[offset] == "," else offset
        self.value_end = offset + 1

    def _iter_value(self, key_start: int, value_start: int, path: Sequence[str]) -> Iterator[Entry]:
        if self.text[value_start] == "{" and self.text[self._skip_blanks(value_start + 1)] != "}":
            yield from self._iter_object(value_start, path)
            return
        value, self.value_end = self.decoder.raw_decode(self.text, value_start)
        yield make_entry(
            self.source,
            path,
            format_value(value),
            key_start,
            (key_start, self.value_end),
            (value_start, self.value_end),
        )


def format_value(value: Any) -> str:
    """Return a value in the form of a `Setting`: a string unchanged, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
