"""Forked child processes: pipes and messages, start-up, signals, reaping; no child outlives its parent.

A child is made with `os.fork`, so it starts with everything that its parent has already imported. It gets its own
session (so that it can be killed with all its children), no terminal, and an empty standard input. Its standard output
is discarded, and its standard error goes to a pipe. On Linux the kernel kills it when its parent dies, even inside a C
call.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import struct
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterable, Iterator

    Message = Dict[str, Any]
    Send = Callable[[Message], None]

MESSAGE_LIMIT = 4 << 20  # bytes; answers are far smaller, a damaged length is not
STDERR_TAIL = 16 << 10  # bytes kept of a child's standard error
IS_LINUX = sys.platform.startswith("linux")
DUMP_SIGNAL = getattr(
    signal, "SIGURG", None
)  # ignored by default, so it is harmless in a process that does not handle it
_PDEATHSIG, _SUBREAPER = 1, 36  # linux/prctl.h: PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER


class Pipes:
    """The pipes between one child and the supervisor: answers, standard error and commands."""

    def __init__(self) -> None:
        self.answers = os.pipe()
        self.stderr = os.pipe()
        self.commands = os.pipe()
        for descriptor in (self.answers[0], self.stderr[0]):
            os.set_blocking(descriptor, False)

    def supervisor_descriptors(self) -> tuple[int, ...]:
        """Return the descriptors that only the supervisor uses."""
        return self.answers[0], self.stderr[0], self.commands[1]

    def child_descriptors(self) -> tuple[int, ...]:
        """Return the descriptors that only the child uses."""
        return self.answers[1], self.stderr[1], self.commands[0]


class MessageDecoder:
    """Decodes length-prefixed JSON messages that arrive in pieces on one descriptor."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, chunk: bytes) -> list[Message]:
        """Return the messages that `chunk` completes; a damaged stream gives none."""
        self._buffer += chunk
        messages: list[Message] = []
        while len(self._buffer) >= 4:
            (size,) = struct.unpack(">I", self._buffer[:4])
            if size > MESSAGE_LIMIT:
                self._buffer = b""
                break
            if len(self._buffer) < 4 + size:
                break
            messages += _parse_message(self._buffer[4 : 4 + size])
            self._buffer = self._buffer[4 + size :]
        return messages


def _parse_message(data: bytes) -> list[Message]:
    try:
        message = json.loads(data.decode("utf-8"))
    except ValueError:
        return []
    return [message] if isinstance(message, dict) else []


def make_sender(descriptor: int) -> Send:
    """Return a function that sends one message to `descriptor`."""

    def send(message: Message) -> None:
        body = json.dumps(message).encode("ascii", "backslashreplace")
        data = struct.pack(">I", len(body)) + body
        while data:
            data = data[os.write(descriptor, data) :]

    return send


def fork() -> int:
    """Return the result of `os.fork`, without its warning about threads that some libraries start."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return os.fork()


def prctl(option: int, value: int) -> None:
    """Set one option of this process with Linux's prctl(2); on other systems do nothing."""
    if not IS_LINUX:
        return
    try:
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
    except Exception:  # the C library lacks prctl; the supervisor's pipes still detect a death, but later
        return


def adopt_orphans() -> None:
    """Make this process the parent of every descendant whose own parent dies (Linux's child subreaper)."""
    prctl(_SUBREAPER, 1)


@contextlib.contextmanager
def adopting_orphans() -> Iterator[None]:
    """Within the block, adopt every descendant whose own parent dies, and kill all of them at the end."""
    before = set(list_children())
    prctl(_SUBREAPER, 1)
    try:
        yield
    finally:
        end_time = time.monotonic() + 2.0
        while time.monotonic() < end_time:
            adopted = [pid for pid in list_children() if pid not in before]
            for pid in adopted:
                kill_process_group(pid)
                try:
                    os.waitpid(pid, os.WNOHANG)
                except ChildProcessError:
                    continue
            if not adopted:
                break
            time.sleep(0.005)
        prctl(_SUBREAPER, 0)


def set_up_child(parent: int, pipes: Pipes, unneeded: Iterable[int]) -> None:
    """Set up a process that has just been forked: own session, own streams, killed when `parent` dies."""
    os.setsid()
    prctl(_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died between the fork and the line above
        os._exit(1)
    _reset_signals()
    close_descriptors(unneeded)
    replace_standard_streams(pipes.stderr[1])
    _disable_core_dumps()


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for signal_number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGALRM, signal.SIGHUP):
        signal.signal(signal_number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _disable_core_dumps() -> None:
    """Prevent core dumps: a limit of 1 byte stops files and handlers such as systemd-coredump (core(5))."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    except (ImportError, OSError, ValueError):
        return


def replace_standard_streams(stderr: int | None = None) -> None:
    """Give this process an empty standard input, a discarded output, and `stderr` (or nothing) as standard error."""
    null_device = os.open(os.devnull, os.O_RDWR)
    os.dup2(null_device, 0)
    os.dup2(null_device, 1)
    os.dup2(null_device if stderr is None else stderr, 2)
    if null_device > 2:
        os.close(null_device)
    sys.stdin = _open_stream(0, "r")
    sys.stdout, sys.stderr = _open_stream(1, "w"), _open_stream(2, "w")


def _open_stream(descriptor: int, mode: str) -> Any:
    return os.fdopen(descriptor, mode, 1, encoding="utf-8", errors="backslashreplace", closefd=False)


def close_descriptors(descriptors: Iterable[int]) -> None:
    """Close `descriptors`, ignoring those that are not open."""
    for descriptor in descriptors:
        try:
            os.close(descriptor)
        except OSError:
            continue


def list_open_descriptors() -> set[int]:
    """Return the descriptors above standard error that are open in this process."""
    for folder in ("/proc/self/fd", "/dev/fd"):
        try:
            return {int(name) for name in os.listdir(folder) if int(name) > 2}
        except (OSError, ValueError):
            continue
    return set(range(3, 1024))


def enable_crash_dumps(descriptor: int) -> None:
    """Make faulthandler write the Python frames to `descriptor` on a crash, or on DUMP_SIGNAL."""
    try:
        import faulthandler

        faulthandler.enable(file=descriptor, all_threads=False)
        if DUMP_SIGNAL is not None:
            faulthandler.register(DUMP_SIGNAL, file=descriptor, all_threads=False)
    except (ImportError, OSError, RuntimeError, ValueError):
        return


def kill_process_group(pid: int) -> None:
    """Kill a child and everything in its session."""
    send_signal(-pid, signal.SIGKILL)
    send_signal(pid, signal.SIGKILL)


def send_signal(pid: int, signal_number: int) -> None:
    """Send a signal to a process, or with a negative number to a group, which may no longer exist."""
    try:
        os.kill(pid, signal_number)
    except OSError:
        return


def is_readable(descriptor: int, seconds: float) -> bool:
    """Return whether `descriptor` becomes readable (or has ended) within `seconds`."""
    poll = select.poll()  # not select(), because descriptors may be above 1023
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def reap_child() -> tuple[int, int] | None:
    """Reap a child of this process that has ended, kill its group, and return (pid, status); None if there is none."""
    try:
        if hasattr(os, "waitid"):  # not reaped yet, so that no other process can get its process id
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return None
            kill_process_group(ended.si_pid)
            return os.waitpid(ended.si_pid, 0)
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    if not pid:
        return None
    send_signal(-pid, signal.SIGKILL)
    return pid, status


def kill_descendants(seconds: float = 2.0) -> None:
    """Kill every descendant that this process has adopted, until none is left."""
    end_time = time.monotonic() + seconds
    while time.monotonic() < end_time:
        for pid in list_children():
            kill_process_group(pid)
        while reap_child():
            continue
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        time.sleep(0.005)


def list_children() -> list[int]:
    """Return the process ids of this process's children, if the system provides them."""
    pid = os.getpid()
    try:
        with open("/proc/%d/task/%d/children" % (pid, pid)) as stream:
            return [int(word) for word in stream.read().split()]
    except (OSError, ValueError):
        return _scan_for_children(pid) if IS_LINUX else []


def _scan_for_children(parent: int) -> list[int]:
    pids = []
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            with open("/proc/%s/stat" % name, "rb") as stream:
                fields = stream.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if len(fields) > 1 and int(fields[1]) == parent:
            pids.append(int(name))
    return pids
