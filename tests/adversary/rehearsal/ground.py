"""What a hostile launch may damage: a user's home, project and other folders, their processes; who would be sent to.

It tells of everything whether it was damaged: folders by what `take_digest` sees, sockets by what they received,
processes by whether they run as they did.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import select
import shutil
import socket
import stat
import subprocess
import tempfile
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.adversary.rehearsal import acts

NOBODY = 65534
PROCESS_ACTS = (
    *("kill_process", "kill_group", "kill_by_descriptor", "stop_process", "limit_process", "slow_process"),
    *("bind_process", "write_memory"),
)
# The acts that a socket or terminal witnesses; of those that are left the act itself says whether it could.
WITNESSED = {
    "tcp": ("tcp_loopback", "tcp_own_address", "tcp_raw_call", "hub_by_urllib", "tracker_by_urllib", "hub_by_curl"),
    "service": ("tcp_service_port",),
    "udp": ("udp_loopback", "udp_own_address"),
    "unix": ("unix_path",),
    "abstract": ("unix_abstract",),
    "terminal": ("write_terminal", "type_into_terminal"),
    "key": ("add_key",),
}


def lay_victim(folder: Path, owner: int) -> None:
    """Fill a folder with what a user would miss: files, a link, a second name, an attribute, a time long ago."""
    (folder / "sub").mkdir(parents=True)
    (folder / acts.PRECIOUS).write_text("precious\n")
    (folder / "data.bin").write_bytes(bytes(range(256)) * 32)
    (folder / "sub" / "inner.txt").write_text("precious\n")
    (folder / "link.txt").symlink_to(acts.PRECIOUS)
    (folder / "other.txt").write_text("precious\n")
    os.link(folder / "other.txt", folder / "twin.txt")
    with contextlib.suppress(OSError):
        os.setxattr(folder / acts.PRECIOUS, "user.origin", b"mine")
    for path in (*folder.rglob("*"), folder):
        os.chown(path, owner, owner, follow_symlinks=False)
        if not path.is_symlink():
            path.chmod(0o750 if path.is_dir() else 0o640)
            os.utime(path, (1_600_000_000, 1_600_000_000))


def take_digest(folder: Path) -> dict[str, str]:
    """Return of each path below a folder all that a change would change: content, mode, owner, times, links, names."""
    return {
        str(path.relative_to(folder)): _describe(path) for path in (folder, *_walk(folder)) if os.path.lexists(path)
    }


def _walk(folder: Path) -> Iterator[Path]:
    for parent, names, files in os.walk(folder):
        yield from (Path(parent, name) for name in (*names, *files))


def _describe(path: Path) -> str:
    status = os.lstat(path)
    content: object = ""
    if stat.S_ISREG(status.st_mode):
        content = hashlib.blake2b(path.read_bytes()).hexdigest()
    elif stat.S_ISLNK(status.st_mode):
        content = os.readlink(path)
    attributes: list[tuple[str, bytes]] = []
    with contextlib.suppress(OSError):
        names = os.listxattr(path, follow_symlinks=False)
        attributes = [(name, os.getxattr(path, name, follow_symlinks=False)) for name in names]
    numbers = (status.st_mode, status.st_uid, status.st_gid, status.st_nlink, status.st_mtime_ns, status.st_ctime_ns)
    return repr((*numbers, status.st_size, content, attributes))


@dataclass
class Listener:
    """A socket that represents the hub, a tracker, or another program's door; `received` is what came."""

    listening: socket.socket
    received: list[bytes] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while not self._ended.is_set():
            if not select.select([self.listening], [], [], 0.05)[0]:
                continue
            if self.listening.type == socket.SOCK_DGRAM:
                self.received.append(self.listening.recv(1000))
                continue
            connection = self.listening.accept()[0]
            with connection, contextlib.suppress(OSError):
                connection.settimeout(2)
                text = connection.recv(1000)
                self.received.append(text)
                connection.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    def close(self) -> None:
        """End it, once all that was sent has come."""
        self._ended.set()
        self._thread.join(5)
        self.listening.close()


def listen(family: int, kind: int, address: Any) -> Listener:
    """Return a listener on an address."""
    listening = socket.socket(family, kind)
    listening.bind(address)
    if kind == socket.SOCK_STREAM:
        listening.listen()
    return Listener(listening)


def find_own_address() -> str:
    """Return an address of this machine that other machines could have too; the loopback's if it has none."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.connect(("192.0.2.1", 9))  # sends nothing
        return str(asking.getsockname()[0])
    return "127.0.0.1"


class World:
    """A user's other processes, sockets and terminal, one process for each act."""

    def __init__(self, folder: Path, owner: int, names: Iterable[str] = acts.WORLD) -> None:
        """Start them; `owner` is the user whose they are."""
        self.listeners: dict[str, Listener] = {}
        for name, kind in (("tcp", socket.SOCK_STREAM), ("udp", socket.SOCK_DGRAM)):
            self.listeners[name] = listen(socket.AF_INET, kind, ("0.0.0.0", 0))
        for port in random.sample(range(600, 1024), 20):  # another test process has its own; they are root's
            with contextlib.suppress(OSError):
                self.listeners["service"] = listen(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", port))
                break
        path, abstract = folder / "socket", uuid.uuid4().hex
        self.listeners["unix"] = listen(socket.AF_UNIX, socket.SOCK_STREAM, str(path))
        self.listeners["abstract"] = listen(socket.AF_UNIX, socket.SOCK_STREAM, f"\0{abstract}")
        os.chown(path, owner, owner)
        self.terminal, terminal = os.openpty()
        os.set_blocking(self.terminal, False)
        self.slave = terminal
        os.chown(os.ttyname(terminal), owner, owner)
        self.processes = {
            name: subprocess.Popen(
                ["/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True, user=owner
            )
            for name in PROCESS_ACTS
            if name in names
        }
        self._states = {name: _describe_process(process) for name, process in self.processes.items()}
        ports = {name: self.listeners[name].listening.getsockname()[1] for name in ("tcp", "udp")}
        ports["service"] = port
        self.key = f"attncheck-{uuid.uuid4().hex}"
        self.targets: dict[str, Any] = {
            **ports,
            "address": find_own_address(),
            "unix": str(path),
            "abstract": abstract,
            "terminal": os.ttyname(terminal),
            "key": self.key,
            "processes": {name: process.pid for name, process in self.processes.items()},
        }
        hub = f"http://127.0.0.1:{ports['tcp']}"
        self.environment = {"HF_ENDPOINT": hub, "WANDB_BASE_URL": hub}

    def find_damage(self, answers: Mapping[str, str]) -> dict[str, str]:
        """Return each act that did something, with what; an act is believed if it says that it could."""
        witnessed = {name for names in WITNESSED.values() for name in names}
        claims = (name for name, error in answers.items() if name in acts.WORLD and not error)
        damage = {name: "it says that it could" for name in claims if name not in witnessed}
        for name, process in self.processes.items():
            if _describe_process(process) != self._states[name]:
                damage[name] = f"{self._states[name]} became {_describe_process(process)}"
        for witness, names in WITNESSED.items():
            received = self.listeners[witness].received if witness in self.listeners else []
            if witness == "terminal":
                received = [text for text in [self._read_terminal()] if text]
            if witness == "key" and self.key in Path("/proc/keys").read_text():
                received = [b"a key"]
            damage |= {name: f"{witness} received {received}" for name in names if received and not answers.get(name)}
            if received and not damage.keys() & set(names):
                damage[names[0]] = f"{witness} received {received}"
        return damage

    def _read_terminal(self) -> bytes:
        with contextlib.suppress(OSError):
            return os.read(self.terminal, 1000)
        return b""

    def close(self) -> None:
        """End the processes and the listeners."""
        for process in self.processes.values():
            process.kill()
            process.wait(10)
        for listener in self.listeners.values():
            listener.close()
        for descriptor in (self.terminal, self.slave):
            os.close(descriptor)


def _describe_process(process: subprocess.Popen[bytes]) -> str:
    """Return what others could have changed of a process."""
    if process.poll() is not None:
        return f"ended with {process.returncode}"
    state = Path(f"/proc/{process.pid}/stat").read_bytes().rpartition(b")")[2].split()
    is_stopped, traced = (
        state[0] in (b"t", b"T"),
        "TracerPid:\t0" not in Path(f"/proc/{process.pid}/status").read_text(),
    )
    limits = Path(f"/proc/{process.pid}/limits").read_text().partition("Max open files")[2].split()[:2]
    affinity = sorted(os.sched_getaffinity(process.pid))
    return repr((is_stopped, traced, os.getpriority(os.PRIO_PROCESS, process.pid), limits, affinity))


@dataclass(frozen=True)
class Ground:
    """A sandboxed machine: `home` and `project` are overlaid, `elsewhere` and shared memory are not; `job` is removed.

    It belongs to the user `owner`.
    """

    root: Path
    shared: Path
    owner: int

    @property
    def home(self) -> Path:
        """The user's home."""
        return self.root / "home"

    @property
    def project(self) -> Path:
        """The folder that the user works in."""
        return self.home / "project"

    @property
    def job(self) -> Path:
        """The folder that a rehearsal may write to."""
        return self.root / "stage" / "job"

    @property
    def places(self) -> dict[str, Path]:
        """Where victims are, by the kind of place."""
        return {
            "home": self.home / "files",
            "project": self.project / "output",
            "elsewhere": self.root / "elsewhere",
            "shared_memory": self.shared,
        }

    def lay_victims(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        """Lay a victim for each act in each place, and return their folders."""
        victims: dict[str, dict[str, str]] = {name: {} for name in names}
        for name, folders in victims.items():
            for place, folder in self.places.items():
                if folder.exists():
                    lay_victim(folder / name, self.owner)
                    folders[place] = str(folder / name)
        return victims


@contextlib.contextmanager
def lay_ground(owner: int | None = None) -> Iterator[Ground]:
    """Yield a machine with empty places; it is removed afterwards."""
    user = os.getuid() if owner is None else owner
    root = Path(tempfile.mkdtemp(prefix="hostile-", dir="/var/tmp"))
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else str(root)
    shared = Path(tempfile.mkdtemp(prefix="hostile-", dir=memory))
    ground = Ground(root, shared, user)
    try:
        for folder in (*ground.places.values(), ground.job, root / "tmp"):
            folder.mkdir(parents=True, exist_ok=True)
        for folder in (root, shared, *root.rglob("*")):
            os.chown(folder, user, user)
        yield ground
    finally:
        for folder in (root, shared):
            shutil.rmtree(folder, ignore_errors=True)
