"""Reads a snapshot that `attncheck probe` wrote, perhaps on another machine."""

from __future__ import annotations

from attncheck.core import codec
from attncheck.core.errors import BadUsage
from attncheck.core.files import read_bounded, read_standard_input
from attncheck.core.snapshot import SCHEMA_VERSION, Snapshot

MAX_BYTES = 64 << 20


def read_facts(path: str) -> Snapshot:
    """Return the snapshot in a file written by `attncheck probe` ("-": standard input). Raises `BadUsage`."""
    data = read_standard_input(MAX_BYTES) if path == "-" else read_bounded(path, MAX_BYTES, pipes=True)
    try:
        snapshot = codec.loads(Snapshot, data.decode("utf-8"))
    except ValueError as error:  # BadDocument and UnicodeDecodeError
        raise BadUsage(f"{path} is not a snapshot written by `attncheck probe`: {error}") from None
    if snapshot.schema_version > SCHEMA_VERSION:
        raise BadUsage(
            f"{path} was written by attncheck {snapshot.attncheck} (schema {snapshot.schema_version}); "
            f"this one reads schema {SCHEMA_VERSION}: update attncheck"
        )
    return snapshot


def refuse_with_facts(**options: object) -> None:
    """Raise `BadUsage` for options about this machine beside --facts, which is about another one."""
    for name, value in options.items():
        if value:
            word = name if name.isupper() else f"--{name.replace('_', '-')}"
            raise BadUsage(
                f"--facts judges a recorded snapshot; {word} belongs on `attncheck probe`, where it was taken"
            )
