"""What a DeepSpeed configuration next to a launch makes of the job, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from attncheck.core.facts import Absent, Fact, Known, Unreadable
from attncheck.core.job import Job
from attncheck.core.launch import Kind, Source
from attncheck.core.model import Model
from attncheck.core.report import Report
from attncheck.core.results.lint import launches_of
from attncheck.lint import run
from attncheck.lint.context import Request
from tests import snapshots

AUTO = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"},
    "fp16": {"enabled": "auto"},
    "zero_optimization": {"stage": 3},
}
# After hiyouga/LLaMA-Factory examples/train_full/llama3_full_sft.yaml with examples/deepspeed/ds_z3_config.json
LLAMAFACTORY = """\
model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
stage: sft
do_train: true
finetuning_type: full
deepspeed: examples/ds.json
dataset: identity
template: llama3
cutoff_len: 2048
output_dir: saves
per_device_train_batch_size: 1
gradient_accumulation_steps: 2
learning_rate: 1.0e-5
bf16: true
"""
# After haotian-liu/LLaVA scripts/v1_5/finetune.sh
SCRIPT = (
    "deepspeed --num_gpus 8 train/train_mem.py --deepspeed ./ds.json --model_name_or_path m --bf16 True --output_dir o "
    "--per_device_train_batch_size 16 --gradient_accumulation_steps 1 --learning_rate 2e-5"
)
ACCELERATE = """\
compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
deepspeed_config:
  deepspeed_config_file: ds.json
  zero3_init_flag: true
num_machines: 1
num_processes: 8
"""
ACCELERATED = "accelerate launch --config_file zero3.yaml -m trl.scripts.sft --model_name_or_path m --dataset_name d"


def read_no_model(name: str) -> Fact[Model]:
    return Absent("none")


def lint(text: str, kind: Kind, files: dict[str, Any], version: str = "") -> tuple[Job, Report]:
    """Return the job and the report of a launch alongside files; a file of text is YAML, any other JSON."""
    sources = {
        name: Source(name, content, "yaml" if name.endswith("yaml") else "json")
        if isinstance(content, str)
        else Source(name, json.dumps(content), "json")
        for name, content in files.items()
    }
    source = Source({"yaml": "job.yaml"}.get(kind, "run.sh"), text, kind)
    report = run.run(snapshots.h200(), Request((source,), version=version), read_no_model, sources.get)
    return launches_of(report)[0].job, report


def deepspeed_messages(report: Report, severity: str = "error") -> list[str]:
    return [
        finding.message
        for finding in report.findings
        if finding.severity == severity and ("ds.json" in finding.message or "zero3.yaml" in finding.message)
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bf16": {"enabled": False}}, "bf16.enabled is false but bf16 is true"),
        ({"fp16": {"enabled": True}}, "fp16.enabled is true but fp16 is false"),
        ({"train_micro_batch_size_per_gpu": 4}, "train_micro_batch_size_per_gpu is 4 but"),
        ({"gradient_accumulation_steps": 1}, "gradient_accumulation_steps is 1 but gradient_accumulation_steps is 2"),
        ({"optimizer": {"type": "AdamW", "params": {"lr": 3e-5}}}, "optimizer.params.lr is 3e-05 but learning_rate"),
        ({"bf16": {"enabled": True}, "fp16": {"enabled": True}}, "enables bf16 and fp16"),
    ],
)
def test_a_contradiction_is_refused(change: dict[str, Any], words: str) -> None:
    _, report = lint(LLAMAFACTORY, "yaml", {"examples/ds.json": {**AUTO, **change}}, "0.9.4")
    command = "llamafactory-cli train job.yaml"
    _, by_command = lint(command, "shell", {"job.yaml": LLAMAFACTORY, "examples/ds.json": {**AUTO, **change}}, "0.9.4")
    assert any(words in message for message in deepspeed_messages(by_command))
    assert any(words in message for message in deepspeed_messages(report, "warning"))  # who starts it is not known


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"bf16": {"enabled": True}},
        {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2},
        {"optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "weight_decay": 0.1}}},  # the other one is not written
        {"gradient_clipping": 1.0},
        {"train_batch_size": 64},  # over how many ranks is not known
    ],
)
def test_a_healthy_neighbour_is_silent(change: dict[str, Any]) -> None:
    files = {"job.yaml": LLAMAFACTORY, "examples/ds.json": {**AUTO, **change}}
    job, report = lint("llamafactory-cli train job.yaml", "shell", files, "0.9.4")
    assert not deepspeed_messages(report)
    assert not deepspeed_messages(report, "warning")
    assert job.plan.precision == "bf16"  # the weights themselves


def test_a_script_of_ones_own_is_warned_of_only() -> None:
    files = {"./ds.json": {**AUTO, "train_batch_size": 64}}
    _, report = lint(SCRIPT, "shell", files)
    assert not deepspeed_messages(report)
    assert "16 rows × 1 step × 8 ranks is 128" in deepspeed_messages(report, "warning")[0]
    assert not deepspeed_messages(lint(SCRIPT, "shell", {"./ds.json": {**AUTO, "train_batch_size": 128}})[1], "warning")


@pytest.mark.parametrize("files", [{}, {"./ds.json": "{ not json"}, {"./ds.json": "[1]"}])
def test_nothing_is_concluded_from_a_file_that_is_not_read(files: dict[str, Any]) -> None:
    job, report = lint(SCRIPT, "shell", files)
    assert job.plan.precision == "autocast"
    assert not deepspeed_messages(report)
    assert not deepspeed_messages(report, "warning")


def test_a_value_that_only_running_tells_contradicts_nothing() -> None:
    text = SCRIPT.replace("--learning_rate 2e-5", "--learning_rate $LR")
    files = {"./ds.json": {**AUTO, "optimizer": {"params": {"lr": 1e-4}}}}
    assert not deepspeed_messages(lint(text, "shell", files)[1], "warning")


def test_the_folder_that_a_script_changes_into_comes_first() -> None:
    files = {"finetune/ds.json": {**AUTO, "train_micro_batch_size_per_gpu": 2}, "ds.json": AUTO}
    _, report = lint(f"cd finetune\n{SCRIPT}", "shell", files)
    assert "train_micro_batch_size_per_gpu is 2" in deepspeed_messages(report, "warning")[0]


@pytest.mark.parametrize(
    ("lines", "names"),
    [
        ("mixed_precision: bf16\n", "mixed_precision"),
        ("gradient_clipping: 1.0\n", ""),  # not within deepspeed_config
        ("", ""),
    ],
)
def test_accelerate_refuses_its_own_settings_beside_a_file(lines: str, names: str) -> None:
    files = {"zero3.yaml": ACCELERATE + lines, "ds.json": AUTO}
    messages = deepspeed_messages(lint(ACCELERATED, "shell", files, "0.24.0")[1])
    assert messages == ([f"zero3.yaml sets {names} alongside a DeepSpeed file: ValueError"] if names else [])


def test_accelerate_refuses_a_stage_beside_the_programs_file() -> None:
    yaml = ACCELERATE.replace("deepspeed_config_file: ds.json", "zero_stage: 3")
    messages = deepspeed_messages(
        lint(f"{ACCELERATED} --deepspeed ds.json", "shell", {"zero3.yaml": yaml}, "0.24.0")[1]
    )
    assert messages == ["zero3.yaml sets zero_stage alongside a DeepSpeed file: ValueError"]
    assert not deepspeed_messages(lint(ACCELERATED, "shell", {"zero3.yaml": yaml}, "0.24.0")[1])
    by_fsdp = yaml.replace("DEEPSPEED", "FSDP")
    assert not deepspeed_messages(lint(f"{ACCELERATED} --deepspeed ds.json", "shell", {"zero3.yaml": by_fsdp})[1])


def test_mixed_precision_on_the_command_is_accelerates_own() -> None:
    files = {"zero3.yaml": ACCELERATE + "mixed_precision: bf16\n", "ds.json": AUTO}
    text = ACCELERATED.replace("launch", "launch --mixed_precision bf16")
    assert not deepspeed_messages(lint(text, "shell", files, "0.24.0")[1])


def test_the_stage_in_the_file_goes_before_its_name() -> None:
    text = LLAMAFACTORY.replace("ds.json", "ds_z3.json") + "pure_bf16: true\n"
    command = "llamafactory-cli train job.yaml"
    stages = {2: False, 3: True}
    for stage, is_refused in stages.items():
        files = {"job.yaml": text, "examples/ds_z3.json": {**AUTO, "zero_optimization": {"stage": stage}}}
        _, report = lint(command, "shell", files, "0.9.4")
        assert any("ZeRO-3" in finding.message for finding in report.findings) is is_refused


def test_a_nested_table_is_the_configuration_itself() -> None:
    nested = "deepspeed:\n  train_micro_batch_size_per_gpu: 4\n  bf16:\n    enabled: auto\n"
    text = LLAMAFACTORY.replace("deepspeed: examples/ds.json\n", nested)
    assert "contradicts the launch" in str(lint(text, "yaml", {}, "0.9.4")[1].findings)


def test_openrlhf_takes_no_such_file() -> None:
    text = "deepspeed --module openrlhf.cli.train_sft --deepspeed ds.json --model.model_name_or_path m"
    job, _ = lint(text, "shell", {"ds.json": {**AUTO, "fp16": {"enabled": True}}})
    assert job.plan.precision == "bf16"
    assert all("ds.json" not in problem.message for problem in job.problems)


TRL = "-m trl.scripts.sft --model_name_or_path m --dataset_name d --gradient_accumulation_steps 4"
ZERO = "distributed_type: DEEPSPEED\nnum_processes: 8\n"
FSDP = "distributed_type: FSDP\nnum_processes: 8\n"


@pytest.mark.parametrize(
    ("command", "files", "expected"),
    [
        (f"torchrun --nproc-per-node 8 {TRL}", {}, Known(False)),
        (f"torchrun --nproc-per-node 8 {TRL} --deepspeed ds.json", {}, Known(True)),
        (f"torchrun --nproc-per-node 8 {TRL} --deepspeed $CONFIG", {}, Known(True)),
        (f"accelerate launch --use_deepspeed --zero_stage 2 {TRL}", {}, Known(True)),
        (f"ACCELERATE_USE_DEEPSPEED=true python {TRL}", {}, Known(True)),
        (f"accelerate launch --config_file a.yaml {TRL}", {"a.yaml": ZERO}, Known(True)),
        (f"accelerate launch --config_file a.yaml {TRL}", {"a.yaml": FSDP}, Known(False)),
        (f"accelerate launch --config_file a.yaml --use_fsdp {TRL}", {"a.yaml": ZERO}, Known(False)),
        (f"accelerate launch --config_file zero3.yaml {TRL}", {}, Known(True)),
        (f"accelerate launch --config_file a.yaml {TRL}", {}, None),
        (f"trl sft --accelerate_config zero2 {TRL[19:]}", {}, Known(True)),
        (f"trl sft --accelerate_config fsdp2 {TRL[19:]}", {}, Known(False)),
    ],
)
def test_whether_deepspeed_takes_the_gradients(
    command: str, files: dict[str, str], expected: Fact[bool] | None
) -> None:
    job, _ = lint(command, "shell", files, "1.16.0")
    assert job.plan.accumulation == 4
    assert isinstance(job.deepspeed, Unreadable) if expected is None else job.deepspeed == expected


@pytest.mark.parametrize(
    ("options", "severities"), [("", ["error"]), ("--use_deepspeed", []), ("--config_file a.yaml", ["warning"])]
)
def test_divided_gradients_are_an_error_where_nothing_else_can_be(options: str, severities: list[str]) -> None:
    """accelerate's file, which is not there, may name DeepSpeed: then nothing is proven."""
    source = Source("run.sh", f"accelerate launch {options} {TRL}", "shell")
    snapshot = snapshots.with_package(snapshots.h200(), "transformers", "5.3.0")
    report = run.run(snapshot, Request((source,), version="1.0.0"), read_no_model, lambda name: None)
    assert [finding.severity for finding in report.findings if finding.code == "ATN457"] == severities
