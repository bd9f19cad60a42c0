"""A setting whose value is known only at run time is not judged as if it were not given."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from attncheck.core.findings import Finding
from attncheck.core.launch import Source
from attncheck.core.report import Report
from attncheck.core.results.lint import launches_of
from attncheck.lint import run
from attncheck.lint.context import Request
from attncheck.lint.inputs import make_file_reader
from attncheck.lint.sources import read_source
from attncheck.report.sections.lint import describe_job
from tests import snapshots as s
from tests.lint import launches, test_clashes
from tests.lint.programs.trees import write_tree

VERL = "python3 -m verl.trainer.main_ppo trainer.n_gpus_per_node=8 "
SWIFT = "swift sft --model m --dataset d --torch_dtype bfloat16 "
LLAMA = "llamafactory-cli train --stage sft --do_train --model_name_or_path m --dataset d --template qwen --bf16 "
OPENRLHF = "deepspeed --num_gpus 8 --module openrlhf.cli.train_sft --pretrain m --dataset d "


def lint(text: str, **versions: str) -> Report:
    snapshot = s.with_gpus(s.h200(), *[launches.H200] * 8, name="NVIDIA H200")
    for name, version in versions.items():
        snapshot = s.with_package(snapshot, name.replace("_", "-"), version)
    return run.run(snapshot, Request((Source("run.sh", text, "shell"),)), launches.read_model, launches.read_no_file)


def list_judged(report: Report) -> list[Finding]:
    return [finding for finding in report.findings if finding.severity != "note" and finding.locations]


def hide(case: test_clashes.Case) -> str:
    """Return a case's text with a variable for the value that decides it; "" if an option without a value does."""
    before, after = case.cured
    is_added = after.startswith(f"{before} ")
    written = after if is_added else before
    hidden = re.sub(r"[^ =]+$", "$UNKNOWN", written)
    is_option = written.rpartition(" ")[2].startswith("-") and "=" not in written
    return "" if is_option else case.text.replace(before, hidden)


HIDDEN = [case for case in test_clashes.CASES if case.kind == "shell" and hide(case)]


@pytest.mark.parametrize("case", HIDDEN, ids=lambda case: f"{case.thread} {test_clashes.find_row(case).framework}")
def test_no_row_concludes_from_a_setting_with_an_unknown_value(case: test_clashes.Case) -> None:
    row = test_clashes.find_row(case)
    assert test_clashes.lint(case, case.text, row.since), "the control"
    assert not [f for f in test_clashes.lint(case, hide(case), row.since) if f.severity != "note"]


@pytest.mark.parametrize(
    ("text", "setting", "value", "versions"),
    [
        ("trl sft --model_name_or_path m --dataset_name d ", "--packing", "true", {"trl": "0.19.1"}),
        ("trl grpo --model_name_or_path m --dataset_name d --num_processes 8 ", "--num_generations", "7",
         {"trl": "1.16.0"}),
        (VERL + "data.train_batch_size=8 ", "actor_rollout_ref.actor.ppo_mini_batch_size", "16", {"verl": "0.5.0"}),
        (VERL + "actor_rollout_ref.actor.ppo_mini_batch_size=16 ", "data.train_batch_size", "8", {"verl": "0.5.0"}),
        (SWIFT, "--packing", "true", {"ms_swift": "3.9.0"}),
        (OPENRLHF + "--packing_samples --train_batch_size 8 ", "--micro_train_batch_size", "1", {"openrlhf": "0.9.1"}),
    ],
)  # fmt: skip
def test_no_rule_concludes_from_a_setting_with_an_unknown_value(
    text: str, setting: str, value: str, versions: dict[str, str]
) -> None:
    joint = "=" if "." in setting else " "
    without = {(f.code, f.message) for f in list_judged(lint(text, **versions))}
    judged = {(f.code, f.message) for f in list_judged(lint(f"{text}{setting}{joint}{value}", **versions))}
    unknown = {(f.code, f.message) for f in list_judged(lint(f'{text}{setting}{joint}"$UNKNOWN"', **versions))}
    assert judged != without, "the control: the value decides"
    assert unknown <= judged & without


@pytest.mark.parametrize(
    ("steps", "count"),
    [("1", 1), ("$((32 / $N))", 0), ("$((32 / ($N * 2)))", 0), ("$(cat /tmp/n)", 0), ("${N:-$(cat /n)}", 0), ("16", 0)],
)
def test_an_expansion_with_a_slash_is_no_path(steps: str, count: int) -> None:
    text = "trl grpo --num_processes 1 --model_name_or_path m --dataset_name d --per_device_train_batch_size 1 "
    text += f"--num_generations 16 --gradient_accumulation_steps {steps}\n"
    messages = [finding.message for finding in list_judged(lint(text, trl="0.17.0"))]
    assert sum("num_generations" in message for message in messages) == count


NAMED = (
    "python3 -m dapo.main --config-path=/x --config-name=dapo_megatron data.train_batch_size=64 "
    "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 actor_rollout_ref.actor.megatrn.x=1 own.key=1\n"
)


@pytest.mark.parametrize("version", ["0.5.0", "0.7.1", "0.9.1"])
def test_names_are_not_judged_by_another_configuration_than_the_named_one(version: str) -> None:
    def list_unknown(text: str) -> list[str]:
        return [finding.message for finding in list_judged(lint(text, verl=version)) if finding.code == "ATN440"]

    assert not list_unknown(NAMED)
    own = NAMED.replace("dapo.main --config-path=/x --config-name=dapo_megatron", "verl.trainer.main_ppo")
    assert list_unknown(own), "the planted fault: verl's own program and configuration"


def test_a_named_configuration_is_found_anywhere_in_the_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = "own: {key: 0}\nactor_rollout_ref:\n  actor: {strategy: megatron}\n"
    write_tree(tmp_path, {"run/run.sh": NAMED, "recipe/config/dapo_megatron.yaml": config})
    monkeypatch.chdir(tmp_path)
    source = read_source("run/run.sh")
    snapshot = s.with_package(s.h200(), "verl", "0.9.1")
    report = run.run(snapshot, Request((source,)), launches.read_model, make_file_reader((source,)))
    assert not [finding for finding in list_judged(report) if finding.code == "ATN440"]
    (launch,) = launches_of(report)
    assert any("recipe/config/dapo_megatron.yaml" in remark for remark in launch.job.remarks)
    assert launch.job.plan.precision == "bf16"  # Megatron's; FSDP's trainer has "autocast"


def test_settings_in_a_table_of_a_program_s_own_are_not_its_trainer_s_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (
        "import hydra\nfrom transformers import Trainer, TrainingArguments\nREGISTRY = {'finetune': Trainer}\n"
        "@hydra.main(config_path='conf', config_name='own', version_base=None)\ndef main(config):\n"
        "    REGISTRY[config.trainer.handler](args=TrainingArguments(**config.trainer.args)).train()\nmain()\n"
    )
    config = "trainer:\n  handler: finetune\n  args: {bf16: true, output_dir: o}\n"
    write_tree(tmp_path, {"train.py": program, "conf/own.yaml": config, "run.sh": "python train.py trainer.args.x=1\n"})
    monkeypatch.chdir(tmp_path)
    source = read_source("run.sh")
    (launch,) = launches_of(run.run(s.h200(), Request((source,)), launches.read_model, make_file_reader((source,))))
    assert "precision" in launch.job.unknown


def test_a_value_that_another_setting_may_equal() -> None:
    [case] = [case for case in test_clashes.CASES if case.thread == "PR #6024"]
    text = case.text.replace("gradient_accumulation_steps 2", "gradient_accumulation_steps $STEPS")
    assert "$STEPS" in text and not test_clashes.lint(case, text, test_clashes.find_row(case).since)


def test_an_unknown_value_that_decides_nothing_hides_nothing() -> None:
    text = VERL + "data.train_batch_size=8 actor_rollout_ref.actor.ppo_mini_batch_size=16 "
    [known] = [f for f in list_judged(lint(text, verl="0.5.0")) if "less than actor" in f.message]
    more = "trainer.project_name=$NAME actor_rollout_ref.actor.optim.lr=$LR"
    [also] = [f for f in list_judged(lint(text + more, verl="0.5.0")) if "less than actor" in f.message]
    assert (known.severity, known.message) == (also.severity, also.message)


PROGRAM = """
from trl import GRPOConfig, GRPOTrainer
def main(args):
    config = GRPOConfig(output_dir="o", {}, mask_truncated_completions=True, bf16={})
    GRPOTrainer(model="m", args=config, reward_funcs=[len], train_dataset=None).train()
"""


@pytest.mark.parametrize(
    ("loss", "bf16", "is_found", "shown"),
    [
        ("beta=0.0", "True", True, "autocast"),
        ("loss_type='dapo'", "True", True, "autocast"),
        ("loss_type='dr_grpo'", "True", False, "autocast"),
        ("loss_type=args.loss_type", "True", False, "autocast"),
        ("loss_type='dapo'", "use_bf16()", True, "precision not known"),
    ],
)
@pytest.mark.parametrize("calls", [1, 2])
def test_an_argument_that_the_program_computes(
    tmp_path: Path, loss: str, bf16: str, is_found: bool, shown: str, calls: int
) -> None:
    write_tree(tmp_path, {"t.py": PROGRAM.format(loss, bf16) * calls, "run.sh": "python t.py\n", ".git/HEAD": ""})
    source = read_source(str(tmp_path / "run.sh"))
    snapshot = s.with_package(s.with_package(s.h200(), "trl", "1.8.0"), "transformers", "5.14.1")
    reader = make_file_reader((source,))
    report = run.run(snapshot, Request((source,)), launches.read_model, reader)
    assert any("masked completions" in finding.message for finding in report.findings) == is_found
    assert f", {shown}, " in describe_job(launches_of(report)[0].job)


COPIES = """
from transformers import HfArgumentParser, Seq2SeqTrainer, Seq2SeqTrainingArguments
from mine import read_arguments
def main():
    arguments = read_arguments()
    options = {}
    Seq2SeqTrainer(model=None, args=Seq2SeqTrainingArguments(**options)).train()
"""


@pytest.mark.parametrize(("options", "steps"), [("arguments.to_dict()", 16), ("load('train.yaml')", 1)])
def test_a_copy_of_parsed_arguments_has_the_options_of_the_command(tmp_path: Path, options: str, steps: int) -> None:
    command = "python t.py --output_dir o --per_device_train_batch_size 1 --gradient_accumulation_steps 16\n"
    write_tree(tmp_path, {"t.py": COPIES.replace("{}", options), "run.sh": command, ".git/HEAD": ""})
    source = read_source(str(tmp_path / "run.sh"))
    report = run.run(s.h200(), Request((source,)), launches.read_model, make_file_reader((source,)))
    [launch] = launches_of(report)
    assert launch.job.plan.accumulation == steps and ("precision" in launch.job.unknown) == (steps == 1)


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ('llamafactory-cli train "$CONFIG"', {"attn_implementation", "packing", "precision"}),
        ("llamafactory-cli train configs/$1.yaml", {"attn_implementation", "packing", "precision"}),
        (LLAMA + "--flash_attn $ATTENTION", {"attn_implementation"}),
        (LLAMA + "--per_device_train_batch_size $ROWS", {"batch"}),
        (LLAMA + "--output_dir $FOLDER", set()),
        ("ACCELERATE_MIXED_PRECISION=$TYPE " + LLAMA.replace("--bf16 ", ""), {"precision"}),
        ("ACCELERATE_MIXED_PRECISION=bf16 " + LLAMA.replace("--bf16 ", ""), set()),
        (LLAMA + '"$@"', set()),
    ],
)
def test_the_plan_says_what_is_not_known(text: str, unknown: set[str]) -> None:
    [launch] = launches_of(lint(text, llamafactory="0.9.4"))
    assert set(launch.job.unknown) == unknown
