"""A child process in its own process group, which no interrupt and no error leaves running."""

import contextlib
import errno
import functools
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import IO

from attncheck.core.io import interrupts
from attncheck.core.io.errors import BadUsage, Unanswered
from attncheck.workers.forked import ForkedProcess
from attncheck.workers.scratch import empty_folder, remove_empty_folder
from attncheck.workers.stacks import describe_crash

STDERR_TAIL = 32 << 10
# No library that we import may send telemetry. (The static lane imports none, and must read the user's own settings.)
CHILD_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
# The user's working folder, for file names that a child is given, because it does not start there.
FOLDER_VARIABLE = "ATTNCHECK_WORKING_FOLDER"
# The system's errors for a lack of resources, which concern any program.
_EXHAUSTED = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT}
PR_SET_PDEATHSIG = 1
UNCAUGHT = 1  # exit status of a Python that ended with an uncaught error
ERROR_LINE = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \t].*\n)*(\S.*)", re.MULTILINE)
_started: "list[Process]" = []


@contextlib.contextmanager
def defer_signals() -> Iterator[None]:
    """Delay Ctrl-C, SIGTERM and SIGHUP until the end of the block, so that every started child is recorded."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received_signals: list[int] = []
    handlers = {
        number: signal.signal(number, lambda received, frame: received_signals.append(received))
        for number in interrupts.STOP_SIGNALS
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if received_signals:
        raise KeyboardInterrupt


def kill_all(kept: "Collection[Process]" = ()) -> None:
    """Kill every started child that may still run, except `kept`."""
    with defer_signals():
        for process in [process for process in reversed(_started) if process not in kept]:
            process.kill()


class Process:
    """A running interpreter; its process group is killed with it, at the latest by `kill_all`."""

    options: Sequence[str] = ("-B",)  # do not write byte code into the environment
    _stdin = subprocess.PIPE

    def __init__(
        self, python: str, arguments: Sequence[str], environment: Mapping[str, str] | None, folder: str | None = None
    ) -> None:
        """Start `python` with `arguments` in `folder`, by default an empty one that shadows no import.

        Raises `BadUsage` if it cannot be started, `Unanswered` if no program can.
        """
        with defer_signals():
            self._start(python, arguments, environment, folder)

    def _start(
        self, python: str, arguments: Sequence[str], environment: Mapping[str, str] | None, folder: str | None
    ) -> None:
        self._process: subprocess.Popen[bytes] | ForkedProcess = self._open(python, arguments, environment, folder)
        self._killed = False
        _started.append(self)
        self._stderr = b""
        self._threads = [threading.Thread(target=handler, daemon=True) for handler in self._stream_handlers()]
        for thread in self._threads:
            thread.start()

    def _open(
        self, python: str, arguments: Sequence[str], environment: Mapping[str, str] | None, folder: str | None
    ) -> subprocess.Popen[bytes] | ForkedProcess:
        """Start the program."""
        try:
            return subprocess.Popen(
                [absolute_program(python), *self.options, *arguments],
                stdin=self._stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**_isolated_environment(), **(environment or {})},
                cwd=folder or empty_folder(),
                start_new_session=True,
                preexec_fn=_end_with_parent(),
            )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            exhausted = isinstance(error, OSError) and error.errno in _EXHAUSTED
            raise (Unanswered if exhausted else BadUsage)(f"cannot start the interpreter {python}: {reason}") from None

    def _stream_handlers(self) -> list[Callable[[], None]]:
        """Return the functions that handle the child's streams, one thread each; the last reads standard error."""
        return [self._read_stderr]

    def _close_stdin(self) -> None:
        """Close the standard input of a child that gets no input."""
        with contextlib.suppress(OSError), closing_stream(self._process.stdin):
            pass

    @property
    def stderr(self) -> str:
        """The end of the child's standard error."""
        return self._stderr.decode("utf-8", "replace")

    @property
    def pid(self) -> int:
        """Its process number."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit status (negative: a signal), None while it runs."""
        return self._process.poll()

    def wait_for_exit(self, seconds: float) -> bool:
        """Wait up to `seconds` for the child to end, and return whether it has."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.returncode is not None

    def kill(self) -> None:
        """Kill the rest of the child's process group."""
        if self._killed:
            return
        self._killed = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2)
        if self in _started:
            _started.remove(self)
        if not _started:
            remove_empty_folder()

    def _read_stderr(self) -> None:
        with contextlib.suppress(OSError, ValueError), closing_stream(self._process.stderr) as stream:
            while chunk := stream.read1(1 << 16):  # type: ignore[attr-defined]
                self._stderr = (self._stderr + chunk)[-STDERR_TAIL:]


def _end_with_parent() -> Callable[[], object] | None:
    """Return a function that a child calls before it starts its program: on Linux it dies with us (prctl(2))."""
    if sys.platform != "linux":
        return None
    import ctypes

    return functools.partial(ctypes.CDLL(None).prctl, PR_SET_PDEATHSIG, signal.SIGKILL)


def absolute_program(program: str) -> str:
    """Return a program's path so that it is valid in another folder; a bare name is searched on PATH."""
    return os.path.abspath(program) if os.path.dirname(program) else program


def _isolated_environment() -> dict[str, str]:
    """Return our environment for a child in another folder: relative names in PYTHONPATH become absolute.

    An empty entry, and ".", mean the folder that Python starts in: they are kept, and mean the child's empty one.
    """
    environment = dict(os.environ)
    with contextlib.suppress(OSError):  # the working folder no longer exists
        environment[FOLDER_VARIABLE] = os.getcwd()
        if "PYTHONPATH" in environment:
            entries = environment["PYTHONPATH"].split(os.pathsep)
            environment["PYTHONPATH"] = os.pathsep.join(map(_absolute_entry, entries))
    return environment


def _absolute_entry(entry: str) -> str:
    return entry if os.path.normpath(entry) == "." else os.path.abspath(entry)


def describe_exit(returncode: int, stderr: str) -> str:
    """Return in a few words how a child ended: signal or exit status, place, the last line of standard error.

    For an uncaught error it is the error's own line; notes may follow it, such as those of Python 3.14's json.
    """
    how = f"exit status {returncode}"
    if returncode < 0:
        with contextlib.suppress(ValueError):
            how = signal.Signals(-returncode).name
    where, last_line = describe_crash(stderr)
    if returncode == UNCAUGHT and (errors := ERROR_LINE.findall(stderr)):
        last_line = errors[-1][:300]
    if where:
        how += f" in {where}"
    return f"it ended with {how}" if where and not last_line else f"it ended with {how}: {last_line or 'no message'}"


@contextlib.contextmanager
def closing_stream(stream: IO[bytes] | None) -> Iterator[IO[bytes]]:
    """Yield a child's stream, opened as a pipe, and close it."""
    assert stream is not None
    with stream:
        yield stream
