"""One key of a configuration file: a setting that knows the syntax of its file, so that it can be edited."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from attncheck.core.launch import NOWHERE, Kind, Setting, Source, Span

RUNTIME_VALUE = re.compile(r"\$\{|\{\{|^\?\?\?$")  # interpolation (Hydra, Jinja) and Hydra's "must be given"
MAX_DEPTH = 60  # tables within tables
MAX_KEYS = 20_000  # keys of one file: aliases of aliases grow without end


@dataclass(frozen=True)
class Entry(Setting):
    """One key of a configuration file of `kind` (YAML, JSON or TOML) with its value and their spans."""

    kind: Kind = "yaml"


@dataclass(frozen=True)
class Configuration:
    """The keys that a configuration file sets, and notes on what could not be read."""

    entries: tuple[Entry, ...] = ()
    notes: tuple[str, ...] = ()


def make_entry(
    source: Source, path: Sequence[str], value: str, offset: int, span: Span = NOWHERE, value_span: Span = NOWHERE
) -> Entry:
    """Return the entry whose nested keys are `path` and whose last key stands at `offset`."""
    known = not RUNTIME_VALUE.search(value)
    return Entry(".".join(path), value, source.location(offset), span, value_span, known, source.kind)
