"""`attncheck smoke LAUNCH` as a user meets it: a script in their own folder, started as they start it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from attncheck.core.facts import Absent
from attncheck.rehearsal import reading
from attncheck.rehearsal import run as rehearsal
from attncheck.rehearsal.execution import keep_watcher
from tests.conftest import Run, all_processes_gone, without_progress
from tests.rehearsal.staging import SCRIPT

OPTIONS = (
    "--model_name_or_path Qwen/Qwen2.5-7B --data_path data.jsonl --output_dir out --max_steps 1000 "
    "--per_device_train_batch_size 8 --gradient_accumulation_steps 4 --learning_rate 2e-5 --max_length 2048"
)
LAUNCH = f"""\
#!/bin/bash
export PYTHONPATH=lib
torchrun --nproc-per-node 8 --standalone train.py {OPTIONS} --packing
"""
SITE = """\
import os, sys
import own_package
with open(os.environ["SEEN_BY_SITE"] + os.environ.get("RANK", ""), "a") as stream:
    stream.write(own_package.__name__)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a user's folder: the training script, and their own packages that PYTHONPATH names."""
    shutil.copy(SCRIPT, tmp_path / "train.py")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "own_package.py").write_text("")
    (tmp_path / "lib" / "sitecustomize.py").write_text(SITE)
    (tmp_path / "launch.sh").write_text(LAUNCH)
    return tmp_path


def make_environment(tmp_path_factory: pytest.TempPathFactory, **more: str) -> dict[str, str]:
    """Return an environment whose temporary folder is empty, and if the project's `sitecustomize` writes to."""
    folder = tmp_path_factory.mktemp("machine")
    (folder / "scratch").mkdir()
    return {**os.environ, "TMPDIR": str(folder / "scratch"), "SEEN_BY_SITE": str(folder / "site"), **more}


def list_files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def rehearse(attncheck: Run, environment: Mapping[str, str], *argv: str) -> tuple[int, dict[str, Any]]:
    process = attncheck("smoke", "--device", "cpu", "--format", "json", *argv, timeout=500, env=environment)
    assert process.stdout, process.stderr
    return process.returncode, json.loads(process.stdout)


def test_a_launch_with_a_leak_is_rehearsed_and_corrected(
    attncheck: Run, project: Path, tmp_path_factory: pytest.TempPathFactory, marker: str
) -> None:
    before = list_files(project)
    environment = make_environment(tmp_path_factory, PLANTED_FAULT="mask_of_ones")
    status, report = rehearse(attncheck, environment, "launch.sh")
    [finding] = report["findings"]
    assert status == 1 and finding["code"] == "ATN432"
    assert "attend to earlier documents in the row" in finding["message"]
    assert finding["fixes"][0]["title"] == "no --packing" and "off by" in finding["fixes"][0]["proven"]
    first, corrected = report["rehearsal"]["launches"]
    assert (first["ranks"], corrected["tried"]) == (2, "no --packing")
    assert 30 <= first["steps"] < 40  # a loop of one's own is ended after its steps
    diff, command = report["rehearsal"]["corrected"]
    assert "-torchrun" in diff and command.endswith("--max_length 2048") and "--packing" not in command
    assert "nproc-per-node 8" in command and "Qwen/Qwen2.5-7B" in command  # it is the user's own, not the cut one
    # The user's own start-up code ran in both ranks; what it wrote is reported, and was kept from their files.
    sites = {f"{environment['SEEN_BY_SITE']}{rank}" for rank in "01"}
    assert sites <= {*first["isolation"]["written"], *first["isolation"]["denied"]}, first["isolation"]
    assert not any(Path(site).exists() for site in sites)
    assert list_files(project) == before
    assert list_files(Path(environment["TMPDIR"])) == set()


@pytest.mark.nightly
def test_a_command_that_is_right_gives_no_finding(
    attncheck: Run, project: Path, tmp_path_factory: pytest.TempPathFactory, marker: str
) -> None:
    before = list_files(project)
    command = f"torchrun --nproc-per-node 2 --standalone train.py {OPTIONS} --packing"
    status, report = rehearse(attncheck, make_environment(tmp_path_factory), "--", *command.split())
    results = report["rehearsal"]["launches"][0]["results"]
    assert (status, report["findings"]) == (0, []), report["findings"]
    assert {result["outcome"] for result in results} == {"ok"} and len(results) == 6, results
    assert report["rehearsal"]["measured_on"]["device"] == "cpu"
    assert list_files(project) == before


@pytest.mark.nightly
def test_a_kernel_that_is_wrong_is_corrected_by_another(
    attncheck: Run, project: Path, tmp_path_factory: pytest.TempPathFactory, marker: str
) -> None:
    environment = make_environment(tmp_path_factory, PLANTED_FAULT="kernel_not_causal")
    command = f"python train.py {OPTIONS} --attn_implementation sdpa"
    status, report = rehearse(attncheck, environment, "--", *command.split())
    [finding] = [finding for finding in report["findings"] if finding["code"] == "ATN432"]
    assert status == 1 and "not causal" in finding["message"]
    assert finding["fixes"][0]["title"] == "--attn_implementation eager" and finding["fixes"][0]["proven"]


@pytest.mark.nightly
def test_a_script_that_crashes_is_shown_with_its_error(
    attncheck: Run, project: Path, tmp_path_factory: pytest.TempPathFactory, marker: str
) -> None:
    environment = make_environment(tmp_path_factory, PLANTED_FAULT="crashes")
    status, report = rehearse(attncheck, environment, "--", "python", "train.py", *OPTIONS.split())
    [finding] = report["findings"]
    assert status == 0 and (finding["code"], finding["severity"]) == ("ATN435", "warning")
    assert "RuntimeError: the data server went away" in finding["message"]
    learning = report["rehearsal"]["launches"][0]["results"][-1]
    assert learning["outcome"] == "skipped" and "too few" in learning["reason"]


@pytest.mark.nightly
def test_a_script_that_hangs_is_ended(
    attncheck: Run, project: Path, tmp_path_factory: pytest.TempPathFactory, marker: str
) -> None:
    environment = make_environment(tmp_path_factory, PLANTED_FAULT="hangs")
    status, report = rehearse(attncheck, environment, "--timeout", "10", "--", "python", "train.py", *OPTIONS.split())
    [result] = report["rehearsal"]["launches"][0]["results"]
    assert status == 3 and result["outcome"] == "out_of_time" and "--timeout allows more" in result["reason"]
    assert list_files(Path(environment["TMPDIR"])) == set()


@pytest.mark.nightly
def test_a_python_that_cannot_be_watched_is_said(
    attncheck: Run, project: Path, tmp_path_factory: pytest.TempPathFactory, marker: str
) -> None:
    environment = make_environment(tmp_path_factory)
    status, report = rehearse(attncheck, environment, "--", "python", "-E", "train.py", *OPTIONS.split())
    [result] = report["rehearsal"]["launches"][0]["results"]
    assert status == 3 and "could be watched" in result["reason"] and "-E" in result["reason"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("echo hello\n", "launch.sh: starts neither a training that attncheck knows"),
        (
            "trl sft --dataset_name a/b --output_dir out --config $UNSET\n",
            "the launch needs $UNSET",
        ),
    ],
)
def test_what_cannot_be_rehearsed_is_one_line(attncheck: Run, project: Path, text: str, message: str) -> None:
    (project / "launch.sh").write_text(text)
    process = attncheck("smoke", "--device", "cpu", "launch.sh")
    assert process.returncode == 3 and process.stdout == ""
    assert len(process.stderr.splitlines()) == 1 and message in process.stderr


def test_ctrl_c_leaves_nothing_behind(project: Path, tmp_path_factory: pytest.TempPathFactory, marker: str) -> None:
    before = list_files(project)
    environment = make_environment(tmp_path_factory, PLANTED_FAULT="is_slow")
    scratch = Path(environment["TMPDIR"])
    command = [sys.executable, "-m", "attncheck", "smoke", "--device", "cpu", "launch.sh"]
    process = subprocess.Popen(
        command, cwd=project, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    deadline = time.monotonic() + 120
    while not list(scratch.rglob("steps-0.json")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    stderr = without_progress(stderr)
    assert process.returncode == 130 and len(stderr.splitlines()) == 1, stderr
    assert stderr.startswith("attncheck: interrupted; nothing is left running")
    assert all_processes_gone(marker)
    assert list_files(scratch) == set() and list_files(project) == before


def test_the_watcher_stands_before_the_folders_that_a_launch_sets() -> None:
    assert keep_watcher("A=1 PYTHONPATH=$PWD:lib python x.py", "/e") == "A=1 PYTHONPATH=/e:$PWD:lib python x.py"
    assert keep_watcher("python x.py --note NO_PYTHONPATH=1", "/e") == "python x.py --note NO_PYTHONPATH=1"


@pytest.mark.parametrize(
    ("only", "steps", "taken"),
    [
        ((), 0, rehearsal.STEPS),
        (("loss",), 0, rehearsal.FULL_STEPS),
        (("loss", "learning"), 0, rehearsal.STEPS),
        (("loss",), 7, 7),
    ],
)
def test_a_launch_whose_learning_is_not_asked_takes_fewer_steps(only: tuple[str, ...], steps: int, taken: int) -> None:
    request = reading.Request((), lambda name: Absent("no"), lambda source: lambda path: None, only=only, steps=steps)
    assert rehearsal.choose_steps(request) == taken
    assert rehearsal.choose_steps(request, True) == min(taken, rehearsal.POLICY_STEPS)
