"""Runs one command in the strongest isolation that this kernel grants, and ends all of its processes.

It is started as a program with one argument, JSON (`Request`). Standard input is a lifeline: a byte requests the
command's end, and its closing means that the caller has died. The report file then holds, as JSON, how files, the
network and processes were isolated, and which writes an overlay kept. The exit status is the command's, 128 + N if
signal N ended it, and 125 if it was not started.
"""

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from . import calls, children, landlock, metadata, mounts

NOT_STARTED = 125
GRACE_SECONDS = 5.0  # for a launcher to end its processes
MAX_CHANGES = 500  # the most that are reported
SHARED = calls.CLONE_NEWNS | calls.CLONE_NEWNET | calls.CLONE_NEWIPC | calls.CLONE_NEWUTS
# The strongest first. A container may not grant a new /proc, which a PID namespace needs; root may lack user
# namespaces.
ATTEMPTS = (
    SHARED | calls.CLONE_NEWUSER | calls.CLONE_NEWPID,
    SHARED | calls.CLONE_NEWPID,
    SHARED | calls.CLONE_NEWUSER,
    SHARED,
)
TRUNCATION_KNOWN = 3  # the first Landlock version that covers truncation
# For files' owners; KILL, SETGID, SETUID, IPC_LOCK, SYS_NICE. DAC_READ_SEARCH would open files by their handles.
KEPT_CAPABILITIES = (0, 1, 3, 4, 5, 6, 7, 14, 23)
CAPABILITIES = 64
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
HOST_NAME = "localhost"  # ranks meet by this name: the machine's own name leads to an unreachable address
CLOSED_PROXY = "http://127.0.0.1:9"  # the discard port, on which nothing listens
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
LOCAL = "localhost,127.0.0.1,::1"


class Request:
    """The command to run, and its permissions.

    `command`: its words. `writable`: folders that it may write to. `overlaid`: folders with an overlay. `uppers`: an
    empty folder. `report`: a file. `means`: which of "namespaces" and "landlock" may be used. `needs_files`: the
    command starts only if files are protected.
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.command: list[str] = document["command"]
        self.writable: list[str] = document["writable"]
        self.overlaid: list[str] = document["overlaid"]
        self.uppers: str = document["uppers"]
        self.means: list[str] = document["means"]
        self.needs_files: bool = document["needs_files"]
        self.report = os.open(document["report"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self.sockets = mounts.list_sockets()  # sockets of this network namespace


def main() -> None:
    """Run the request's command, and exit with its status."""
    request = Request(json.loads(sys.argv[1]))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the signal is meant for the command
    for flags in (*(ATTEMPTS if "namespaces" in request.means else ()), 0):
        status = _attempt(flags, request)
        if status is not None:
            sys.exit(status)
    sys.exit(NOT_STARTED)


def _attempt(flags: int, request: Request) -> int | None:
    """Run the command in new namespaces; return its exit status, None if they are not available."""
    news_end, news = os.pipe()
    mapped, tell_mapped = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(news_end)
        os.close(tell_mapped)
        _enter(flags, request, news, mapped)
    os.close(news)
    os.close(mapped)
    is_ready = False
    while message := os.read(news_end, 1):
        if message == b"u":  # it has left our namespaces
            if flags & calls.CLONE_NEWUSER:
                _map_users(pid)
            os.write(tell_mapped, b"m")
        is_ready = is_ready or message == b"r"
    os.close(news_end)
    os.close(tell_mapped)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return (status if status >= 0 else 128 - status) if is_ready else None


def _map_users(pid: int) -> None:
    """Map all users and groups into a process's new user namespace, or only its own if that is refused."""
    for name, own in (("gid", os.getegid()), ("uid", os.geteuid())):
        with open(f"/proc/self/{name}_map") as stream:
            ranges = [line.split() for line in stream]
        try:
            _write(f"/proc/{pid}/{name}_map", "".join(f"{inner} {inner} {count}\n" for inner, _, count in ranges))
        except OSError:
            with contextlib.suppress(OSError):
                if name == "gid":
                    _write(f"/proc/{pid}/setgroups", "deny")
                _write(f"/proc/{pid}/{name}_map", f"{own} {own} 1\n")


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _enter(flags: int, request: Request, news: int, mapped: int) -> NoReturn:
    """Leave the namespaces, isolate, and run the command. Never return."""
    status = NOT_STARTED
    try:
        os.setpgid(0, 0)  # so that a signal to the supervisor's group does not kill the process that ends the others
        if flags:
            calls.unshare(flags)
            os.write(news, b"u")
            if not os.read(mapped, 1):
                os._exit(NOT_STARTED)
        os.close(mapped)
        is_init = bool(flags & calls.CLONE_NEWPID)
        with contextlib.suppress(OSError):  # outside Linux only the lifeline shows it
            calls.prctl(calls.PR_SET_PDEATHSIG, signal.SIGKILL if is_init else signal.SIGTERM)
        if is_init:
            _become_init(news)
        status = _Init(flags, request, news, is_init).run()
    except BaseException as error:
        os.write(2, f"attncheck: {error}\n".encode())
    finally:
        os._exit(status)


def _become_init(news: int) -> None:
    """Continue as the first process of the PID namespace; the previous process waits, and ends in the same way."""
    pid = os.fork()
    if pid:
        os.close(news)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os._exit(status if status >= 0 else 128 - status)
    calls.prctl(calls.PR_SET_PDEATHSIG, signal.SIGKILL)


class _Init:
    """The process that isolates and starts the command, and ends its remaining processes."""

    def __init__(self, flags: int, request: Request, news: int, is_init: bool) -> None:
        self.flags, self.request, self.news, self.is_init = flags, request, news, is_init
        self.overlays: list[mounts.Overlay] = []
        self.is_told_to_end = False
        self.means = {"files": "none", "network": "environment", "processes": "namespace" if is_init else "subreaper"}

    def run(self) -> int:
        """Return the command's exit status. Raises `OSError` if the namespaces do not isolate it as required."""
        if not self.is_init:
            with contextlib.suppress(OSError):
                calls.prctl(calls.PR_SET_CHILD_SUBREAPER, 1)
        if self.flags:
            overlaid = self.request.overlaid
            self.overlays = mounts.restrict(self.request.writable, overlaid, self.request.uppers, self.request.sockets)
            mounts.restrict_proc(self.is_init)
            _open_loopback()
            socket.sethostname(HOST_NAME)
            self.means |= {"files": "overlay" if self.overlays else "read-only", "network": "namespace"}
        elif "landlock" in self.request.means and landlock.get_version():
            closes_ports = landlock.get_version() >= landlock.NETWORK_SINCE
            self.means |= {"files": "landlock", "network": "ports" if closes_ports else "environment"}
        pid = None if self.means["files"] == "none" and self.request.needs_files else self._start()
        if pid is None and self.means["files"] == "landlock":  # the kernel has it, but does not grant it
            self.means |= {"files": "none", "network": "environment"}
            pid = None if self.request.needs_files else self._start()
        os.write(self.news, b"r")
        os.close(self.news)
        status = NOT_STARTED if pid is None else self._wait(pid)
        children.kill_all(self.is_init, pid or 0)
        self._write_report()
        return status

    def _start(self) -> int | None:
        """Start the command, and return its process number; None if it cannot be isolated."""
        failure_end, failure = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                self._become_command()
            except BaseException as error:
                os.write(failure, str(error).encode()[:1000])
            os._exit(NOT_STARTED)
        os.close(failure)
        failed = os.read(failure_end, 1000)
        os.close(failure_end)
        if failed:
            os.waitpid(pid, 0)
            if self.means["files"] != "landlock":
                raise OSError(failed.decode("utf-8", "replace"))
        return None if failed else pid

    def _become_command(self) -> NoReturn:
        os.setpgid(0, 0)
        for number in (signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        environment = dict(os.environ)
        if self.means["network"] != "namespace":
            environment |= {**dict.fromkeys(PROXIES, CLOSED_PROXY), "no_proxy": LOCAL, "NO_PROXY": LOCAL}
        if not self.is_init:
            environment["ATTNCHECK_SUPERVISOR"] = str(os.getppid())
        self._give_up_rights()
        os.execvpe(self.request.command[0], self.request.command, environment)

    def _give_up_rights(self) -> None:
        """Make it permanent: no new mounts, no writes to read-only folders, and Landlock in addition if available."""
        uses_landlock = "landlock" in self.request.means and self.means["files"] != "none"
        version = landlock.get_version() if uses_landlock else 0
        if self.means["files"] != "none":
            for capability in set(range(CAPABILITIES)) - set(KEPT_CAPABILITIES):
                with contextlib.suppress(OSError):  # beyond this kernel's last capability, or not permitted
                    calls.prctl(calls.PR_CAPBSET_DROP, capability)
            calls.prctl(calls.PR_SET_NO_NEW_PRIVS, 1)
        if version:
            folders = [overlay.folder for overlay in self.overlays]
            folders += [mounts.SHARED_MEMORY, *([mounts.PROC] if self.flags or mounts.is_proc_safe() else [])]
            landlock.restrict((*self.request.writable, *folders), closes_ports=not self.flags)
        with contextlib.suppress(OSError) if self.flags else contextlib.nullcontext():
            if version or self.flags:
                metadata.restrict(version >= TRUNCATION_KNOWN, bool(self.flags))

    def _wait(self, pid: int) -> int:
        """Return the command's exit status after it has ended, on its own, on request, or because its caller died."""
        woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGTERM, self._end_at_once)  # the caller was killed
        deadline = float("inf")
        lifeline: list[int] = [0]
        while time.monotonic() < deadline and not self.is_told_to_end:
            for ended, status in _reap():
                if ended == pid:
                    code = os.waitstatus_to_exitcode(status)
                    return code if code >= 0 else 128 - code
            timeout = None if deadline == float("inf") else max(0.0, deadline - time.monotonic())
            ready = select.select([woken, *lifeline], [], [], timeout)[0]
            if woken in ready:
                os.read(woken, 4096)
            if 0 in ready and not os.read(0, 1):
                break
            if 0 in ready:
                lifeline, deadline = [0], time.monotonic() + GRACE_SECONDS
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGTERM)
        return 128 + signal.SIGKILL

    def _end_at_once(self, number: int, frame: object) -> None:
        self.is_told_to_end = True

    def _write_report(self) -> None:
        changes: list[tuple[str, str]] = []
        with contextlib.suppress(RecursionError):  # folders are deeper than Python's own functions support
            for overlay in self.overlays:
                changes += mounts.list_changes(overlay)
        changes = sorted({*changes})
        document = {
            **self.means,
            "overlaid": [overlay.folder for overlay in self.overlays],
            "changes": changes[:MAX_CHANGES],
            "changed": len(changes),
        }
        os.write(self.request.report, json.dumps(document).encode())


def _reap() -> Iterator[tuple[int, int]]:
    """Yield every child that has ended, with its status."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            yield pid, status


def _open_loopback() -> None:
    """Turn on the loopback interface of a new network namespace."""
    with socket.socket() as any_socket:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | IFF_UP))
