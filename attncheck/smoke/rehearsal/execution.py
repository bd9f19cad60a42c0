"""Runs a cut launch with the watcher in its processes, and leaves none of them behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from attncheck.smoke.rehearsal.extensions import FOLDER
from attncheck.workers.pool import cache_environment
from attncheck.workers.process import CHILD_ENVIRONMENT, Process, closing_stream

WATCHER = Path(__file__).parent.parent / "worker" / "watcher"
DRIVERS = Path(__file__).parent.parent / "worker" / "drivers"
EMULATED = Path(__file__).parent.parent / "worker" / "emulated"
EMULATION = Path(__file__).parent.parent.parent / "ring" / "emulated_flash_attn"
FLASH_ATTN_METADATA = {
    "METADATA": "Metadata-Version: 2.1\nName: flash-attn\nVersion: 2.8.3\n",
    "top_level.txt": "flash_attn\n",
}
SET_PYTHONPATH = re.compile(r"(?<!\S)PYTHONPATH=")
LAST_LINES = 200  # of what the launch prints: torchrun writes tens after a rank's own error
POLL_SECONDS = 0.2
GRACE_SECONDS = 5.0  # for a launcher to end its processes
# What a trainer would leave behind or send out, besides its output folder.
QUIET_ENVIRONMENT = {
    "WANDB_MODE": "disabled",
    "SWANLAB_MODE": "disabled",
    "MLFLOW_TRACKING_URI": "",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONDONTWRITEBYTECODE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}


@dataclass(frozen=True)
class Execution:
    """How a launch ended: its exit status (None: it was ended at the deadline), the steps taken, its last lines."""

    returncode: int | None
    steps: int
    lines: tuple[str, ...]
    seconds: float


def run_launch(
    command: str,
    folder: str,
    python: str,
    environ: Mapping[str, str],
    emulates_flash_attn: bool,
    steps: int,
    seconds: float,
    report_progress: Callable[[str], None],
) -> Execution:
    """Run a shell's command where the user works, with the interpreter's programs first, for `seconds` at most."""
    watch = _lay_watcher(folder)
    environment = {**CHILD_ENVIRONMENT, **QUIET_ENVIRONMENT, **cache_environment(folder), **environ}
    environment |= {"ATTNCHECK_WATCH": watch, "HF_DATASETS_CACHE": os.path.join(folder, "datasets")}
    environment["TORCH_EXTENSIONS_DIR"] = os.path.join(folder, FOLDER)  # a killed build leaves a lock for ever
    if emulates_flash_attn:
        _lay_flash_attn(Path(folder) / "entry")
        environment["ATTNCHECK_EMULATED"] = "flash_attn"
    environment["PYTHONPATH"] = _join_paths(os.path.join(folder, "entry"), os.environ.get("PYTHONPATH", ""))
    environment["PATH"] = _join_paths(os.path.dirname(os.path.abspath(python)), os.environ.get("PATH", os.defpath))
    began = time.monotonic()
    process = LaunchProcess(keep_watcher(command, os.path.join(folder, "entry")), environment, watch)
    taken = 0
    try:
        report_progress("starting the launch")
        while not process.wait_for_exit(POLL_SECONDS):
            if count_steps(watch) != taken:
                taken = count_steps(watch)
                report_progress(f"step {taken} of {steps}")
            if taken >= steps:  # a script that cannot be told to stop
                return Execution(0, taken, process.last_lines(), time.monotonic() - began)
            if time.monotonic() - began > seconds:
                return Execution(None, count_steps(watch), process.last_lines(), seconds)
        return Execution(process.returncode, count_steps(watch), process.last_lines(), time.monotonic() - began)
    finally:
        process.kill()


def keep_watcher(command: str, entry: str) -> str:
    """Return a launch's command with the watcher's folder before those that it sets as PYTHONPATH itself."""
    return SET_PYTHONPATH.sub(lambda match: f"{match[0]}{shlex.quote(entry)}:", command)


def count_steps(watch: str) -> int:
    """Return how many steps every rank that reports has taken."""
    counts = []
    for path in Path(watch).glob("steps-*.json"):
        with contextlib.suppress(OSError, ValueError):
            counts.append(len(json.loads(path.read_text())["steps"]))
    return min(counts, default=0)


def count_ranks(folder: str) -> int:
    """Return how many ranks wrote the record of a first step."""
    return len(list((Path(folder) / "watch").glob("rank-*.pt")))


def read_watcher_failures(folder: str) -> str:
    """Return why the watcher could not enter a process, "" where it could."""
    watch = Path(folder) / "watch"
    if not (watch / "entered").exists():
        return (
            "no Python that the launch started could be watched: it sets another PYTHONPATH, or starts python with "
            "-E, -I or -S"
        )
    with contextlib.suppress(OSError):
        return (watch / "watcher-failed").read_text().strip().splitlines()[-1]
    return ""


def describe_data_parallel(folder: str) -> str:
    """Return that the launch copied its model to several GPUs, which is not watched; "" where it did not."""
    with contextlib.suppress(OSError):
        count = (Path(folder) / "watch" / "data-parallel").read_text()
        return (
            f"one process trains on {count} GPUs by torch.nn.DataParallel, whose copies of the model are not watched: "
            f"start one for each (torchrun --nproc-per-node {count}), or show it one (CUDA_VISIBLE_DEVICES=0)"
        )
    return ""


def _lay_watcher(folder: str) -> str:
    """Copy the watcher where the processes find it, and return the empty folder that they write into."""
    entry, watch = os.path.join(folder, "entry"), os.path.join(folder, "watch")
    for path in (entry, watch):
        shutil.rmtree(path, ignore_errors=True)
    os.makedirs(watch)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(WATCHER, os.path.join(entry, "attncheck_watcher"), ignore=ignored)
    shutil.copytree(DRIVERS, os.path.join(entry, "attncheck_drivers"), ignore=ignored)
    shutil.copy(WATCHER / "entry.py", os.path.join(entry, "sitecustomize.py"))
    return watch


def _lay_flash_attn(entry: Path) -> None:
    """Put an emulated flash-attn where the processes find it first."""
    package, distribution = entry / "flash_attn", entry / "flash_attn-2.8.3.dist-info"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(EMULATION, package / "emulation", ignore=ignored)
    for path in EMULATED.glob("*.py"):
        if path.name != "__init__.py":
            shutil.copy(path, package / ("__init__.py" if path.stem == "flash_attn" else path.name))
    for folder, name in (("utils", "distributed.py"), ("layers", "rotary.py")):
        (package / folder).mkdir()
        (package / folder / "__init__.py").touch()
        os.rename(package / name, package / folder / name)
    distribution.mkdir()
    for name, text in FLASH_ATTN_METADATA.items():
        (distribution / name).write_text(text)


def _join_paths(*paths: str) -> str:
    return os.pathsep.join(path for path in paths if path)


class LaunchProcess(Process):
    """A shell that runs a launch. All that it starts goes with it, in whatever process group or session it is."""

    options: Sequence[str] = ()

    def __init__(self, command: str, environment: Mapping[str, str], watch: str) -> None:
        """Start the command in the folder where the user works."""
        self._lines: deque[bytes] = deque(maxlen=LAST_LINES)
        self._watch = watch
        super().__init__("/bin/bash", ["-c", command], environment, os.getcwd())
        self._close_stdin()

    def _stream_handlers(self) -> list[Callable[[], None]]:
        return [self._read_stdout, *super()._stream_handlers()]

    def _read_stdout(self) -> None:
        with contextlib.suppress(OSError, ValueError), closing_stream(self._process.stdout) as stream:
            self._lines.extend(stream)

    def last_lines(self) -> tuple[str, ...]:
        """Return the last lines that the launch printed, those of standard error after the others."""
        for thread in self._threads:
            thread.join(1.0)
        text = b"".join(self._lines).decode("utf-8", "replace") + "\n" + self.stderr
        lines = [line.rsplit("\r", 1)[-1].rstrip() for line in text.splitlines()]
        return tuple(line for line in lines if line)[-LAST_LINES:]

    def kill(self) -> None:
        """End what is left: first by SIGTERM, which launchers hand on; then every process that holds the watcher."""
        if self._process.poll() is None:
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGTERM)
            self.wait_for_exit(GRACE_SECONDS)
        super().kill()
        kill_watched(self._watch)


def kill_watched(watch: str) -> None:
    """Kill every process whose environment names this watch's folder: launchers start sessions of their own."""
    entry = f"ATTNCHECK_WATCH={watch}".encode()
    for _ in range(3):
        pids = [pid for pid in _list_pids() if entry in _read_environment(pid)]
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not pids:
            return


def _list_pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdecimal() and int(name) != os.getpid()]
    except OSError:
        return []


def _read_environment(pid: int) -> Sequence[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ()
