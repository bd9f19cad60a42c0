"""Reads files that a user names or that are next to a launch, and replaces files: bounded and safe.

Nothing here waits forever, takes more memory than its limit, or opens a device. Opening some devices has an effect (a
tape rewinds, a watchdog starts), so the kind of a file is checked first.
"""

import errno
import os
import select
import stat
import sys
import time
from contextlib import suppress

from attncheck.core.io.errors import AttncheckError, BadUsage, Unanswered

FIRST_BYTE_SECONDS = 10.0  # timeout for a named pipe, which may have no writer
STREAM_SECONDS = 600.0  # timeout for a pipe with a writer: `attncheck probe` on the other side may import for minutes
CHUNK_BYTES = 1 << 16
MAX_TEXT_BYTES = 1 << 22  # a uv.lock may have more than 1 MB
# The shell's names for descriptors that it passes: `<(…)` is /dev/fd/63.
DESCRIPTOR_FOLDERS = ("/dev/fd/", "/proc/self/fd/")
STANDARD_INPUT = ("/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")


# A mistyped path, or one that this user may not write. Other errors, such as a full disk, are not the user's fault.
WRONG_PATH = (
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL),
)


def make_write_error(name: str, error: OSError) -> AttncheckError:
    """Return the error for a file that could not be written: `BadUsage` for a wrong path, otherwise `Unanswered`."""
    kind = BadUsage if error.errno in WRONG_PATH else Unanswered
    return kind(f"cannot write {name}: {error.strerror or error}")


class CannotRead(BadUsage):
    """A file that cannot be read; `is_missing` if no file has that name."""

    def __init__(self, name: str, reason: str, is_missing: bool = False) -> None:
        super().__init__(f"cannot read {name if name.isprintable() else ascii(name)}: {reason}")
        self.reason = reason
        self.is_missing = is_missing


def read_bounded(path: str | os.PathLike[str], limit: int, pipes: bool = False) -> bytes:
    """Return the bytes of a regular file of at most `limit` bytes. Raises `CannotRead` for anything else.

    With `pipes`, also reads a named pipe, a descriptor (`<(…)`) or standard input: for files that a user names, but
    not for those that a user's file names.
    """
    name = os.fspath(path)
    try:
        if pipes and name in STANDARD_INPUT:
            return read_standard_input(limit, name)
        _check_kind(name, os.stat(name).st_mode, pipes)
        descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            status = os.fstat(descriptor)  # the file may have been replaced since
            _check_kind(name, status.st_mode, pipes)
            if not stat.S_ISREG(status.st_mode):
                is_named = not name.startswith(DESCRIPTOR_FOLDERS)
                return _read_stream(descriptor, name, limit, FIRST_BYTE_SECONDS if is_named else STREAM_SECONDS)
            if status.st_size > limit:
                raise _too_large(name, limit)
            return _read_all(descriptor, name, limit)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        if os.path.islink(name):
            raise CannotRead(name, "a link to a file that does not exist") from None
        raise CannotRead(name, os.strerror(errno.ENOENT), is_missing=True) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise CannotRead(name, getattr(error, "strerror", None) or str(error)) from None


def read_named(path: str, limit: int) -> bytes:
    """Return the bytes of a file, a pipe, or standard input ("-") that a user names. Raises `CannotRead`."""
    return read_standard_input(limit) if path == "-" else read_bounded(path, limit, pipes=True)


def read_standard_input(limit: int, name: str = "standard input") -> bytes:
    """Return the bytes of standard input, at most `limit`. Raises `CannotRead`."""
    if sys.stdin is None:
        raise CannotRead(name, "it is closed")
    try:
        descriptor = sys.stdin.fileno()
    except (OSError, ValueError):  # it was replaced by an in-memory stream
        return sys.stdin.buffer.read(limit + 1)
    try:
        # A person at a terminal may take any time.
        seconds = float("inf") if os.isatty(descriptor) else STREAM_SECONDS
        return _read_stream(descriptor, name, limit, seconds, seconds)
    except OSError as error:
        raise CannotRead(name, error.strerror or str(error)) from None


def read_text(path: str | os.PathLike[str]) -> str:
    """Return the text of a small file; "" if it cannot be read."""
    try:
        return read_bounded(path, MAX_TEXT_BYTES).decode("utf-8", "replace")
    except CannotRead:
        return ""


def _check_kind(name: str, mode: int, pipes: bool) -> None:
    """Raise `CannotRead` unless the file is regular, or a pipe if `pipes` allows one."""
    if stat.S_ISDIR(mode):
        raise CannotRead(name, os.strerror(errno.EISDIR))
    if stat.S_ISREG(mode) or (pipes and stat.S_ISFIFO(mode)):
        return
    if pipes and name.startswith(DESCRIPTOR_FOLDERS) and stat.S_ISSOCK(mode):
        return
    kind = "a named pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"
    raise CannotRead(name, f"{kind}, not a file")


def _too_large(name: str, limit: int) -> CannotRead:
    return CannotRead(name, f"it is larger than {limit >> 20} MiB")


def _read_all(descriptor: int, name: str, limit: int) -> bytes:
    """Return a regular file's bytes. Files in /proc report no size before they are read."""
    chunks: list[bytes] = []
    size = 0
    while chunk := os.read(descriptor, CHUNK_BYTES):
        chunks.append(chunk)
        size += len(chunk)
        if size > limit:
            raise _too_large(name, limit)
    return b"".join(chunks)


def _read_stream(
    descriptor: int, name: str, limit: int, first_seconds: float, seconds: float = STREAM_SECONDS
) -> bytes:
    """Return a pipe's data up to its end: the first byte within `first_seconds`, everything within `seconds`."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    chunks: list[bytes] = []
    size, began = 0, time.monotonic()
    while True:
        allowed = seconds if chunks else first_seconds
        left = None if allowed == float("inf") else 1000 * max(0.0, began + allowed - time.monotonic())
        if not poll.poll(left):
            reason = "this pipe was not closed" if chunks else "no data arrived through this pipe"
            raise CannotRead(name, f"{reason} within {allowed:g} s")
        with suppress(BlockingIOError):
            chunk = os.read(descriptor, CHUNK_BYTES)
            if not chunk:
                return b"".join(chunks)
            chunks.append(chunk)
            size += len(chunk)
            if size > limit:
                raise _too_large(name, limit)


def replace_file(path: str | os.PathLike[str], data: bytes, mode: int | None = None) -> None:
    """Write a file completely or not at all: a reader sees either the old or the new contents. Raises `OSError`.

    The file keeps its mode, or gets `mode` if it is new. If `path` is a link, its target is replaced. The temporary
    file has an unpredictable name and is created here, so a link that someone prepared is not followed.
    """
    target = os.path.realpath(path)
    temporary = os.path.join(os.path.dirname(target), f".attncheck-{os.urandom(8).hex()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o600 if mode is not None else 0o666)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        if mode is None:
            with suppress(FileNotFoundError):
                mode = stat.S_IMODE(os.stat(target).st_mode)
        if mode is not None:
            os.chmod(temporary, mode)
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
