"""Whatever ends attncheck, at whatever moment, nothing of it stays: no process, no folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attncheck.doctor.probes.payload.processes.limits import run_programs
from attncheck.workers import scratch
from tests.conftest import Run, all_processes_gone
from tests.doctor import stub_packages

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are distinguished by /proc")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
MOMENTS = (0.15, 1.0)  # seconds: while it starts, while what it started hangs
MANY_MOMENTS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.3, 2.1, 3.4)
COMMANDS = {
    "doctor": ["doctor"],
    "probe": ["probe"],
    "parity": ["parity", "--device", "cpu", "--suite", "quick"],
    "ring": ["parity", "--device", "cpu", "--suite", "quick", "--ring-size", "2"],
    "smoke": ["smoke", "--device", "cpu"],
}


@pytest.fixture
def temporary_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    return folder


def end_early(
    arguments: list[str], number: signal.Signals, seconds: float, temporary_folder: Path, site: Path | None = None
) -> int:
    """Start a command, signal it after a while, and return its exit status."""
    environ = {**os.environ, "TMPDIR": str(temporary_folder)}
    if site is not None:
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))
    process = subprocess.Popen(
        [sys.executable, "-m", "attncheck", *arguments],
        env=environ,
        cwd=temporary_folder.parent,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    time.sleep(seconds)
    process.send_signal(number)
    stderr = process.communicate(timeout=60)[1]
    assert "Traceback" not in stderr, stderr
    return process.returncode


def check_nothing_is_left(number: signal.Signals, status: int, folder: Path, marker: str, attncheck: Run) -> None:
    # Before its handlers are a signal ends Python as it ends any program.
    assert status in (130, -number), status
    assert all_processes_gone(marker)
    if status == -number:  # whoever starts next removes what a killed process could not
        attncheck("doctor", "--lane", "static", "--python", sys.executable, env={**os.environ, "TMPDIR": str(folder)})
    assert [path.name for path in folder.iterdir()] == []


@pytest.mark.parametrize("seconds", MOMENTS)
@pytest.mark.parametrize("number", SIGNALS)
def test_a_hanging_environment(
    number: signal.Signals, seconds: float, temporary_folder: Path, marker: str, attncheck: Run
) -> None:
    site = stub_packages.write_site(
        temporary_folder.parent / "site", {"torch.__init__": stub_packages.GRANDCHILDREN + stub_packages.HANG}
    )
    status = end_early(["doctor"], number, seconds, temporary_folder, site)
    check_nothing_is_left(number, status, temporary_folder, marker, attncheck)


@pytest.mark.nightly
@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("number", SIGNALS)
def test_every_command_at_many_moments(
    name: str, number: signal.Signals, temporary_folder: Path, marker: str, attncheck: Run
) -> None:
    for seconds in MANY_MOMENTS:
        status = end_early(COMMANDS[name], number, seconds, temporary_folder)
        check_nothing_is_left(number, status, temporary_folder, marker, attncheck)


def test_a_daemon_of_a_program_is_killed(tmp_path: Path, marker: str) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nsetsid sh -c 'setsid sleep 300 & setsid sleep 300 &' &\necho done\n")
    program.chmod(0o755)
    run = run_programs({"x": [str(program)]}, 20.0)["x"]
    assert run.text == "done\n" and all_processes_gone(marker)


def test_folders_of_killed_processes_are_removed_and_no_others(
    temporary_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(temporary_folder))
    ours = Path(scratch.make_folder())
    machine, pid, start = ours.name.split("-")[1:4]
    dead = temporary_folder / f"attncheck-{machine}-{pid}-{int(start) - 1}-abc"
    others = [
        temporary_folder / f"attncheck-{'0' * 8}-{pid}-{int(start) - 1}-abc",  # of another machine or container
        temporary_folder / f"attncheck-{machine}-{os.getppid()}-{scratch._start_time(os.getppid())}-abc",
        temporary_folder / "attncheck-0",
        temporary_folder / "results",
    ]
    for folder in (dead, *others):
        (folder / "inner").mkdir(parents=True)
    scratch._sweep.cache_clear()
    second = Path(scratch.make_folder())
    assert not dead.exists() and all(folder.exists() for folder in (ours, second, *others))
    assert second.stat().st_mode & 0o077 == 0
    for folder in (ours, second):
        scratch.remove_folder(str(folder))


def test_a_folder_that_is_a_link_is_left_alone(temporary_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(temporary_folder))
    precious = temporary_folder / "precious"
    (precious / "data").mkdir(parents=True)
    name = f"attncheck-{scratch._machine_digest()}-1-1-link"
    (temporary_folder / name).symlink_to(precious)
    scratch._sweep.cache_clear()
    scratch.remove_folder(scratch.make_folder())
    assert (precious / "data").exists()
