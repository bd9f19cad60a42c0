"""Standard streams that never raise: a failed write is remembered, and decides the exit code at the end.

A reader that stops early (`attncheck doctor | head -1`) has what it needs, so it changes nothing, as in ripgrep (a tool
that dies of SIGPIPE ends with 141 or 0, depending on which side was faster). Any other failure, such as a full disk, is
reported in one line. Closed descriptors are opened, as by gnulib's `stdopen`, so that no file of ours becomes standard
output. A command that `attncheck run` becomes finds them closed again.
"""

import contextlib
import errno
import io
import os
import select
import sys
from typing import TextIO

from attncheck.core.io.streams import READABLE

# A closed descriptor is opened in the wrong direction: using it fails, as it would have when closed.
_WRONG_WAYS = ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_RDONLY))


class OutputDescriptor(io.FileIO):
    """Standard output or standard error; `failure` is why a write failed, "" if nothing was lost."""

    failure = ""

    def write(self, data: object) -> int:
        """Write as much as possible; return how many bytes need no further attempt."""
        size = len(memoryview(data))  # type: ignore[arg-type]
        while True:
            try:
                written: int | None = super().write(data)  # type: ignore[arg-type]
            except BrokenPipeError:
                return size
            except OSError as error:
                reason = "it is closed" if error.errno == errno.EBADF else error.strerror or str(error)
                self.failure = self.failure or reason
                return size
            if written is not None:
                return written
            poll = select.poll()  # the descriptor is non-blocking, possibly set by a parent: wait here
            poll.register(self.fileno(), select.POLLOUT)
            poll.poll()


def prepare_streams() -> None:
    """Open the descriptors that are closed, and make standard output and standard error write whatever they can.

    A character that the encoding lacks is replaced (`core.io.streams.READABLE`). Streams that someone else installed
    are not changed.
    """
    _lost_outputs.clear()
    for descriptor, flags in _WRONG_WAYS:
        try:
            os.fstat(descriptor)
        except OSError:
            with contextlib.suppress(OSError):  # it is closed, so the lowest free number is its own
                os.open(os.devnull, flags)
    if sys.stdout is sys.__stdout__:
        sys.stdout = _open_stream(1, sys.stdout)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _open_stream(2, sys.stderr)


_lost_outputs: list[str] = []  # files that could not be written


def note_lost_output(failure: str) -> None:
    """Remember that a file of the report could not be written; this affects the exit code."""
    _lost_outputs.append(failure)


def has_lost_output() -> bool:
    """Return whether a file of the report could not be written."""
    return bool(_lost_outputs)


def _open_stream(descriptor: int, previous: TextIO | None) -> TextIO:
    if previous is not None:
        previous.flush()
    raw = OutputDescriptor(descriptor, "w", closefd=False)
    encoding = previous.encoding if previous is not None else "utf-8"
    by_line = descriptor == 2 or raw.isatty()
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding, READABLE, line_buffering=by_line)


def find_failure(stream: TextIO | None) -> str:
    """Flush a stream, and return why a write to it failed; "" if nothing was lost."""
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    if stream is None or not isinstance(raw, OutputDescriptor):
        return ""
    stream.flush()
    return raw.failure
