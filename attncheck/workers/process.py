"""A child process with its own group, which no interrupt and no error of ours leaves behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO

from attncheck.core.errors import BadUsage

STDERR_TAIL = 8 << 10
# No library that we import may call home. (The static lane imports none, and must see the user's own settings.)
CHILD_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
_running: list[Process] = []


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C and SIGTERM back until the end of the block, so that no child starts or ends half known to us."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    before = {
        number: signal.signal(number, lambda received, frame: held.append(received))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if held:
        raise KeyboardInterrupt


def stop_all() -> None:
    """Kill every child that was started and may still run."""
    with uninterrupted():
        while _running:
            _running.pop().kill()


class Process:
    """An interpreter at work; its process group dies with it, or in `stop_all`."""

    def __init__(
        self, python: str, words: Sequence[str], environment: Mapping[str, str] | None, folder: str | None = None
    ) -> None:
        """Start `python` with `words` in `folder`, or where we are. Raises `BadUsage` where it cannot be started."""
        with uninterrupted():
            self._start(python, words, environment, folder)

    def _start(
        self, python: str, words: Sequence[str], environment: Mapping[str, str] | None, folder: str | None
    ) -> None:
        try:
            self._process = subprocess.Popen(
                [python, "-B", *words],  # -B: write no byte code into the environment
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=None if environment is None else {**os.environ, **environment},
                cwd=folder,
                start_new_session=True,
            )
        except OSError as error:
            raise BadUsage(f"cannot start the interpreter {python}: {error.strerror or error}") from None
        self._killed = False
        _running.append(self)
        self._stderr = b""
        self._threads = [threading.Thread(target=serve, daemon=True) for serve in self._servers()]
        for thread in self._threads:
            thread.start()

    def _servers(self) -> list[Callable[[], None]]:
        """Return what serves the child's streams, each in a thread of its own; the last one reads its errors."""
        return [self._read_errors]

    def _close_input(self) -> None:
        """Serve a child that is told nothing."""
        with contextlib.suppress(OSError), piped(self._process.stdin):
            pass

    @property
    def stderr(self) -> str:
        """The end of what the child wrote to standard error."""
        return self._stderr.decode("utf-8", "replace")

    @property
    def returncode(self) -> int | None:
        """How it ended, None while it runs."""
        return self._process.poll()

    def ended(self, seconds: float) -> bool:
        """Wait for its end, and say whether it came."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.returncode is not None

    def kill(self) -> None:
        """Kill whatever is left of the child's process group."""
        if self._killed:
            return
        self._killed = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2)

    def _read_errors(self) -> None:
        with contextlib.suppress(OSError, ValueError), piped(self._process.stderr) as stream:
            while chunk := stream.read1(1 << 16):  # type: ignore[attr-defined]
                self._stderr = (self._stderr + chunk)[-STDERR_TAIL:]


def ending(returncode: int, stderr: str) -> str:
    """Return in a few words how a child ended."""
    how = f"exit status {returncode}"
    if returncode < 0:
        with contextlib.suppress(ValueError):
            how = signal.Signals(-returncode).name
    last = stderr.strip().splitlines()[-1:] or ["no message"]
    return f"it ended with {how}: {last[0][:300]}"


@contextlib.contextmanager
def piped(stream: IO[bytes] | None) -> Iterator[IO[bytes]]:
    """Yield a child's stream, which is there because it was asked for, and close it."""
    assert stream is not None
    with stream:
        yield stream
