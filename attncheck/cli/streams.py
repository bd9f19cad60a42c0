"""Standard streams that never raise: what could not be written is known at the end, and decides the exit code there.

A reader that goes away (`attncheck doctor | head -1`) has what it wanted: nothing changes, as in ripgrep (a tool that
dies of SIGPIPE ends with 141 or 0, depending on who was faster). Any other failure, as of a full disk, is one line.
Descriptors that are closed are filled, as by gnulib's `stdopen`, so that no file of ours becomes standard output;
a command that `attncheck run` becomes finds them closed again.
"""

import contextlib
import errno
import io
import os
import select
import sys
from typing import TextIO

from attncheck.core.io.streams import READABLE

# A closed one is opened the wrong way round: using it fails, as it would have.
_WRONG_WAYS = ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_RDONLY))


class OutputDescriptor(io.FileIO):
    """Standard output or standard error; `failure` is why something could not be written, "" if nothing was lost."""

    failure = ""

    def write(self, data: object) -> int:
        """Write what can be written; return how much is done with."""
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
            poll = select.poll()  # it does not block, as a parent may have set it: wait here
            poll.register(self.fileno(), select.POLLOUT)
            poll.poll()


def prepare_streams() -> None:
    """Fill the descriptors that are closed, and make standard output and standard error write whatever they can.

    A character that the encoding lacks is replaced (`core.io.streams.READABLE`). Another's streams are left alone.
    """
    _lost_outputs.clear()
    for descriptor, flags in _WRONG_WAYS:
        try:
            os.fstat(descriptor)
        except OSError:
            with contextlib.suppress(OSError):  # it is closed; the lowest free number is its own
                os.open(os.devnull, flags)
    if sys.stdout is sys.__stdout__:
        sys.stdout = _open_stream(1, sys.stdout)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _open_stream(2, sys.stderr)


_lost_outputs: list[str] = []  # the files that could not be written


def note_lost_output(failure: str) -> None:
    """Remember that a file of the report could not be written: the exit code says so."""
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
    """Flush a stream, and return why something could not be written to it; "" if nothing was lost."""
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    if stream is None or not isinstance(raw, OutputDescriptor):
        return ""
    stream.flush()
    return raw.failure
