"""attncheck demo, with and without torch, and the two commands of the Makefile that a newcomer runs first."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from attncheck.cli.commands.demo import INPUTS
from tests.conftest import ROOT, Run
from tests.own_environment import make_own_environment
from tests.snapshots import FOLDER


def test_the_recording_that_ships_is_the_one_of_the_tests() -> None:
    assert gzip.decompress((INPUTS / "h200.json.gz").read_bytes()) == (FOLDER / "h200.json").read_bytes()
    assert sum(path.stat().st_size for path in INPUTS.iterdir()) < 20_000


def test_without_torch_it_shows_what_needs_none_and_ends_with_the_next_command(tmp_path: Path) -> None:
    programs = make_own_environment(tmp_path / "own")
    environ = {"PATH": f"{programs}:{os.defpath}", "HOME": str(tmp_path)}
    done = subprocess.run(
        [str(programs / "attncheck"), "demo"], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for code in ("ATN100 error", "ATN444 error", "ATN140 error"):
        assert code in done.stdout
    assert done.stdout.count("skipped: not installed here: torch") == 2
    assert "attncheck lint " in done.stdout.splitlines()[-1]
    page = (tmp_path / "attncheck-demo" / "report.html").read_text(encoding="utf-8")
    assert "ATN100" in page


def test_a_folder_that_cannot_be_written_is_one_line(attncheck: Run, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("", encoding="utf-8")
    done = attncheck("demo", "--folder", "taken")
    assert done.returncode == 3 and done.stderr.count("\n") == 1, done.stderr


@pytest.mark.slow
def test_with_torch_it_measures_and_writes_the_page(attncheck: Run, tmp_path: Path) -> None:
    done = attncheck("demo", timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    right = re.search(r"^all (\d+) cases right, 2 backends$", done.stdout, re.MULTILINE)
    assert "ATN140 error" in done.stdout and right and int(right[1]) > 50, done.stdout
    assert (tmp_path / "attncheck-demo" / "report.html").is_file()


def run_make(folder: Path, code: int, *words: str) -> subprocess.CompletedProcess[str]:
    """Run make with an attncheck that is set up already and exits with `code`."""
    shutil.copy(ROOT / "Makefile", folder)
    for venv in (".venv", ".venv-demo"):
        program = folder / venv / "bin" / "attncheck"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\necho report\nexit {code}\n", encoding="utf-8")
        program.chmod(0o755)
        (folder / venv / "ready").touch()
    (folder / "pyproject.toml").touch()
    os.utime(folder / "pyproject.toml", (1, 1))
    environ = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    return subprocess.run(["make", *words], cwd=folder, env=environ, capture_output=True, text=True, timeout=60)


def test_a_finding_of_make_doctor_does_not_look_like_a_failed_build(tmp_path: Path) -> None:
    done = run_make(tmp_path, 1, "doctor")
    assert done.returncode == 0 and "Error" not in done.stderr, done.stderr
    assert "make demo" in done.stdout.splitlines()[-1] and "PYTHON=" in done.stdout.splitlines()[-1]


def test_make_doctor_fails_without_an_answer_and_make_demo_passes_its_code_on(tmp_path: Path) -> None:
    assert run_make(tmp_path, 3, "doctor").returncode == 2
    shutil.rmtree(tmp_path / ".venv")
    shutil.rmtree(tmp_path / ".venv-demo")
    assert run_make(tmp_path, 0, "demo").returncode == 0
