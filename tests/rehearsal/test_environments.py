"""The environment that is chosen among several: the one whose releases fit a launch best."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from attncheck.cli.commands.smoke import make_rehearsal_request
from attncheck.core.snapshot import Snapshot
from attncheck.rehearsal.environments import VARIABLE, list_environments, measure
from attncheck.rehearsal.execution import lay_programs, list_replaced
from attncheck.rehearsal.reading import read_launches_of
from attncheck.rehearsal.staging import choose_model
from tests.snapshots import h200, with_package

LAUNCH = "trl sft --model_name_or_path Qwen/Qwen2.5-0.5B --dataset_name a/b --output_dir o {}\n"


def make(trl: str, transformers: str = "4.57.3") -> Snapshot:
    return with_package(with_package(h200(), "trl", trl), "transformers", transformers)


@pytest.mark.parametrize(
    ("stated", "option", "best"),
    [
        ("trl==0.23.0\n", "--max_length 8", "0.24.0"),  # the nearest, because none has it
        ("trl>=1.0\n", "--max_length 8", "1.16.0"),
        ("trl==0.15.2\n", "--max_length 8", "0.15.2"),
        ("", "--max_seq_length 8", "0.15.2"),  # the others refuse the name
        ("", "--max_length 8", "1.16.0"),  # the newest of those that accept it
    ],
)
def test_the_releases_that_fit_a_launch_best_are_chosen(
    stated: str, option: str, best: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".git").mkdir()
    (tmp_path / "requirements.txt").write_text(stated)
    (tmp_path / "run.sh").write_text(LAUNCH.format(option))
    request = make_rehearsal_request(("run.sh",), None, False, 0)
    fits = {version: measure(make(version), request) for version in ("0.15.2", "0.24.0", "1.16.0")}
    assert min(fits, key=lambda version: fits[version]) == best


def test_an_environment_without_the_framework_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.sh").write_text(LAUNCH.format("--max_seq_length 8"))
    request = make_rehearsal_request(("run.sh",), None, False, 0)
    assert measure(make("1.16.0"), request) < measure(with_package(h200(), "transformers", "4.57.3"), request)


def test_a_fork_next_to_a_launch_has_the_requirements_of_its_framework(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not missing, and the installed release need not be the fork's."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".git").mkdir()
    (tmp_path / "swift").mkdir()
    (tmp_path / "swift" / "version.py").write_text("__version__ = '3.1.0'\n")
    (tmp_path / "run.sh").write_text("swift sft --model Qwen/Qwen2.5-0.5B --dataset a.jsonl --output_dir o\n")
    request = make_rehearsal_request(("run.sh",), None, False, 0)
    without, having = (measure(snapshot, request) for snapshot in (h200(), with_package(h200(), "ms-swift", "4.6.0")))
    assert having < without and without.missing == having.missing == having.distance == 0
    assert measure(with_package(h200(), "ms-swift", "3.3.0"), request) < having  # the nearest to the fork's own


def test_a_model_that_a_launch_does_not_name_is_named_by_an_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands for the launch's own, of which only a folder of another machine is known."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.sh").write_text(LAUNCH.format("").replace("Qwen/Qwen2.5-0.5B", "/data/step_12"))
    request = make_rehearsal_request(("run.sh",), None, False, 0)
    for model, expected in (("", "/data/step_12"), ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B")):
        own = replace(request, model=model)
        (read,) = read_launches_of(make("1.16.0"), own, own.sources[0])
        assert choose_model(read) == ("llama", expected)


def test_a_folder_of_environments_is_no_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("new", "old"):
        (tmp_path / name / "bin").mkdir(parents=True)
        (tmp_path / name / "bin" / "python").touch()
    programs = [str(tmp_path / name / "bin" / "python") for name in ("new", "old")]
    monkeypatch.delenv(VARIABLE, raising=False)
    assert list_environments(str(tmp_path)) == programs
    assert list_environments(None) == list_environments(str(tmp_path / "new")) == list_environments(programs[0]) == []
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert list_environments(None) == programs and list_environments(programs[0]) == []


@pytest.mark.parametrize(
    ("stated", "other", "is_better"),
    [("transformers>=5.0,<5.10\n", "5.5.4", True), ("transformers==4.57.3\n", "4.57.3", False)],
)
def test_a_framework_is_worth_more_than_minor_releases(
    stated: str, other: str, is_better: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its environment has the packages that its forks import; another major release of transformers is worse."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".git").mkdir()
    (tmp_path / "swift").mkdir()
    (tmp_path / "swift" / "version.py").write_text("__version__ = '4.4.0'\n")
    (tmp_path / "run.sh").write_text("swift sft --model Qwen/Qwen2.5-0.5B --dataset a.jsonl --output_dir o\n")
    request = make_rehearsal_request(("run.sh",), None, False, 0)
    having = with_package(make("0.24.0", "5.17.0"), "ms-swift", "4.6.0")
    (tmp_path / "requirements.txt").write_text(f"{stated}trl<0.25\n")
    assert (measure(having, request) < measure(make("0.24.0", other), request)) == is_better


def test_of_two_equal_environments_the_one_with_the_frameworks_transformers_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.sh").write_text(LAUNCH.format("--max_length 8"))
    request = make_rehearsal_request(("run.sh",), None, False, 0)
    fits = []
    for version in ("4.57.3", "5.5.4"):
        snapshot = make("0.24.0", version)
        own = (replace(d, requires=("transformers>=4.56.1",)) if d.name == "trl" else d for d in snapshot.distributions)
        fits.append(measure(replace(snapshot, distributions=tuple(own)), request))
    assert fits[0] < fits[1] and [fit.strain for fit in fits] == [0, 1]


def test_programs_of_a_copied_environment_start_its_own_python(tmp_path: Path) -> None:
    """Their first lines name the environment that was copied; others are started as they are."""
    for folder in ("copy", "watch"):
        (tmp_path / folder).mkdir()
    python = tmp_path / "copy" / "python"
    python.symlink_to(sys.executable)
    for name, place in (("torchrun", tmp_path / "former"), ("trl", tmp_path / "copy"), ("bash-like", "/bin")):
        first = f"{place}/python3.11" if name != "bash-like" else "/bin/sh"
        (tmp_path / "copy" / name).write_text(f"#!{first}\nimport sys\nprint(sys.executable, *sys.argv[1:])\n")
    command = "A=1 llamafactory-cli train && trl sft; bash-like"  # the first starts torchrun itself
    starters = lay_programs(command, str(python), str(tmp_path / "programs"), str(tmp_path / "watch"))
    assert [path.name for path in Path(starters).iterdir()] == ["torchrun"]
    ended = subprocess.run([f"{starters}/torchrun", "a b"], capture_output=True, text=True, check=True)
    assert ended.stdout == f"{python} a b\n"
    (line,) = list_replaced(str(tmp_path))
    assert line.startswith("torchrun of the environment starts another environment's Python")
