"""One key of a configuration file: a setting that knows the syntax of its file, so that it can be edited."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from attncheck.core.launch import NOWHERE, Edit, Kind, Setting, Source, Span
from attncheck.lint.files.edit_text import quote_value

RUNTIME_VALUE = re.compile(r"\$\{|\{\{|^\?\?\?$")  # interpolation (Hydra, Jinja) and Hydra's "must be given"
MAX_DEPTH = 60  # nested tables
MAX_KEYS = 20_000  # keys per file: aliases of aliases can expand without limit


@dataclass(frozen=True)
class Entry(Setting):
    """One key of a configuration file of `kind` (YAML, JSON or TOML) with its value and their spans."""

    kind: Kind = "yaml"
    separator: str = ""  # text before another value, because the span begins directly after the colon

    def replace_value(self, value: str) -> Edit:
        """Return the edit that gives the key another value. Raises `ValueError` if the value has no place."""
        if NOWHERE in (self.span, self.value_span):
            raise ValueError(f"{self.name} is assembled from several places")
        return Edit(self.location.source, self.value_span, self.separator + quote_value(value, self.kind))


class Configuration(NamedTuple):
    """The keys that a configuration file sets, and notes on unreadable parts."""

    entries: tuple[Entry, ...] = ()
    notes: tuple[str, ...] = ()


def make_entry(
    source: Source,
    path: Sequence[str],
    value: str,
    offset: int,
    span: Span = NOWHERE,
    value_span: Span = NOWHERE,
    separator: str = "",
) -> Entry:
    """Return the entry whose nested keys are `path` and whose last key is at `offset`."""
    known = not RUNTIME_VALUE.search(value)
    return Entry(".".join(path), value, source.location(offset), span, value_span, known, source.kind, separator)
