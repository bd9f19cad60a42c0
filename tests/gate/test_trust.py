"""A folder's policy runs nothing of that folder before `attncheck trust`, unless the command line names it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from attncheck.agree import run as agreement
from attncheck.core.io import private_folder
from attncheck.core.io.errors import Unanswered
from attncheck.core.job import Job
from attncheck.core.launch import COMMAND, SourceLocation
from attncheck.core.plan import Plan
from attncheck.core.report import Report
from attncheck.gate import checks, guard, trust
from attncheck.gate.policy import Policy, load_policy
from attncheck.rehearsal import reading
from attncheck.rehearsal import run as rehearsal
from attncheck.smoke import run as smoke
from tests.adversary.in_process import Ended, run_entry
from tests.conftest import Run
from tests.snapshots import laptop

SCRIPT = """
import argparse
import pathlib

parser = argparse.ArgumentParser()
for name in ("model_name_or_path", "data_path", "output_dir"):
    parser.add_argument("--" + name, required=True)
parser.add_argument("--learning_rate", type=float)
parser.parse_args()
pathlib.Path("CANARY").touch()
raise RuntimeError("canary ran")
"""
OPTIONS = "--model_name_or_path Qwen/Qwen2.5-0.5B --data_path data.jsonl --output_dir out --learning_rate 1e-5"
LAUNCH = f"python train.py {OPTIONS}\n"
SETTINGS = 'checks = ["rehearsal"]\nlaunch = ["run.sh"]\ndevice = "cpu"\n'
NOT_RUN = "not run: attncheck.toml in {} is not trusted; review it and run `attncheck trust`"


@pytest.fixture
def download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder as it may be downloaded, with a script that leaves a canary; the user trusts nothing yet."""
    for variable in ("HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / variable.lower()))
    folder = tmp_path / "download"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT.replace("CANARY", str(tmp_path / "canary")))
    (folder / "helper.py").write_text("")
    (folder / "run.sh").write_text(LAUNCH)
    (folder / "attncheck.toml").write_text(SETTINGS)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def rehearsals(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Return the sources of each rehearsal that was started; none really is, and no command."""
    started: list[tuple[str, ...]] = []

    def run(snapshot: object, request: reading.Request, *rest: object) -> Report:
        started.append(tuple(source.name for source in request.sources))
        return Report("smoke", laptop())

    monkeypatch.setattr(rehearsal, "run", run)
    monkeypatch.setattr(guard, "become", lambda *arguments: 0)
    return started


def list_reasons(ended: Ended) -> list[str]:
    return [question["reason"] for question in json.loads(ended.stdout or ended.stderr)["unanswered"]]


def gate(*options: str) -> Ended:
    return run_entry("gate", "--format", "json", *options)


def test_a_downloaded_folder_runs_nothing_before_it_is_trusted(download: Path, attncheck: Run) -> None:
    canary = download.parent / "canary"
    for argv in (("gate",), ("run", "--", "/bin/true"), ("run", "--no-cache", "--", "/bin/true"), ("baseline",)):
        result = attncheck(*argv, cwd=download)
        assert result.returncode == 3, (argv, result.stderr)
        assert NOT_RUN.format(download) in result.stdout + result.stderr
        assert "canary ran" not in result.stdout + result.stderr and not canary.exists()
    assert not (download.parent / "xdg_state_home").exists()  # looking leaves nothing


def test_a_trusted_folder_runs(download: Path, attncheck: Run) -> None:
    trusted = attncheck("trust", cwd=download)
    assert (trusted.returncode, trusted.stderr) == (0, "")
    assert f"a rehearsal may run: python train.py {OPTIONS}" in trusted.stdout
    assert all(str(download / name) in trusted.stdout for name in ("attncheck.toml", "run.sh", "train.py", "helper.py"))
    result = attncheck("gate", cwd=download)
    assert "canary ran" in result.stdout and "not run: " not in result.stdout


@pytest.mark.nightly
def test_the_command_line_names_what_runs(download: Path, attncheck: Run) -> None:
    result = attncheck("gate", "--checks", "rehearsal", cwd=download)
    assert "canary ran" in result.stdout and "not run: " not in result.stdout


@pytest.mark.parametrize(
    ("argv", "runs"),
    [
        ((), False),
        (("--checks", "rehearsal"), True),
        (("--checks", "doctor,rehearsal", "--target", "cpu"), True),
        (("--launch", "run.sh"), True),
        (("--level", "3"), False),  # a level is not a launch's name
        (("--model", "gpt2"), False),
    ],
)
def test_what_names_a_rehearsal(
    download: Path, rehearsals: list[tuple[str, ...]], argv: tuple[str, ...], runs: bool
) -> None:
    ended = gate(*argv)
    assert rehearsals == ([("run.sh",)] if runs else [])
    assert ended.code == (0 if runs else 3) or "ATN" in ended.stdout
    assert list_reasons(ended) == ([] if runs else [NOT_RUN.format(download)])


@pytest.mark.parametrize("launch", [LAUNCH, ""])
def test_agree_compares_what_launches_compute(
    launch: str, download: Path, rehearsals: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch runs only if it is trusted; without one the policy's models are compared."""
    requests: list[agreement.AgreeRequest] = []

    def run(snapshot: object, request: agreement.AgreeRequest, *rest: object) -> Report:
        requests.append(request)
        return Report("agree", laptop())

    monkeypatch.setattr(agreement, "run", run)
    settings = 'launch = ["run.sh"]\n' if launch else 'models = ["llama"]\n'
    policy = load_policy(write(download / "attncheck.toml", f'checks = ["agree"]\ndevice = "cpu"\n{settings}').parent)
    runner = make_runner(policy)
    if launch:
        with pytest.raises(Unanswered, match="is not trusted"):
            list(runner.run("agree", float("inf")))
        assert gate("--checks", "agree").code == 0
    else:
        list(runner.run("agree", float("inf")))
    assert [(request.model, len(request.sources)) for request in requests] == [("", 1) if launch else ("llama", 0)]


def test_a_level_that_implies_it_is_an_open_question(download: Path, rehearsals: list[tuple[str, ...]]) -> None:
    level = 'level = 3\ndevice = "cpu"\ntarget = "cpu"\nselect = ["ATN101"]\nlaunch = ["run.sh"]\n'
    (download / "run.sh").write_text("python -m trl sft --model_name_or_path gpt2 --dataset_name x --output_dir out\n")
    policy = load_policy(write(download / "attncheck.toml", level).parent)
    assert policy.path and not policy.checks
    runner = make_runner(policy)
    with pytest.raises(Unanswered, match="is not trusted"):
        list(runner.run("rehearsal", float("inf")))
    (download / "run.sh").write_text("make\n")  # which trains nothing: there is nothing to trust
    trust_nothing = make_runner(policy)
    list(trust_nothing.run("rehearsal", float("inf")))
    assert rehearsals == [("run.sh",)]


def make_runner(policy: Policy) -> checks.CheckRunner:
    from attncheck.gate.inputs import Inputs
    from attncheck.gate.run import read_policy_sources
    from attncheck.workers.execution import ExecutionTarget

    sources = read_policy_sources(policy)
    target = ExecutionTarget("python", "cpu")
    runner = checks.CheckRunner(policy, target, lambda text: None, sources, Inputs(sources))
    runner._snapshot = laptop()
    return runner


def test_a_kernel_of_the_hub_that_a_policy_names_is_code_too(download: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = 'checks = ["smoke"]\ndevice = "cpu"\n[plan]\nattn-implementation = "{}"\n'
    started: list[str] = []

    def run(snapshot: object, request: smoke.Request, *rest: object) -> Report:
        started.append(request.plan.attn_implementation)
        return Report("smoke", laptop())

    monkeypatch.setattr(smoke, "run", run)
    for name in ("sdpa", "kernels-community/flash-attn2"):
        policy = load_policy(write(download / "attncheck.toml", settings.format(name)).parent)
        runner = make_runner(policy)
        if "/" in name:
            with pytest.raises(Unanswered, match="is not trusted"):
                list(runner.run("smoke", float("inf")))
            trust.add_trust(policy, {}, "2026-11-21")
        list(runner.run("smoke", float("inf")))
    assert started == ["sdpa", "kernels-community/flash-attn2"]
    assert run_entry("trust", "--revoke").code == 0
    ended = run_entry("smoke", "--device", "cpu", "--only", "training")
    assert (ended.code, ended.stdout) == (3, "") and NOT_RUN.format(download) in ended.stderr


def test_a_kernel_that_the_command_names_needs_no_trust(download: Path) -> None:
    (download / "attncheck.toml").write_text('checks = ["smoke"]\ndevice = "cpu"\n')
    runner = make_runner(load_policy(download))
    job = Job("trl", "0.29", "sft", Plan(attn_implementation="a/b"), location=SourceLocation(COMMAND))
    for location, policy_plan, is_commands in (
        (SourceLocation(COMMAND), {}, True),
        (SourceLocation("run.sh"), {}, False),
        (SourceLocation(COMMAND), {"attn_implementation": "a/b"}, False),
    ):
        runner._job = replace(job, location=location)
        runner.policy = replace(runner.policy, plan=policy_plan)
        assert runner._plans_the_command() == is_commands


def test_smoke_trains_a_small_model_of_the_launch_whose_model_is_not_cached(
    download: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[tuple[str, ...]] = []

    def run(snapshot: object, request: smoke.Request, *rest: object) -> Report:
        trained.append(request.models)
        return Report("smoke", laptop())

    monkeypatch.setattr(smoke, "run", run)
    (download / "attncheck.toml").write_text('checks = ["smoke"]\ndevice = "cpu"\n')
    runner = make_runner(load_policy(download))
    for model in ("nobody/Qwen2.5-7B", "nobody/unknown"):
        runner._job = Job("trl", "0.29", "sft", Plan(), model=model, location=SourceLocation("run.sh"))
        list(runner.run("smoke", float("inf")))
    assert trained == [("qwen2",), smoke.DEFAULT_MODELS]


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "the policy": (lambda folder: write(folder / "attncheck.toml", SETTINGS + "budget = 60\n"), "attncheck.toml in "),
    "the launch": (lambda folder: write(folder / "run.sh", LAUNCH + "true\n"), "run.sh changed after "),
    "the script": (lambda folder: write(folder / "train.py", SCRIPT + "\n"), "train.py changed after "),
    "a file next to the script": (lambda folder: write(folder / "helper.py", "x = 1\n"), "helper.py changed after "),
    "a new file next to the script": (lambda folder: write(folder / "json.py", ""), "json.py changed after "),
    "nobody's": (lambda folder: (folder / "run.sh").chmod(0o666), "every user can write it (mode 666)"),
    "a policy that all can write": (lambda folder: (folder / "attncheck.toml").chmod(0o602), "every user can write it"),
    "revoked": (lambda folder: run_entry("trust", "--revoke"), "is not trusted"),
    "revoked by its file": (lambda folder: run_entry("trust", "--revoke", "attncheck.toml"), "is not trusted"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changed_is_no_longer_trusted(download: Path, rehearsals: list[tuple[str, ...]], change: str) -> None:
    make_change, reason = CHANGES[change]
    assert run_entry("trust").code == 0
    assert gate().code == 0 and len(rehearsals) == 1
    make_change(download)
    ended = gate()
    assert ended.code == 3 and len(rehearsals) == 1
    (answer,) = list_reasons(ended)
    assert answer.startswith("not run: ") and reason in answer
    if "write" not in reason:
        assert run_entry("trust").code == 0
        assert gate().code == 0 and len(rehearsals) == 2
    else:
        ended = run_entry("trust")
        assert ended.code == 2 and "cannot be trusted" in ended.stderr


def test_a_comment_and_another_table_of_pyproject_are_no_change(
    download: Path, rehearsals: list[tuple[str, ...]]
) -> None:
    (download / "attncheck.toml").unlink()
    table = f"[tool.attncheck]\n{SETTINGS}"
    write(download / "pyproject.toml", table)
    assert run_entry("trust").code == 0
    write(download / "pyproject.toml", f'# ours\n[project]\nname = "x"\n{table}')
    assert gate().code == 0 and len(rehearsals) == 1
    write(download / "pyproject.toml", table.replace("run.sh", "./run.sh"))
    assert gate().code == 3 and len(rehearsals) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a file to another user")
@pytest.mark.parametrize("name", ["attncheck.toml", "run.sh", "train.py"])
def test_a_file_of_another_user_is_not_trusted(download: Path, rehearsals: list[tuple[str, ...]], name: str) -> None:
    assert run_entry("trust").code == 0
    os.chown(download / name, 12345, -1)
    (reason,) = list_reasons(gate())
    assert f"{download / name}: it is owned by another user (uid 12345)" in reason and not rehearsals
    ended = run_entry("trust")
    assert ended.code == 2 and "uid 12345" in ended.stderr
    os.chown(download / name, os.getuid(), 54321)
    (download / name).chmod(0o664)
    assert "its group can write it" in list_reasons(gate())[0]


def test_a_copy_of_a_trusted_folder_is_another_folder(download: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_entry("trust").code == 0
    copy = download.parent / "copy"
    shutil.copytree(download, copy)
    monkeypatch.chdir(copy)
    assert list_reasons(gate()) == [NOT_RUN.format(copy)]
    link = download.parent / "link"
    link.symlink_to(copy)
    monkeypatch.chdir(link)
    assert list_reasons(gate()) == [NOT_RUN.format(copy)]


def test_a_policy_above_is_the_one_that_is_trusted(
    download: Path, rehearsals: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    below = download / "below"
    below.mkdir()
    (below / "train.py").write_text(SCRIPT)  # a launch is run if the user is: `python train.py` is this one
    monkeypatch.chdir(below)
    assert list_reasons(gate()) == [NOT_RUN.format(download)]
    monkeypatch.chdir(download)
    assert run_entry("trust").code == 0
    monkeypatch.chdir(below)
    (reason,) = list_reasons(gate())
    assert str(below / "train.py") in reason and not rehearsals
    assert run_entry("trust").code == 0
    assert gate().code == 0 and rehearsals == [("../run.sh",)]


def test_a_download_cannot_trust_itself(download: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its launch's environment is not attncheck's, and a store that others can write is not believed."""
    state = download / "state"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(state))
        assert run_entry("trust").code == 0
    (download / "run.sh").write_text(f"export XDG_STATE_HOME={state} HOME={download}\n{LAUNCH}")
    (download / ".env").write_text(f"XDG_STATE_HOME={state}\n")
    assert list_reasons(gate()) == [NOT_RUN.format(download)]
    (download / "attncheck.toml").write_text(SETTINGS + "trusted = true\n")
    assert gate().code == 2
    monkeypatch.setenv("XDG_STATE_HOME", "state")  # a relative one would be the download's
    (download / "attncheck.toml").write_text(SETTINGS)
    assert list_reasons(gate()) == [NOT_RUN.format(download)]


def test_the_store_is_private_and_of_this_user(download: Path, rehearsals: list[tuple[str, ...]]) -> None:
    assert run_entry("trust").code == 0
    store = download.parent / "xdg_state_home" / "attncheck"
    (file,) = (store / "trusted").iterdir()
    assert [path.stat().st_mode & 0o777 for path in (store, store / "trusted", file)] == [0o700, 0o700, 0o600]
    for path, mode in ((file, 0o666), (file.parent, 0o777)):
        before = path.stat().st_mode & 0o777
        path.chmod(mode)
        assert gate().code == 3, path
        path.chmod(before)
    assert gate().code == 0 and len(rehearsals) == 1
    file.write_text(file.read_text()[:-20])  # damaged
    assert gate().code == 3


def test_a_kept_answer_knows_what_was_trusted(download: Path, rehearsals: list[tuple[str, ...]]) -> None:
    """The key of a kept answer holds the trust: neither trusting nor revoking finds an answer of before."""
    settings = 'checks = ["doctor", "rehearsal"]\ntarget = "cpu,torch=none"\nselect = ["ATN101"]\nlaunch = ["run.sh"]\n'
    (download / "attncheck.toml").write_text(settings + 'device = "cpu"\n')
    start = ("run", "--format", "json", "--", "/bin/true")
    cache = download.parent / "xdg_cache_home" / "attncheck"

    def count_answers() -> int:
        return len(list(cache.glob("answer-*.json")))

    assert run_entry(*start).code == 1  # a finding of doctor's, kept with the open question
    assert run_entry(*start).code == 1 and (count_answers(), len(rehearsals)) == (1, 0)
    assert run_entry("trust").code == 0
    assert run_entry(*start).code == 1
    assert run_entry(*start).code == 1 and (count_answers(), len(rehearsals)) == (2, 1)
    assert run_entry("trust", "--revoke").code == 0
    assert "not trusted" in run_entry(*start).stderr and len(rehearsals) == 1


@pytest.mark.parametrize("change", ["the script", "revoked"])
def test_a_kept_pass_does_not_outlive_trust(download: Path, rehearsals: list[tuple[str, ...]], change: str) -> None:
    start = ("run", "--format", "json", "--", "/bin/true")
    assert run_entry("trust").code == 0
    assert [run_entry(*start).code for _ in range(2)] == [0, 0] and len(rehearsals) == 1
    CHANGES[change][0](download)
    assert run_entry(*start).code == 3 and len(rehearsals) == 1


def test_trust_says_what_is_wrong_and_lists(download: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_entry("trust", "--list").stdout == "nothing is trusted\n"
    assert run_entry("trust", str(download)).code == 0
    assert run_entry("trust", "attncheck.toml").code == 0
    assert run_entry("trust", "--list").stdout.split()[0] == str(download / "attncheck.toml")
    assert f"{download / 'attncheck.toml'} is no longer trusted" in run_entry("trust", "--revoke", ".").stdout
    assert "no policy of" in run_entry("trust", "--revoke").stdout
    for argv, message in (
        (("no-such-folder",), "no-such-folder is not the policy that applies"),
        (("no/such/folder",), "cannot read"),
        (("run.sh",), "run.sh is not the policy that applies"),
    ):
        monkeypatch.chdir(download)
        ended = run_entry("trust", *argv)
        assert (ended.code, ended.stdout) == (2, "") and message in ended.stderr
    empty = download.parent / "empty"
    empty.mkdir()
    ended = run_entry("trust", str(empty))
    assert ended.code == 2 and "no policy applies" in ended.stderr
    monkeypatch.chdir(download)
    for variable in ("HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(variable)
    assert run_entry("trust").code == 3


def test_other_writers(tmp_path: Path) -> None:
    file = write(tmp_path / "file", "")
    for mode, writable in ((0o600, False), (0o644, False), (0o664, False), (0o646, True), (0o666, True)):
        file.chmod(mode)
        assert bool(private_folder.describe_other_writers(file)) == writable, oct(mode)
    assert private_folder.describe_other_writers(tmp_path / "missing")
