"""A file that a command is to write and cannot: 3 for a full disk, and 2 for a path that cannot have been meant."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from attncheck.core.io.errors import BAD_USAGE, UNANSWERED
from tests.adversary.in_process import run_entry
from tests.adversary.test_interrupts import FACTS
from tests.conftest import Run

# Of OpenRLHF 0.9, whose names 0.11 changed: `lint --write` writes the new ones.
LAUNCH = "deepspeed --module openrlhf.cli.train_sft --packing_samples --max_len 4096 --dataset d --pretrain m\n"
# Each writes {}, or its own file in the folder that it is started in. What others show is left to the night.
COMMANDS = {
    "doctor": f"doctor --facts {FACTS} --output json={{}}",
    "doctor clean": f"doctor --facts {FACTS} --select ATN2 --output html={{}}",
    "gate": "gate --checks doctor --target h100x8 --output sarif={}",
    "run refused": "run --no-cache --checks doctor --target cpu,torch=none --output junit={} -- true",
    "lint": "lint $OLDPWD/launch.sh --target h100x8 --output markdown={}",
    "report": "report $KEPT/report.json --output html={}",
    "diff": "diff $KEPT/report.json $KEPT/lock.json --output json={}",
    "upgrade": f"upgrade transformers==5.17.0 --facts {FACTS} --output json={{}}",
    "lock": f"lock --facts {FACTS} {{}}",
    "lock check": f"lock --check $KEPT/lock.json --facts {FACTS} --output json={{}}",
    "baseline": "baseline --checks doctor --target h100x8 --baseline {}",
    "init": "init --write",
    "lint write": "lint --write launch.sh --target h100x8,openrlhf=0.11.2",
    "trust": "trust $OLDPWD/policy",
}
# Its own file system with a launch on it, and then full; a limit on the size of files, which ends nothing.
DISKS = {
    "a full disk": (
        "mount -t tmpfs -o size=16k none full && cp launch.sh full && cd full && "
        "(cat /dev/zero > filler 2> /dev/null; exec {})"
    ),
    "a limit on sizes": "cp launch.sh full && cd full && ulimit -f 0 && exec {}",
}
QUICK = [
    *((name, "a full disk") for name in ("doctor", "lock", "baseline", "init", "lint write", "trust")),
    *((name, "a limit on sizes") for name in ("doctor", "init", "lint write")),
]


def can_mount() -> bool:
    words = ["unshare", "-rm", "sh", "-c", "mount -t tmpfs none /mnt"]
    try:
        return subprocess.run(words, capture_output=True).returncode == 0
    except OSError:
        return False


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "full").mkdir()
    (tmp_path / "policy").mkdir()
    (tmp_path / "launch.sh").write_text(LAUNCH)
    (tmp_path / "policy" / "attncheck.toml").write_text("")
    return tmp_path


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a report and a lock to read."""
    folder = tmp_path_factory.mktemp("kept")
    run_entry("doctor", "--facts", shlex.split(FACTS)[0], "--output", f"json={folder / 'report.json'}")
    run_entry("lock", str(folder / "lock.json"), "--facts", shlex.split(FACTS)[0])
    return folder


@pytest.mark.parametrize(
    ("name", "disk"),
    [
        pytest.param(name, disk, marks=() if (name, disk) in QUICK else pytest.mark.nightly)
        for name in COMMANDS
        for disk in DISKS
    ],
)
def test_a_full_disk_is_no_answer(project: Path, kept: Path, name: str, disk: str) -> None:
    if disk == "a full disk" and not can_mount():
        pytest.skip("no file system can be mounted here")
    command = f"{shlex.quote(sys.executable)} -m attncheck {COMMANDS[name].format('written')}"
    variables = f"KEPT={shlex.quote(str(kept))} XDG_STATE_HOME=$PWD/full XDG_CACHE_HOME=$PWD/cache"
    script = f"export {variables}; {DISKS[disk].format(command)}"
    words = [*(["unshare", "-rm"] if disk == "a full disk" else []), "bash", "-c", script]
    result = subprocess.run(words, cwd=project, capture_output=True, text=True, timeout=300)
    assert result.returncode == UNANSWERED, (result.stdout[-500:], result.stderr)
    reason = "No space left on device" if disk == "a full disk" else "File too large"
    lines = [line for line in result.stderr.splitlines() if "cannot write" in line]
    assert len(lines) == 1 and lines[0].startswith("attncheck: ") and reason in lines[0], result.stderr
    if disk != "a full disk":  # nothing is half written, and a launch is as it was
        assert not [path for path in (project / "full").rglob("*") if path.is_file() and path.name != "launch.sh"]
        assert (project / "full" / "launch.sh").read_text() == LAUNCH


WRONG_PATHS = {
    "no such folder": "missing/file",
    "a file as a folder": "launch.sh/file",
    "a folder": "full",
    "a long name": "x" * 300,
}


@pytest.mark.parametrize("path", WRONG_PATHS)
@pytest.mark.parametrize("name", ["doctor", "lock", "baseline"])
def test_a_wrong_path_is_wrong_usage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, path: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "launch.sh").touch()
    ended = run_entry(*shlex.split(COMMANDS[name].format(WRONG_PATHS[path])))
    assert ended.code == BAD_USAGE, ended.stderr
    assert ended.stderr.count("\n") == 1 and ended.stderr.startswith("attncheck: ")


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
@pytest.mark.parametrize("name", ["doctor", "lock", "baseline", "init", "lint write"])
def test_a_folder_without_permission_is_wrong_usage(project: Path, attncheck: Run, name: str) -> None:
    closed = project / "closed"
    closed.mkdir()
    (closed / "launch.sh").write_text(LAUNCH)
    closed.chmod(0o500)
    result = attncheck(*shlex.split(COMMANDS[name].format("written")), cwd=closed)
    assert result.returncode == BAD_USAGE, result.stderr
