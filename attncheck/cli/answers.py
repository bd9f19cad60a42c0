"""Keeps what `attncheck lint` answers, with the state of everything that it looked at, and gives the answer again.

While the command runs, each path that it opens, lists or queries is noted with its state: kind, inode, size and times.
An answer is given again if the command line, the environment, the terminal, the machine since its boot, the day and all
noted states are the same. It is kept only if nothing else can have contributed: no other program ran (except `nvcc`,
`bash -n` and, on a machine without a GPU, our own probe), nothing was sent or written, and nothing changed while it was
made. This is decided before Typer is imported, which alone takes longer.
"""

import contextlib
import gc
import hashlib
import json
import os
import re
import shutil
import stat
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from attncheck import __version__
from attncheck.core.io.files import replace_file
from attncheck.core.io.private_folder import cache_folder, digest_facts, forget_oldest, list_variables, read_kept
from attncheck.core.io.streams import print_message, printed_messages

BOOT_ID = "/proc/sys/kernel/random/boot_id"
GPU_NODES = ("nvidia", "dxg", "kfd")
VARYING_FILES = re.compile(r"/proc/(meminfo$|self/maps$|\d+/)")
STREAMS = ("/dev/fd/", "/dev/stdin", "/proc/self/fd")
KERNEL_FOLDERS = ("/proc/", "/sys/")  # their files have no times: their contents count
UNKEPT = ("--python", "--online")  # options, which may have a value after "="
CHANGES = frozenset(
    {
        *("os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.system"),
        *("socket.connect", "socket.getaddrinfo", "socket.sendto"),
    }
)
NOTED = CHANGES | {"open", "os.listdir", "os.scandir", "subprocess.Popen"}  # of the events: `id` alone is 100,000
SETTLED_NS = 20_000_000  # a file's times may lag this far behind the clock
GARBAGE_THRESHOLD = 1_000_000  # cycles are rare in lint: looking for them takes 7 % of 1,000 launches, and frees 28 MiB
MAX_KEPT, MAX_BYTES, MAX_CONTENT = 100, 16 << 20, 1 << 16
_stat, _lstat = os.stat, os.lstat
State = list[int]


class Recorder:
    """Notes the state of each path at its first use; `is_partial` if something else may have contributed."""

    def __init__(self, may_probe: bool, cache: Path, temporary: str) -> None:
        self.queried: dict[str, State] = {}
        self.listed: dict[str, State] = {}
        self.written: set[str] = set()
        self.may_probe = may_probe
        self.ignored = (
            *("/dev/", f"{temporary}/attncheck-", f"{cache}/links", f"{cache}/lint-", f"{cache}/byte-code"),
        )
        is_linted = any(os.path.realpath(path) == os.path.realpath(temporary) for path in (".", *sys.argv[2:]))
        self.swept = {str(cache), *([] if is_linted else [temporary])}  # listed only to remove our own old files
        self.is_partial, self.is_active = False, False
        self.began = time.time_ns()

    @contextlib.contextmanager
    def record(self) -> Iterator[None]:
        """Note what is used in the `with` block."""
        originals = {name: getattr(os, name) for name in ("stat", "lstat", "readlink", "access")}
        for name, original in originals.items():
            setattr(os, name, self._wrap(original))
        sys.addaudithook(self._on_event)
        self.is_active = True
        try:
            yield
        finally:
            self.is_active = False
            for name, original in originals.items():
                setattr(os, name, original)

    def _wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def query(path: Any, *arguments: Any, **options: Any) -> Any:
            self._note(path, self.queried)
            return original(path, *arguments, **options)

        return query

    def _on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in NOTED or not self.is_active:
            return
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR):
                self.written.add(os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else "")
            else:
                self._note(path, self.queried)
        elif event in ("os.listdir", "os.scandir"):
            self._note(arguments[0] if arguments[0] is not None else ".", self.listed)
        elif event == "subprocess.Popen":
            program = os.fsdecode(arguments[0])
            self._note(program, self.queried)
            is_reader = os.path.basename(program) == "nvcc" or (self.may_probe and program == sys.executable)
            is_syntax_check = os.path.basename(program) == "bash" and "-n" in arguments[1]
            self.is_partial = self.is_partial or not (is_reader or is_syntax_check)
        else:
            self.is_partial = True

    def _note(self, path: Any, states: dict[str, State]) -> None:
        if isinstance(path, int):  # a descriptor: its path was noted when it was opened
            return
        name = os.fsdecode(path)
        if name in states or (name in self.swept and states is self.listed):
            return
        states[name] = []  # reading it is an event too
        if name.startswith(STREAMS):
            self.is_partial = True
        if name.startswith(self.ignored) or VARYING_FILES.match(name):
            del states[name]
        else:
            states[name] = read_state(name, states is self.listed)

    def is_complete(self) -> bool:
        """Return whether all that was used is known, and was the same from before the start until now."""
        for module in list(sys.modules.values()):
            file = getattr(module, "__file__", None)
            if isinstance(file, str):
                self.queried.setdefault(file, read_state(file, False))
        latest = max(max(state[4:], default=0) for states in (self.queried, self.listed) for state in states.values())
        left = [name for name in self.written if not name.startswith(self.ignored)]
        return (
            not self.is_partial
            and latest < self.began - SETTLED_NS
            and not any(os.path.lexists(name) for name in left)
            and is_unchanged(self.queried, self.listed)
        )


def read_state(path: str, is_listed: bool) -> State:
    """Return the state of a path: of a link and its target; of a folder its times only if it `is_listed`.

    The times of folders with packages are digested (`doctor.probes.payload.packages.stamps`), so they count too.
    """
    if path.startswith(KERNEL_FOLDERS):
        return _read_content(path)
    link = 0
    try:
        status = _lstat(path)
        if stat.S_ISLNK(status.st_mode):
            link, status = status.st_ino, _stat(path)
    except (OSError, ValueError) as error:
        return [getattr(error, "errno", None) or 0]
    state = [status.st_mode, status.st_ino, link, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
    is_timeless = stat.S_ISDIR(status.st_mode) and not is_listed and "/site-packages" not in path
    return state[:3] if is_timeless else state


def _read_content(path: str) -> State:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        return [error.errno or 0]
    try:
        content = os.read(descriptor, MAX_CONTENT)
    except OSError as error:
        return [error.errno or 0]
    finally:
        os.close(descriptor)
    return [0, int.from_bytes(hashlib.sha256(content).digest()[:6], "big")]


def is_unchanged(queried: dict[str, State], listed: dict[str, State]) -> bool:
    """Return whether each path still has its state."""
    return all(read_state(path, False) == state for path, state in queried.items()) and all(
        read_state(path, True) == state for path, state in listed.items()
    )


def answer(run: Callable[[], int]) -> int:
    """Write the kept answer to this command and return its exit code; or else run it, and keep its answer."""
    gc.set_threshold(GARBAGE_THRESHOLD)
    folder = cache_folder(os.environ)
    if folder is None or any(word == "-" or word.startswith(UNKEPT) for word in sys.argv):
        return run()
    nodes = sorted(name for name in os.listdir("/dev") if name.startswith(GPU_NODES)) if os.path.isdir("/dev") else []
    path = folder / f"lint-{_digest_command(nodes)}.zlib"
    kept = _read_kept(path)
    if kept is not None:
        for message in kept["messages"]:
            print_message(message)
        sys.stdout.write(kept["text"])
        sys.stdout.flush()
        return int(kept["code"])
    try:
        recorder = Recorder(not nodes, folder, tempfile.gettempdir())
    except OSError:  # no folder for temporary files, which most of lint does without
        return run()
    output = sys.stdout
    copy = _Copy(output)
    sys.stdout = copy
    try:
        with recorder.record():
            code = run()
    finally:
        sys.stdout = output
    if code in (0, 1) and recorder.is_complete():
        document = {"text": "".join(copy.parts), "messages": printed_messages, "code": code}
        states = {"queried": recorder.queried, "listed": recorder.listed}
        with contextlib.suppress(OSError, ValueError):
            replace_file(
                path, zlib.compress(json.dumps({**document, **states}).encode("utf-8", "surrogatepass"), 1), 0o600
            )
            forget_oldest(folder, "lint-*.zlib", MAX_KEPT)
    return code


class _Copy:
    """A stream that also remembers its text."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.parts: list[str] = []

    def write(self, text: str) -> int:
        """Write and remember a text."""
        written = int(self.stream.write(text))  # raises for bytes, by which click tells text streams from others
        self.parts.append(text)
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _digest_command(nodes: list[str]) -> str:
    terminals = [stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)]
    days = [time.strftime("%Y-%m-%d", clock()) for clock in (time.localtime, time.gmtime)]
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [os.cpu_count()]
    machine = (*os.uname(), _read_content(BOOT_ID), nodes, cores, os.getuid(), os.getcwd())
    python = (__version__, sys.version, sys.executable, sys.path, sys.flags, getattr(sys.stdout, "encoding", ""))
    facts = (sys.argv, list_variables(os.environ), terminals, shutil.get_terminal_size(), days, machine, python)
    return digest_facts(facts)


def _read_kept(path: Path) -> dict[str, Any] | None:
    """Return the kept answer if everything that it was made of is unchanged."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, zlib.error):
        document = json.loads(zlib.decompress(read_kept(path, MAX_BYTES)).decode("utf-8", "surrogatepass"))
        if is_unchanged(document["queried"], document["listed"]):
            return {key: document[key] for key in ("messages", "text", "code")}
    return None
