"""Nothing that lies in the working folder, or in a model's, is imported by any process of ours."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import attncheck
from attncheck.core.io.errors import Unanswered
from attncheck.workers.overlay import package_overlay
from attncheck.workers.process import FOLDER_VARIABLE, _isolated_environment

CONFIG = {"model_type": "llama", "vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
# Started as a user starts it, and as `python -m` in a folder that holds no `attncheck` of its own.
SCRIPT = [str(Path(sys.executable).with_name("attncheck"))]
MODULE = [sys.executable, "-m", "attncheck"]
QUICK = [
    ["doctor", "."],
    ["doctor", "--python", sys.executable, "--lane", "static"],
    ["probe", "--lane", "static"],
    ["lint", "x.sh"],
    ["gate", "--checks", "doctor", "--target", "h100x8"],
    ["init"],
    ["backends"],
    ["rules"],
    ["explain", "ATN140"],
    ["parity", "--device", "cpu", "--suite", "quick", "--backend", "eager", "--budget", "5"],
]
LONG = [
    ["doctor", "--python", sys.executable, "--lane", "static", "--lane", "import"],
    ["run", "--", "true"],  # what it and baseline start, doctor starts
    ["baseline", "--checks", "doctor"],
    ["smoke", ".", "--device", "cpu", "--only", "implementation"],
    ["determinism", "--device", "cpu", "--backend", "eager"],
    ["bench", "--device", "cpu", "--backend", "eager"],
    ["parity", "--device", "cpu", "--ring-size", "2", "--suite", "quick", "--budget", "60"],
    ["selftest", "--device", "cpu", "--inject", "ATN102"],
]


@pytest.fixture
def hostile_folder(tmp_path: Path) -> Path:
    """Return a folder with a file of every name that our processes might import; each leaves a mark if it runs."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    dependencies = set(importlib.metadata.packages_distributions())
    names = sys.stdlib_module_names | dependencies | {"sitecustomize", "usercustomize", "uv"}
    source = f"open({str(tmp_path / 'ran')!r}, 'a').write(__name__ + ' ')\nraise SystemExit(99)\n"
    for name in names - {"attncheck"}:
        if name.isidentifier():
            (folder / f"{name}.py").write_text(source)
    for name in ("uv", "nvidia-smi", "nvcc", "python", "git"):  # found where PATH has an empty entry
        (folder / name).write_text(f"#!/bin/sh\necho {name} >> {tmp_path / 'ran'}\n")
        (folder / name).chmod(0o755)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "attncheck.toml").write_text('checks = ["doctor"]\n')
    (folder / "x.sh").write_text("torchrun --nproc-per-node 8 train.py --bf16\n")
    return folder


def run_in(folder: Path, program: list[str], arguments: list[str]) -> subprocess.CompletedProcess[str]:
    # An empty entry of PYTHONPATH is the folder that Python is started in.
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(["", os.environ.get("PYTHONPATH", "")])}
    if program == SCRIPT:
        environ["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
    return subprocess.run([*program, *arguments], cwd=folder, env=environ, capture_output=True, text=True, timeout=300)


def test_the_traps_work(hostile_folder: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", "import json"], cwd=hostile_folder, env={}, check=False)
    assert (tmp_path / "ran").read_text() == "json "


@pytest.mark.parametrize("arguments", QUICK, ids=" ".join)
def test_nothing_runs_from_the_working_folder(arguments: list[str], hostile_folder: Path, tmp_path: Path) -> None:
    done = run_in(hostile_folder, SCRIPT, arguments)
    assert done.returncode in (0, 1, 3) and "Traceback" not in done.stderr, done.stderr
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()


@pytest.mark.nightly
@pytest.mark.parametrize("arguments", LONG, ids=" ".join)
def test_nothing_runs_from_the_working_folder_of_long_commands(
    arguments: list[str], hostile_folder: Path, tmp_path: Path
) -> None:
    test_nothing_runs_from_the_working_folder(arguments, hostile_folder, tmp_path)


def test_started_as_a_module(hostile_folder: Path, tmp_path: Path) -> None:
    """Before our first line runs, Python itself looks into the folder of `python -m`: see SECURITY.md."""
    listing = [sys.executable, "-c", "import runpy, pkgutil, sys; print(*sys.modules)"]
    for name in subprocess.run(listing, capture_output=True, text=True, check=True).stdout.split():
        (hostile_folder / f"{name}.py").unlink(missing_ok=True)
    environ = {**os.environ, "PYTHONPATH": str(Path(attncheck.__file__).parents[1])}
    command = [*MODULE, "doctor", "--lane", "static"]
    done = subprocess.run(command, cwd=hostile_folder, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode in (0, 1) and not (tmp_path / "ran").exists(), done.stderr


def test_the_installer_takes_nothing_from_the_working_folder(
    hostile_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(hostile_folder)
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable))
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(Unanswered), package_overlay(sys.executable, ["no-such==1"], lambda line: None):
        pass
    assert not (tmp_path / "ran").exists()


def test_names_of_files_still_mean_the_users_folder(hostile_folder: Path) -> None:
    report = json.loads(run_in(hostile_folder, SCRIPT, ["doctor", ".", "--lane", "static", "--format", "json"]).stdout)
    assert report["snapshot"]["model"]["known"]["model_type"] == "llama"
    relative = os.path.relpath(sys.executable, hostile_folder)
    done = run_in(hostile_folder, SCRIPT, ["doctor", "--python", relative, "--lane", "static"])
    assert done.returncode in (0, 1), done.stderr


def test_relative_entries_of_pythonpath_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(("src", "", ".", "/elsewhere")))
    environment = _isolated_environment()
    assert environment["PYTHONPATH"].split(os.pathsep) == [str(tmp_path / "src"), "", ".", "/elsewhere"]
    assert environment[FOLDER_VARIABLE] == str(tmp_path)
