"""One key of a configuration file: a setting that knows the syntax of its file, so that it can be written again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from attncheck.core.launch import NOWHERE, Kind, Setting, Source, Span

ONLY_RUNNING = re.compile(r"\$\{|\{\{|^\?\?\?$")  # interpolation (Hydra, Jinja) and Hydra's "must be given"
DEEPEST = 60  # tables within tables
MOST = 20_000  # keys of one file: aliases of aliases grow without end


@dataclass(frozen=True)
class Entry(Setting):
    """A `Setting` of a file of `kind`."""

    kind: Kind = "yaml"


@dataclass(frozen=True)
class Read:
    """What a file sets, and what of it could not be read."""

    entries: tuple[Entry, ...] = ()
    notes: tuple[str, ...] = ()


def entry(
    source: Source, path: Sequence[str], value: str, offset: int, span: Span = NOWHERE, value_span: Span = NOWHERE
) -> Entry:
    """Return the entry at `path`, whose key stands at `offset`."""
    known = not ONLY_RUNNING.search(value)
    return Entry(".".join(path), value, source.location(offset), span, value_span, known, source.kind)
