"""Reads one side of a comparison: a snapshot, a report or a lock, whichever a file holds."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from attncheck.core import codec
from attncheck.core.errors import BadUsage
from attncheck.core.files import read_bounded, read_standard_input
from attncheck.core.snapshot import SCHEMA_VERSION, Snapshot

if TYPE_CHECKING:
    from attncheck.gate.stack_diff.sides import StackSide

MAX_BYTES = 256 << 20


def read_side(path: str) -> StackSide:
    """Return the side that a file holds ("-": standard input). Raises `BadUsage` where it is none."""
    from attncheck.gate.lock.file import parse_lock
    from attncheck.gate.stack_diff.sides import make_lock_side, make_report_side, make_snapshot_side
    from attncheck.report import document

    data = read_standard_input(MAX_BYTES) if path == "-" else read_bounded(path, MAX_BYTES, pipes=True)
    source = _name_source(path)
    try:
        text = data.decode("utf-8")
        content = json.loads(text)
        if isinstance(content, dict) and "snapshot" in content:
            return make_report_side(document.loads(text), source)
        if isinstance(content, dict) and "lock_schema" in content:
            return make_lock_side(parse_lock(data, path), source)
        snapshot = codec.read(Snapshot, content)
    except (ValueError, RecursionError) as error:
        raise BadUsage(f"{path} is no snapshot, report or lock that attncheck wrote: {error}") from None
    if snapshot.schema_version > SCHEMA_VERSION:
        raise BadUsage(f"{path} was written by a newer attncheck ({snapshot.attncheck}): update attncheck")
    return make_snapshot_side(snapshot, source)


def _name_source(path: str) -> str:
    """Return the name of a file without what identifies a person or a site."""
    from attncheck.doctor.probes.payload.privacy import scrub

    return str(scrub("standard input" if path == "-" else os.path.normpath(path)))
