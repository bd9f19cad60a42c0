"""Writes a lock to its file and reads it back; any other file is an error in one line."""

import os
from dataclasses import replace

from attncheck.core import codec
from attncheck.core.io.errors import BadUsage
from attncheck.core.io.files import CannotRead, make_write_error, read_bounded, replace_file
from attncheck.core.io.outgoing import clean
from attncheck.core.lock import LOCK_SCHEMA, Lock

MAX_BYTES = 16 << 20


def write_lock(lock: Lock, path: str) -> None:
    """Write a lock to `path`; if only the date differs from the existing one, the file stays unchanged."""
    lock = clean(lock)
    if os.path.lexists(path):
        before = load_lock(path)  # a file that is not a lock is not overwritten
        if replace(before, date=lock.date) == lock:
            return
    try:
        replace_file(path, (codec.dumps(lock) + "\n").encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise make_write_error(f"the lock {path}", error) from None


def load_lock(path: str) -> Lock:
    """Return the lock in a file. Raises `BadUsage` if the file is missing, damaged, or of a newer attncheck."""
    try:
        data = read_bounded(path, MAX_BYTES)
    except CannotRead as error:
        hint = "; `attncheck lock` writes it" if error.is_missing else ""
        raise BadUsage(f"cannot read the lock {path}: {error.reason}{hint}") from None
    return parse_lock(data, path)


def parse_lock(data: bytes, path: str) -> Lock:
    """Return the lock in a file's content. Raises `BadUsage`."""
    try:
        document = codec.parse(data.decode("utf-8"))
        check_version(document, path)
        return codec.read(Lock, document)
    except (ValueError, RecursionError) as error:  # BadDocument, UnicodeDecodeError and invalid JSON
        raise BadUsage(f"{path} is not a lock written by `attncheck lock`: {error}") from None


def check_version(document: object, path: str) -> None:
    """Raise `BadUsage` if the lock was written by a newer attncheck, even if its structure is unknown."""
    version = document.get("lock_schema") if isinstance(document, dict) else None
    if type(version) is int and version > LOCK_SCHEMA:
        raise BadUsage(
            f"{path} was written by a newer attncheck (lock schema {version}); this one reads schema {LOCK_SCHEMA}: "
            "update attncheck"
        )
    if type(version) is int and version < LOCK_SCHEMA:
        raise BadUsage(f"{path} has lock schema {version}, which no attncheck wrote; write it again: `attncheck lock`")
