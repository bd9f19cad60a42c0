"""A fix that installs a release keeps the launch's options, and is given only if it helps the program's own model."""

from __future__ import annotations

from pathlib import Path

import pytest

from attncheck.core.findings import Finding
from attncheck.doctor.target import forget_packages
from attncheck.lint import run
from attncheck.lint.context import Request
from attncheck.lint.inputs import make_file_reader
from attncheck.lint.sources import read_source
from tests import snapshots as s
from tests.lint.launches import read_model
from tests.lint.programs.trees import write_tree

PROGRAM = """
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments
from own import OwnForCausalLM
def main():
    args, = HfArgumentParser((TrainingArguments,)).parse_args_into_dataclasses()
    model = {}.from_pretrained("m")
    Trainer(model=model, args=args).train()
main()
"""
MODEL = "class OwnForCausalLM:\n    def forward(self, input_ids, labels=None{}):\n        pass\n"


FACTORY = (
    "llamafactory-cli train --stage sft --do_train --model_name_or_path m --dataset d --template qwen --output_dir o "
    "--finetuning_type lora --gradient_accumulation_steps 8"
)


def lint(
    folder: Path, model: str, more: str, options: str, pins: str = "transformers==4.37.2", command: str = ""
) -> Finding:
    files = {"train.py": PROGRAM.format(model), "own.py": MODEL.format(more), "requirements.txt": f"{pins}\n"}
    command = command or f"torchrun train.py --output_dir o --gradient_accumulation_steps 4 {options}\n"
    write_tree(folder, {**files, "run.sh": command, ".git/HEAD": ""})
    source = read_source(str(folder / "run.sh"))
    request = Request((source,), stated="all")
    report = run.run(forget_packages(s.h200(), "unknown"), request, read_model, make_file_reader((source,)))
    [finding] = [finding for finding in report.findings if finding.code == "ATN429"]
    return finding


@pytest.mark.parametrize(
    ("model", "more", "options", "installs"),
    [
        ("AutoModelForCausalLM", "", "--logging_steps 1", ["transformers>=4.46.0,<5"]),
        ("AutoModelForCausalLM", "", "--evaluation_strategy steps", ["transformers==4.50.3"]),
        ("AutoModelForCausalLM", "", "--overwrite_output_dir", ["transformers>=4.46.0,<5"]),  # removed in 5.0
        ("AutoModelForCausalLM", "", "--warmup_ratio 0.1", ["transformers>=4.46.0,<5"]),  # removed in 5.15
        ("OwnForCausalLM", ", **kwargs", "--evaluation_strategy steps", ["transformers==4.50.3"]),
        ("OwnForCausalLM", "", "--logging_steps 1", []),
    ],
)
def test_a_fix_installs_what_knows_the_options_and_helps(
    tmp_path: Path, model: str, more: str, options: str, installs: list[str]
) -> None:
    finding = lint(tmp_path, model, more, options)
    assert [line for fix in finding.fixes for line in fix.installs if line.startswith("transformers")] == installs
    assert any("own.py:2" in text for text in finding.evidence) is (not installs)
    needed = "do not accumulate; or use transformers>=4.46.0, let forward take **kwargs"
    assert finding.fixes and (installs or needed in finding.fixes[0].text)


@pytest.mark.parametrize(
    ("pins", "installs"),
    [
        ("transformers==4.38.2\ntrl==0.9.6", ["transformers>=4.46.0,<5"]),
        ("transformers==4.38.2\ntrl==0.7.6", []),  # which imports a function that 4.39 removed
        ("transformers>=4.41.2,<=4.45.2", []),  # the tree takes no newer one
    ],
)
def test_a_fix_installs_what_the_other_pins_allow(tmp_path: Path, pins: str, installs: list[str]) -> None:
    finding = lint(tmp_path, "AutoModelForCausalLM", "", "--logging_steps 1", pins)
    assert [line for fix in finding.fixes for line in fix.installs if line.startswith("transformers")] == installs
    assert finding.fixes and (installs or finding.fixes[0].text == "do not accumulate")


def test_a_newer_trainer_averages_over_batches_of_a_model_without_kwargs(tmp_path: Path) -> None:
    finding = lint(tmp_path, "OwnForCausalLM", "", "--logging_steps 1", "transformers==4.57.3")
    assert any("own.py:2" in text for text in finding.evidence) and not finding.fixes[0].installs


@pytest.mark.parametrize("pins", ["llamafactory==0.9.2", "peft==0.12.0"])  # peft excludes newer ones
def test_a_fix_fits_the_release_that_the_launch_is_read_as(tmp_path: Path, pins: str) -> None:
    finding = lint(tmp_path, "AutoModelForCausalLM", "", "", f"transformers==4.43.4\n{pins}", FACTORY)
    assert [line for fix in finding.fixes for line in fix.installs] == ["transformers==4.49.0"]
