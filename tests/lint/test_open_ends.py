"""What was not read may set it: a conclusion from absence is a warning then, and says what was not read."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from attncheck.core.findings import Finding
from attncheck.core.launch import Source
from attncheck.core.report import Report
from attncheck.core.results.lint import launches_of
from attncheck.doctor.target import apply_target, parse_target
from attncheck.lint import run
from attncheck.lint.context import Request
from attncheck.lint.launches import find_launches
from attncheck.report.sections.lint import launch_rows
from tests import snapshots as s
from tests.lint import launches
from tests.lint.programs.trees import write_tree

PPO = "python3 -m verl.trainer.main_ppo trainer.n_gpus_per_node=8"
SFT = "torchrun --nproc_per_node 8 -m openrlhf.cli.train_sft --pretrain m --dataset d"


def lint(text: str, version: str) -> tuple[list[Finding], Report]:
    request = Request((Source("run.sh", text, "shell"),), version=version)
    report = run.run(s.laptop(), request, launches.read_model, launches.read_no_file)
    return [finding for finding in report.findings if finding.code == "ATN441"], report


def open_ends(text: str) -> tuple[str, ...]:
    [launch] = find_launches(Source("run.sh", text, "shell"), launches.read_no_file)
    return launch.open_ends


@pytest.mark.parametrize(
    "words",
    ['"$@"', "$@", "$*", '"${@:2}"', "$EXTRA_ARGS", "${ARGS[@]}", "$(cat options)", "`cat options`", "--config $1",
     '--"$KIND"', "--no-${KIND}=1", "--config missing.yaml", '"$ROOT/x.yaml"', "config=$ROOT/x.yaml"],
)  # fmt: skip
def test_what_may_set_more_is_an_open_end(words: str) -> None:
    [end] = open_ends(f"{PPO} {words}")
    assert "run.sh:1:" in end or end == "the configuration file missing.yaml"


@pytest.mark.parametrize(
    "words",
    [
        "--model $MODEL",
        "a.b=$1",
        '--path "$HOME/x"',
        "--n $(nproc)",
        "",
        "data.x='$y'",
        "tools=$ROOT/x.yaml",
        "--kind=$KIND",
        "--kind --",
    ],
)
def test_an_unknown_value_is_no_open_end(words: str) -> None:
    assert open_ends(f"{PPO} {words}") == ()


def test_absence_is_an_error_only_where_everything_was_read() -> None:
    whole, _ = lint(PPO, "0.5.0")
    open_, _ = lint(PPO + ' "$@"', "0.5.0")
    assert {finding.severity for finding in whole} == {"error"}
    assert {finding.severity for finding in open_} == {"warning"} and len(open_) == len(whole)
    assert all("not read, but may set it: $@ (run.sh:1:" in finding.evidence[-1] for finding in open_)


def test_what_is_written_is_judged_whatever_else_there_is() -> None:
    both = " data.train_batch_size=8 actor_rollout_ref.actor.ppo_mini_batch_size=16"
    for more in ("", ' "$@"'):
        findings, _ = lint(PPO + both + more, "0.5.0")
        assert [f.severity for f in findings if "less than actor" in f.message] == ["error"]


def test_a_value_that_only_running_tells_is_no_evidence() -> None:
    text = PPO + " data.train_batch_size=$1 actor_rollout_ref.actor.ppo_mini_batch_size=16"
    findings, _ = lint(text, "0.5.0")
    assert not [finding for finding in findings if finding.severity == "error" and "batch_size=" in finding.message]


def test_the_launch_of_a_wrapper_keeps_its_arguments_as_they_are() -> None:
    [launch] = find_launches(Source("run.sh", f'{SFT} "$@"', "shell"), launches.read_no_file)
    assert launch.whole[-1].text == "$@" and launch.words[-1].text == "d"


@pytest.mark.parametrize(("text", "mark"), [('python3 -m verl.trainer.main_ppo "$@"', "-"), (SFT, "open")])
def test_ok_is_not_said_of_what_was_not_read(text: str, mark: str) -> None:
    source = Source("run.sh", text, "shell")
    report = run.run(s.h200(), Request((source,)), launches.read_model, launches.read_no_file)
    report = Report("lint", report.snapshot, sections=report.sections)
    assert launches_of(report)
    [(shown, _, line)] = launch_rows(report, report.sections["lint"])  # type: ignore[arg-type]
    assert shown == mark and line.endswith("nothing read") is (mark == "-")


def test_a_configuration_that_was_not_read_leaves_absence_open() -> None:
    for options in (
        "--config-path=$CONFIG_DIR --config-name=multiturn",
        "--config-path=/nowhere --config-name=multiturn",
    ):
        assert not [f for f in lint(f"{PPO} {options}", "0.5.0")[0] if "unset" in f.message]
    assert [f for f in lint(PPO, "0.5.0")[0] if "unset" in f.message]


LLAMA = "llamafactory-cli train {} stage=sft dataset=d model_name_or_path=m template=qwen output_dir=o\n"


@pytest.mark.parametrize(
    ("file", "is_said"),
    [("", True), ("lr=$1", True), ('"$@"', True), ('"$config_file"', False), ("$1", False), ("missing.yaml", False)],
)
def test_a_configuration_that_was_not_read_may_set_what_a_fix_would_add(file: str, is_said: bool) -> None:
    request = Request((Source("run.sh", LLAMA.format(file), "shell"),), version="0.9.4")
    report = run.run(s.laptop(), request, launches.read_model, launches.read_no_file)
    assert ("ATN445" in {finding.code for finding in report.findings}) is is_said


@pytest.mark.parametrize(
    ("words", "is_said"), [("", True), (' "$@"', True), (" --config-path=/x --config-name=y", False)]
)
def test_a_rule_whose_fix_adds_a_setting_says_nothing_if_the_configuration_was_not_read(
    words: str, is_said: bool
) -> None:
    request = Request((Source("run.sh", PPO + words, "shell"),), version="0.9.1")
    report = run.run(s.laptop(), request, launches.read_model, launches.read_no_file)
    assert ("ATN425" in {finding.code for finding in report.findings}) is is_said


OVERRIDES = "data.train_batch_size=8 actor_rollout_ref.actor.ppo_mini_batch_size=16 trainer.n_gpus_per_node=8"


def test_overrides_for_a_script_are_read_with_its_launch() -> None:
    """`bash ppo.sh a.b=1` is no launch of its own: the script may set everything that the command does not."""

    def read_file(name: str) -> Source | None:
        return Source(name, f'{PPO} actor_rollout_ref.rollout.n=4 "$@"', "shell") if name == "ppo.sh" else None

    request = Request((Source("run.sh", f"bash ppo.sh {OVERRIDES}", "shell"),), version="0.5.0")
    [launch] = launches_of(run.run(s.laptop(), request, launches.read_model, read_file))
    names = {setting.name for setting in launch.job.settings}
    assert names >= {"actor_rollout_ref.rollout.n", "data.train_batch_size"}


@pytest.mark.parametrize(
    ("before", "is_said"), [("bash /nowhere/ppo.sh", False), ("python -m verl.trainer.main_ppo", True)]
)
def test_a_script_that_was_not_read_may_set_what_is_absent(before: str, is_said: bool) -> None:
    findings, _ = lint(f"{before} {OVERRIDES}", "0.5.0")
    assert any("unset" in finding.message for finding in findings) is is_said


@pytest.mark.parametrize(("path", "is_said"), [("${ROOT}/x.yaml", False), ("--stage sft", True)])
def test_a_program_raises_nothing_for_what_an_unread_file_may_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, is_said: bool
) -> None:
    arguments = """
        from dataclasses import dataclass

        @dataclass
        class ModelArguments:
            model_name_or_path: str | None = None

            def __post_init__(self):
                if self.model_name_or_path is None:
                    raise ValueError("Please provide `model_name_or_path`.")
        """
    parser = """
        from transformers import HfArgumentParser
        from .model_args import ModelArguments

        def get_train_args(args=None):
            return HfArgumentParser([ModelArguments]).parse_args_into_dataclasses()
        """
    files = {"__init__.py": "", "hparams/__init__.py": "", "hparams/parser.py": parser}
    files |= {"hparams/model_args.py": arguments}
    write_tree(tmp_path, {f"src/llamafactory/{name}": textwrap.dedent(text) for name, text in files.items()})
    monkeypatch.chdir(tmp_path)
    findings, _ = lint(f"llamafactory-cli train {path}", "0.9.4")
    assert any("Please provide" in finding.message for finding in findings) is is_said


PROGRAM = """
import subprocess
command = ["python", "-m", "openrlhf.cli.train_ppo_ray", "--pretrain", "m", "--packing_samples"]
{more}
subprocess.run(command)
"""


@pytest.mark.parametrize(
    ("more", "is_said"),
    [
        ("", True),
        ("for name in settings:\n    command.append(f'--{name}')", False),
        ("command += ['--bf16']", True),
    ],
)
def test_options_that_a_program_adds_in_a_loop_may_set_what_is_absent(more: str, is_said: bool) -> None:
    request = Request((Source("run.py", PROGRAM.format(more=more), "python"),), version="0.8.4")
    report = run.run(s.laptop(), request, launches.read_model, launches.read_no_file)
    messages = [finding.message for finding in report.findings if finding.code == "ATN441"]
    assert any("packing without" in message for message in messages) is is_said
    [launch] = launches_of(report)
    assert ("attn_implementation" in launch.job.unknown) is not is_said


@pytest.mark.parametrize(("words", "severity"), [("", "error"), (' "$@"', "warning")])
def test_an_absent_setting_is_no_proof_at_another_setting(words: str, severity: str) -> None:
    text = f"python -m openrlhf.cli.train_ppo_ray --pretrain m \\\n --packing_samples{words}"
    findings, _ = lint(text, "0.8.4")
    assert [finding.severity for finding in findings if "packing without" in finding.message] == [severity]


@pytest.mark.parametrize(("setting", "is_said"), [("", False), ("trainer.n_gpus_per_node=8 ", True)])
def test_arguments_that_set_everything_are_never_empty(setting: str, is_said: bool) -> None:
    command = f'python3 -m verl.trainer.main_ppo {setting}"$@"'
    assert bool(lint(command, "0.5.0")[0]) == is_said


PACKED = "model_name_or_path: m\npacking: true\nmax_seq_length: 64\noutput_dir: o\ndataset_name: d\nbf16: true\n"
PACKED += "per_device_train_batch_size: 1\nlearning_rate: 2.0e-05\n"


@pytest.mark.parametrize(("command", "severity"), [("", "warning"), ("trl sft --config a.yaml\n", "error")])
def test_a_file_alone_may_be_read_by_any_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, severity: str
) -> None:
    """R1-V's sft.py, for which such a file was written, sets dataset_kwargs, so that nothing is packed."""
    monkeypatch.chdir(tmp_path)
    file = Source("a.yaml", PACKED, "yaml")
    source = Source("run.sh", command, "shell") if command else file
    target = apply_target(s.laptop(), parse_target("h100x8,trl=0.16.0,transformers=4.50.0"))
    report = run.run(target, Request((source,)), launches.read_model, {"a.yaml": file}.get)
    assert [finding.severity for finding in report.findings if finding.code == "ATN444"] == [severity]
