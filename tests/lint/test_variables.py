"""The environment that rules judge is the launch's own: its exports, prefixes, launchers' and runtime environments'."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attncheck.core.facts import Known, Unreadable
from attncheck.core.launch import Source
from attncheck.core.report import Report
from attncheck.core.results.lint import launches_of
from attncheck.core.snapshot import Snapshot
from attncheck.lint import run
from attncheck.lint.context import Request
from attncheck.lint.launches import find_launches
from tests import snapshots as s
from tests.lint import launches

RUN = "torchrun --nproc_per_node 1 -m openrlhf.cli.train_sft --model.model_name_or_path Qwen/Qwen2.5-7B\n"
BLOCKING = "export CUDA_LAUNCH_BLOCKING=1\n"


def lint_text(text: str, snapshot: Snapshot | None = None, kind: str = "shell", **files: str) -> Report:
    name = "run.sh" if kind == "shell" else "command line"
    sources = {file.replace("_", "."): Source(file.replace("_", "."), text, "yaml") for file, text in files.items()}
    source = Source(name, text, "shell" if kind == "shell" else "command")
    snapshot = snapshot or launches.make_environments()["h200"]
    return run.run(snapshot, Request((source,)), launches.read_model, sources.get)


def locate(report: Report, code: str) -> list[str]:
    return [str(location) for finding in report.findings if finding.code == code for location in finding.locations]


# Each way to set CUDA_LAUNCH_BLOCKING, and where it is.
WAYS = {
    "export": (BLOCKING + RUN, "run.sh:1:8"),
    "set and then exported": ("CUDA_LAUNCH_BLOCKING=1\nexport CUDA_LAUNCH_BLOCKING\n" + RUN, "run.sh:1:1"),
    "prefix": (f"\nCUDA_LAUNCH_BLOCKING=1 {RUN}", "run.sh:2:1"),
    "env": (f"env A=b CUDA_LAUNCH_BLOCKING=1 {RUN}", "run.sh:1:9"),
    "srun": (f"srun --export=ALL,CUDA_LAUNCH_BLOCKING=1 {RUN}", "run.sh:1:19"),
    "mpirun": (f"mpirun -np 1 -x CUDA_LAUNCH_BLOCKING=1 {RUN}", "run.sh:1:17"),
    "ray's JSON": (
        'ray job submit --runtime-env-json=\'{"env_vars": {"X": "0",\n "CUDA_LAUNCH_BLOCKING": "1"}}\' -- ' + RUN,
        "run.sh:2:2",
    ),
    "bash -c": (f"CUDA_LAUNCH_BLOCKING=1 bash -c '{RUN.strip()}'\n", "run.sh:1:1"),
    "a branch with its launch": (f'if [ -n "$DEBUG" ]; then\n{BLOCKING}{RUN}fi\n', "run.sh:2:8"),
    "a function": (f"setup() {{\n  {BLOCKING}}}\nsetup\n{RUN}", "run.sh:2:10"),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_a_launch_sets_is_judged_where_it_stands(way: str) -> None:
    text, location = WAYS[way]
    assert locate(lint_text(text), "ATN561") == [location]


SILENT = {
    "it does not": RUN,
    "after the launch": RUN + BLOCKING,
    "0": BLOCKING.replace("1", "0") + RUN,
    "unset again": BLOCKING + "unset CUDA_LAUNCH_BLOCKING\n" + RUN,
    "not exported": "CUDA_LAUNCH_BLOCKING=1\n" + RUN,
    "for another command": "CUDA_LAUNCH_BLOCKING=1 nvidia-smi\n" + RUN,
    "only running tells": "export CUDA_LAUNCH_BLOCKING=${DEBUG:+1}$X\n" + RUN,
    "between branches": f'if [ -n "$DEBUG" ]; then\n{BLOCKING}else\n{RUN}fi\n',
    "under a condition": f'if [ -n "$DEBUG" ]; then\n{BLOCKING}fi\n{RUN}',
    "in a case": f'case "$MODE" in\ndebug)\n{BLOCKING};;\nrun)\n{RUN};;\nesac\n',
    "behind a test": f'[ -n "$DEBUG" ] && {BLOCKING}{RUN}',
    "before a job that Ray starts elsewhere": f"{BLOCKING}ray job submit -- {RUN}",
}


@pytest.mark.parametrize("way", SILENT)
def test_what_is_not_certainly_set_is_not_judged(way: str) -> None:
    assert locate(lint_text(SILENT[way]), "ATN561") == []


def test_the_callers_shell_is_evidence_for_a_typed_command_alone() -> None:
    caller = s.with_env(launches.make_environments()["h200"], CUDA_LAUNCH_BLOCKING="1")
    assert any(finding.code == "ATN561" for finding in lint_text(RUN, caller, "command").findings)
    assert not any(finding.code == "ATN561" for finding in lint_text(RUN, caller).findings)
    over = f"CUDA_LAUNCH_BLOCKING=0 {RUN}"
    assert not any(finding.code == "ATN561" for finding in lint_text(over, caller, "command").findings)


def test_what_a_script_does_not_set_is_unknown_and_not_absent() -> None:
    snapshot = s.with_gpus(launches.make_environments()["h200"], (8, 9), (8, 9), name="NVIDIA GeForce RTX 4090")
    assert isinstance(snapshot.driver, Known)
    snapshot = replace(snapshot, driver=Known(replace(snapshot.driver.value, version="535.54.03")))
    snapshot = s.with_package(snapshot, "accelerate", "1.15.0")
    assert any(finding.code == "ATN220" for finding in lint_text(RUN, snapshot, "command").findings)
    report = lint_text(RUN, snapshot)
    assert not any(finding.code == "ATN220" for finding in report.findings)
    assert any(skip.code == "ATN220" and "NCCL_P2P_DISABLE" in skip.reason for skip in report.skips)
    known = replace(snapshot, environ={}, environ_gap="nobody looked")
    assert isinstance(known.env("A"), Unreadable)


def test_a_fix_says_where_the_script_sets_it() -> None:
    finding = next(finding for finding in lint_text(BLOCKING + RUN).findings if finding.code == "ATN561")
    assert [(fix.kind, fix.title, fix.text) for fix in finding.fixes] == [
        ("edit", "unset CUDA_LAUNCH_BLOCKING, in run.sh:1:8", "# without CUDA_LAUNCH_BLOCKING=1")
    ]


def test_only_variables_that_may_be_shown_are_in_the_report() -> None:
    text = "export HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz0123456789 MY_NAME=me NCCL_DEBUG=INFO\n" + RUN
    job = launches_of(lint_text(text))[0].job
    assert [variable.name for variable in job.variables] == ["NCCL_DEBUG"]
    assert job.plan.environ == (("NCCL_DEBUG", "INFO"),)


def test_visible_devices_of_the_launch_count() -> None:
    snapshot = s.with_gpus(launches.make_environments()["h200"], *[(9, 0)] * 8)
    for count, codes in ((2, []), (4, ["ATN447"])):
        text = f"CUDA_VISIBLE_DEVICES=4,5 {RUN.replace('node 1', f'node {count}')}"
        findings = [finding for finding in lint_text(text, snapshot).findings if finding.code in ("ATN447", "ATN213")]
        assert [finding.code for finding in findings] == codes
        assert all(str(finding.locations[0]) == "run.sh:1:1" for finding in findings)


def test_a_ray_runtime_environment_file_is_read() -> None:
    text = f"ray job submit --runtime-env env.yaml -- {RUN}"
    report = lint_text(text, env_yaml='working_dir: .\nenv_vars:\n  CUDA_LAUNCH_BLOCKING: "1"\n')
    assert locate(report, "ATN561") == ["env.yaml:3:3"]
    notes = find_launches(Source("run.sh", text, "shell"), lambda name: None)[0].notes
    assert notes == ("the runtime environment env.yaml could not be read",)


@pytest.mark.parametrize(("version", "is_read"), [("0.5.0", False), ("0.9.0", True)])
def test_verl_hands_its_runtime_environment_to_workers(version: str, is_read: bool) -> None:
    text = (
        "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen2.5-7B \\\n"
        "  +ray_kwargs.ray_init.runtime_env.env_vars.CUDA_LAUNCH_BLOCKING=1\n"
    )
    report = run.run(
        launches.make_environments()["h200"],
        Request((Source("run.sh", text, "shell"),), version=version),
        launches.read_model,
        launches.read_no_file,
    )
    assert locate(report, "ATN561") == (["run.sh:2:3"] if is_read else [])
