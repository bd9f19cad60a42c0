"""A forked child that answers over a pipe, costs only itself, and never outlives the process that wanted it.

A child is made with `os.fork`, so it starts with everything its parent has already imported. It gets a session of
its own (so that it can be killed with all it started), no terminal, an empty standard input, standard output thrown
away and standard error on a pipe. On Linux the kernel kills it when its parent dies, even inside a C call.
"""

from __future__ import annotations

import json
import os
import select
import signal
import struct
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterable, List, Optional, Set, Tuple

    Message = Dict[str, Any]
    Send = Callable[[Message], None]

MESSAGE_LIMIT = 4 << 20  # bytes; an answer is far smaller, a damaged length is not
TAIL = 16 << 10  # bytes kept of a child's standard error
LINUX = sys.platform.startswith("linux")
DUMP_SIGNAL = getattr(signal, "SIGURG", None)  # its default is to be ignored: harmless where nobody listens
_PDEATHSIG, _SUBREAPER = 1, 36  # linux/prctl.h: PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER


class Pipes:
    """The pipes between one child and the keeper: answers, standard error and commands."""

    def __init__(self) -> None:
        self.answers = os.pipe()
        self.errors = os.pipe()
        self.commands = os.pipe()
        for descriptor in (self.answers[0], self.errors[0]):
            os.set_blocking(descriptor, False)

    def keeper_side(self) -> Tuple[int, ...]:
        """Return the descriptors that only the keeper uses."""
        return self.answers[0], self.errors[0], self.commands[1]

    def child_side(self) -> Tuple[int, ...]:
        """Return the descriptors that only the child uses."""
        return self.answers[1], self.errors[1], self.commands[0]


class Inbox:
    """Puts together the messages that arrive in pieces on one descriptor."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, chunk: bytes) -> List[Message]:
        """Return the messages that `chunk` completes; a damaged stream gives none."""
        self._buffer += chunk
        found: List[Message] = []
        while len(self._buffer) >= 4:
            (size,) = struct.unpack(">I", self._buffer[:4])
            if size > MESSAGE_LIMIT:
                self._buffer = b""
                break
            if len(self._buffer) < 4 + size:
                break
            found += _parsed(self._buffer[4 : 4 + size])
            self._buffer = self._buffer[4 + size :]
        return found


def _parsed(text: bytes) -> List[Message]:
    try:
        message = json.loads(text.decode("utf-8"))
    except ValueError:
        return []
    return [message] if isinstance(message, dict) else []


def sender(descriptor: int) -> Send:
    """Return a function that writes one message to `descriptor`."""

    def send(message: Message) -> None:
        text = json.dumps(message).encode("ascii", "backslashreplace")
        data = struct.pack(">I", len(text)) + text
        while data:
            data = data[os.write(descriptor, data) :]

    return send


def fork() -> int:
    """Return what `os.fork` returns, without its warning about the threads that some libraries start."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return os.fork()


def prctl(option: int, value: int) -> None:
    """Ask the Linux kernel for one process setting; elsewhere do nothing."""
    if not LINUX:
        return
    try:
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
    except Exception:  # a C library without prctl: the keeper's pipes still notice a death, later
        return


def adopt_orphans() -> None:
    """Make this process the parent of every descendant whose own parent dies."""
    prctl(_SUBREAPER, 1)


def become_child(parent: int, pipes: Pipes, foreign: Iterable[int]) -> None:
    """Turn a process that has just been forked into a child: own session, own streams, bound to `parent`'s life."""
    os.setsid()
    prctl(_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died between the fork and the line above
        os._exit(1)
    _reset_signals()
    close_all(foreign)
    own_streams(pipes.errors[1])
    _no_core_file()


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGALRM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _no_core_file() -> None:
    """Forbid core files: 1 byte stops both a file and a handler such as systemd-coredump (core(5))."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    except (ImportError, OSError, ValueError):
        return


def own_streams(errors: Optional[int] = None) -> None:
    """Give this process an empty standard input, a discarded output, and `errors` (or nothing) as standard error."""
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.dup2(nothing if errors is None else errors, 2)
    if nothing > 2:
        os.close(nothing)
    sys.stdin = _stream(0, "r")
    sys.stdout, sys.stderr = _stream(1, "w"), _stream(2, "w")


def _stream(descriptor: int, mode: str) -> Any:
    return os.fdopen(descriptor, mode, 1, encoding="utf-8", errors="backslashreplace", closefd=False)


def close_all(descriptors: Iterable[int]) -> None:
    """Close `descriptors`, open or not."""
    for descriptor in descriptors:
        try:
            os.close(descriptor)
        except OSError:
            continue


def open_descriptors() -> Set[int]:
    """Return the descriptors above standard error that are open in this process."""
    for folder in ("/proc/self/fd", "/dev/fd"):
        try:
            return {int(name) for name in os.listdir(folder) if int(name) > 2}
        except (OSError, ValueError):
            continue
    return set(range(3, 1024))


def report_crashes(descriptor: int) -> None:
    """Have a crash, or DUMP_SIGNAL, write the Python frames to `descriptor`."""
    try:
        import faulthandler

        faulthandler.enable(file=descriptor, all_threads=False)
        if DUMP_SIGNAL is not None:
            faulthandler.register(DUMP_SIGNAL, file=descriptor, all_threads=False)
    except (ImportError, OSError, RuntimeError, ValueError):
        return


def kill_group(pid: int) -> None:
    """Kill a child and what it started in its session."""
    tell(-pid, signal.SIGKILL)
    tell(pid, signal.SIGKILL)


def tell(pid: int, number: int) -> None:
    """Send a signal to a process, or with a negative number to a group, that may be gone."""
    try:
        os.kill(pid, number)
    except OSError:
        return


def readable(descriptor: int, seconds: float) -> bool:
    """Say whether `descriptor` can be read (or has ended) within `seconds`."""
    poll = select.poll()  # not select(): descriptors may be numbered above 1023
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def bury() -> Optional[Tuple[int, int]]:
    """Return (pid, status) of a child of this process that has ended, its group killed; None where none has."""
    try:
        if hasattr(os, "waitid"):  # look first: until it is reaped nobody else can have its process id
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None:
                return None
            kill_group(found.si_pid)
            return os.waitpid(found.si_pid, 0)
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    if not pid:
        return None
    tell(-pid, signal.SIGKILL)
    return pid, status


def sweep(seconds: float = 2.0) -> None:
    """Kill every descendant that this process has adopted, until none is left."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for pid in children():
            kill_group(pid)
        while bury():
            continue
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        time.sleep(0.005)


def children() -> List[int]:
    """Return the children of this process, where the system can say."""
    pid = os.getpid()
    try:
        with open("/proc/%d/task/%d/children" % (pid, pid)) as stream:
            return [int(word) for word in stream.read().split()]
    except (OSError, ValueError):
        return _children_by_scan(pid) if LINUX else []


def _children_by_scan(parent: int) -> List[int]:
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open("/proc/%s/stat" % name, "rb") as stream:
                fields = stream.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if len(fields) > 1 and int(fields[1]) == parent:
            found.append(int(name))
    return found
