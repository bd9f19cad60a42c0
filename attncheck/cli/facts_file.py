"""Reads a snapshot that `attncheck probe` wrote, possibly on another machine."""

from attncheck.core import codec
from attncheck.core.io.errors import BadUsage
from attncheck.core.io.files import read_named
from attncheck.core.snapshot import SCHEMA_VERSION, Snapshot

MAX_BYTES = 64 << 20


def read_facts(path: str) -> Snapshot:
    """Return the snapshot in a file written by `attncheck probe` ("-": standard input). Raises `BadUsage`."""
    data = read_named(path, MAX_BYTES)
    try:
        snapshot = codec.loads(Snapshot, data.decode("utf-8"))
    except ValueError as error:  # BadDocument and UnicodeDecodeError
        raise BadUsage(f"{path} is not a snapshot written by `attncheck probe`: {error}") from None
    refuse_newer(path, snapshot)
    return snapshot


def refuse_newer(path: str, snapshot: Snapshot) -> None:
    """Raise `BadUsage` for a snapshot that a newer attncheck wrote."""
    if snapshot.schema_version > SCHEMA_VERSION:
        raise BadUsage(
            f"{path} was written by attncheck {snapshot.attncheck} (schema {snapshot.schema_version}); "
            f"this one reads schema {SCHEMA_VERSION}: update attncheck"
        )
