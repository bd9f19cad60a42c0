"""Runs a command in a sandbox as a rehearsal does, in this process or, for another user, in one of theirs."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from attncheck.core import codec
from attncheck.core.rehearsal import Isolation
from attncheck.rehearsal.execution import LaunchProcess
from attncheck.workers.sandboxed import Sandbox, read_isolation
from attncheck.workers.scratch import remove_folder

MEANS: Mapping[str, tuple[str, ...]] = {
    "all": ("namespaces", "landlock"),
    "namespaces": ("namespaces",),
    "landlock": ("landlock",),
    "none": (),
}
SECONDS = 120.0


@dataclass(frozen=True)
class Order:
    """A shell's command, its environment and folder, and what its sandbox is."""

    command: str
    folder: str
    stage: str  # it has the folder `job`, which may be written to
    means: Sequence[str]
    overlaid: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    needs_files: bool = True
    seconds: float = SECONDS


@dataclass(frozen=True)
class Ended:
    """The exit status (None: it did not end), what it printed, and how it was isolated."""

    status: int | None
    lines: tuple[str, ...]
    isolation: Isolation


def make_sandbox(order: Order) -> Sandbox:
    """Return the sandbox of an order, with its own folder empty."""
    folder = Path(order.stage) / "sandbox"
    remove_folder(str(folder))
    folder.mkdir()
    return Sandbox(str(folder), [f"{order.stage}/job"], order.overlaid, order.needs_files, order.means)


def run(order: Order) -> Ended:
    """Run an order's command to its end, or its deadline."""
    sandbox = make_sandbox(order)
    process = LaunchProcess(order.command, order.environment, order.folder, sandbox)
    deadline = time.monotonic() + order.seconds
    try:
        while not process.wait_for_exit(0.05) and time.monotonic() < deadline:
            pass
        status = process.returncode
    finally:
        process.kill()
    return Ended(status, process.last_lines(), read_isolation(sandbox))


@cache
def find_interpreter(user: int) -> str:
    """Return an interpreter that a user can start and that can import what this one can, "" if there is none."""
    for python in (sys.executable, sys._base_executable, "/usr/bin/python3"):  # type: ignore[attr-defined]
        with contextlib.suppress(OSError):
            if _start_as(user, python, {}, "--help").returncode == 0:
                return str(python)
    return ""


def _start_as(user: int, python: str, environment: Mapping[str, str], word: str) -> subprocess.CompletedProcess[str]:
    folder = Path(__file__).parents[3]
    paths = os.pathsep.join((str(folder), *filter(os.path.isdir, sys.path)))
    return subprocess.run(
        [python, "-B", "-m", "tests.adversary.rehearsal.drive", word],
        cwd=folder,
        user=user,
        group=user,
        extra_groups=[],
        env={**os.environ, "PYTHONPATH": paths, **environment},
        capture_output=True,
        text=True,
    )


def run_as(user: int, order: Order) -> Ended:
    """Run an order as a user: in this process if it is ours."""
    if user == os.getuid():
        return run(order)
    environment = {"TMPDIR": f"{order.stage}/../tmp", "HOME": f"{order.stage}/../home"}
    process = _start_as(user, find_interpreter(user), environment, json.dumps(asdict(order)))
    assert process.returncode == 0, process.stderr
    document: dict[str, Any] = json.loads(process.stdout)
    isolation = codec.read(Isolation, document["isolation"])
    return Ended(document["status"], tuple(document["lines"]), isolation)


if __name__ == "__main__" and sys.argv[1] != "--help":
    ended = run(Order(**json.loads(sys.argv[1])))
    print(json.dumps({"status": ended.status, "lines": ended.lines, "isolation": codec.to_plain(ended.isolation)}))
