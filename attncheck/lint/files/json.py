"""The keys of a JSON file and where they stand."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from attncheck.core.errors import BadUsage
from attncheck.core.launch import Source
from attncheck.lint.files.entry import DEEPEST, MOST, Entry, Read, entry

BLANK = re.compile(r"[ \t\r\n]*")


def read(source: Source) -> Read:
    """Return the keys of a JSON object. Raises `BadUsage` with the place of what is no JSON."""
    try:
        whole = json.loads(source.text)
    except json.JSONDecodeError as error:
        raise BadUsage(f"{source.location(error.pos)}: {error.msg}") from None
    except (ValueError, RecursionError):
        raise BadUsage(f"{source.name}: nested too deeply, or a number too long, to be read") from None
    if not isinstance(whole, dict):
        raise BadUsage(f"{source.name}: a configuration is an object of keys and values")
    return Read(tuple(_Reader(source).entries()))


class _Reader:
    """Walks a text that is known to be an object in valid JSON."""

    def __init__(self, source: Source) -> None:
        self.source, self.text = source, source.text
        self.decoder = json.JSONDecoder()
        self.end = 0
        self.left = MOST

    def entries(self) -> Iterator[Entry]:
        """Yield the entries of the whole text."""
        yield from self._object(self._skip(0), ())

    def _skip(self, at: int) -> int:
        match = BLANK.match(self.text, at)
        return match.end() if match else at

    def _object(self, at: int, path: Sequence[str]) -> Iterator[Entry]:
        """Yield what stands in the object at `at`; `end` is then behind it."""
        if len(path) > DEEPEST:
            raise BadUsage(f"{self.source.location(at)}: nested too deeply to be read")
        at = self._skip(at + 1)
        while self.text[at] != "}":
            self.left -= 1
            if self.left < 0:
                raise BadUsage(f"{self.source.name}: more than {MOST} keys")
            key, after = self.decoder.raw_decode(self.text, at)
            begin = self._skip(self._skip(after) + 1)
            yield from self._value(at, begin, (*path, str(key)))
            at = self._skip(self.end)
            at = self._skip(at + 1) if self.text[at] == "," else at
        self.end = at + 1

    def _value(self, key: int, begin: int, path: Sequence[str]) -> Iterator[Entry]:
        if self.text[begin] == "{" and self.text[self._skip(begin + 1)] != "}":
            yield from self._object(begin, path)
            return
        value, self.end = self.decoder.raw_decode(self.text, begin)
        yield entry(self.source, path, written(value), key, (key, self.end), (begin, self.end))


def written(value: Any) -> str:
    """Return a value as settings hold it: a string as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
