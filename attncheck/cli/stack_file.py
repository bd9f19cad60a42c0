"""Reads one side of a comparison from a file: a snapshot, a report or a lock."""

import os
from typing import TYPE_CHECKING

from attncheck.cli.facts_file import refuse_newer
from attncheck.core import codec
from attncheck.core.io.errors import BadUsage
from attncheck.core.io.files import read_named
from attncheck.core.snapshot import Snapshot

if TYPE_CHECKING:
    from attncheck.stacks.diff.sides import StackSide

MAX_BYTES = 256 << 20


def read_side(path: str) -> "StackSide":
    """Return the side that a file contains ("-": standard input). Raises `BadUsage` if it contains none."""
    from attncheck.report import document
    from attncheck.stacks.diff.sides import make_lock_side, make_report_side, make_snapshot_side
    from attncheck.stacks.lock.file import parse_lock

    data = read_named(path, MAX_BYTES)
    source = _name_source(path)
    try:
        content = codec.parse(data.decode("utf-8"))
        if isinstance(content, dict) and "snapshot" in content:
            return make_report_side(document.from_document(content), source)
        if isinstance(content, dict) and "lock_schema" in content:
            return make_lock_side(parse_lock(data, path), source)
        snapshot = codec.read(Snapshot, content)
    except (ValueError, RecursionError) as error:
        raise BadUsage(f"{path} is not a snapshot, report or lock written by attncheck: {error}") from None
    refuse_newer(path, snapshot)
    return make_snapshot_side(snapshot, source)


def _name_source(path: str) -> str:
    """Return the name of a file without parts that identify a person or a site."""
    from attncheck.doctor.probes.payload.privacy import scrub

    return str(scrub("standard input" if path == "-" else os.path.normpath(path)))
