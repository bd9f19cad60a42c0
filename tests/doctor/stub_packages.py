"""Stub packages that misbehave when imported, and the import lane run on them in its own interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attncheck.core import codec
from attncheck.core.environment import ImportOutcome, Interfaces, Torch

REPOSITORY = Path(__file__).parents[2]
MARK_VARIABLE = "ATTNCHECK_TEST_MARK"
RUN_LANE_SCRIPT = """
import json, sys
from attncheck.doctor.probes.payload.imports import lane
names, deadline = json.loads(sys.argv[1])
print(json.dumps(lane.run_import_lane(names, deadline)))
"""
ABORT = "import os\nos.abort()\n"
SEGFAULT = "import ctypes\ndef crash():\n    ctypes.string_at(0)\ncrash()\n"
HANG = """
import ctypes, signal
for number in (signal.SIGTERM, signal.SIGALRM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
def wait():
    ctypes.PyDLL(None).sleep(3600)  # in C, holding the interpreter's lock
wait()
"""
FLOOD = "import os\nfor _ in range(800):\n    os.write(1, b'x' * 65536)\n    os.write(2, b'y' * 65536)\n"
GRANDCHILDREN = """
import subprocess, sys
wait = [sys.executable, "-c", "import time; time.sleep(600)"]
subprocess.Popen(wait)
subprocess.Popen(wait, start_new_session=True)
"""
MISSING_CUDA = "raise ImportError('libcudart.so.12: cannot open shared object file: No such file or directory')\n"


def list_marked_processes(value: str) -> list[str]:
    stats = []
    variable = f"{MARK_VARIABLE}={value}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if variable in (folder / "environ").read_bytes().split(b"\0"):
                stats.append((folder / "stat").read_text())
        except OSError:
            continue
    return [line for line in stats if ") Z " not in line]


def wait_until_gone(value: str, seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while list_marked_processes(value):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def write_site(folder: Path, modules: Mapping[str, str]) -> Path:
    for name, text in {"torch": "__version__ = '2.0.0'\n", **modules}.items():
        path = folder.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def lane_command(site: Path, mark: str, names: list[str], deadline: float, python: str = "") -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{REPOSITORY}", MARK_VARIABLE: mark}
    return {
        "args": [python or sys.executable, "-c", RUN_LANE_SCRIPT, json.dumps([names, deadline])],
        "env": environment,
        "text": True,
    }


def run_import_lane(
    site: Path, mark: str, names: list[str], deadline: float = 20.0, python: str = ""
) -> dict[str, Any]:
    result = subprocess.run(
        **lane_command(site, mark, names, deadline, python), capture_output=True, timeout=deadline + 60
    )
    assert result.returncode == 0, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    for outcome in document["imports"]:
        codec.read(ImportOutcome, outcome)
    codec.read(
        Torch,
        {
            "version": "2",
            "cuda": {"absent": ""},
            "hip": {"absent": ""},
            "cxx11_abi": {"known": True},
            **document["torch"],
        },
    )
    codec.read(Interfaces, document["interfaces"])
    return document


def outcomes_by_module(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {outcome["module"]: outcome for outcome in document["imports"]}
