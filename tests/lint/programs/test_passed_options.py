"""What a program passes on of its command's options is known."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from attncheck.core.report import Report
from attncheck.core.results.lint import launches_of
from attncheck.lint import run
from attncheck.lint.context import Request
from attncheck.lint.inputs import make_file_reader
from attncheck.lint.programs.passed_options import PassedOptions
from attncheck.lint.sources import read_source
from tests import snapshots as s
from tests.lint.launches import read_model

LOADS = """model = AutoModelForCausalLM.from_pretrained("m", attn_implementation="flash_attention_2" if {} else "eager")
"""
DATACLASS = (
    """from dataclasses import dataclass, field
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments
@dataclass
class A(TrainingArguments):
    no_flash: bool = field(default=False)
args, = HfArgumentParser(A).parse_args_into_dataclasses()
"""
    + LOADS.format("not args.no_flash")
    + "Trainer(model=model, args=args).train()\n"
)
ARGPARSE = (
    """import argparse
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer
parser = argparse.ArgumentParser()
parser.add_argument("--flash", type=str)
args = parser.parse_args()
"""
    + LOADS.format("args.flash")
    + 'SFTTrainer(model=model, args=SFTConfig(output_dir="o", packing=args.packed)).train()\n'
)


def lint(program: str, command: str) -> Report:
    Path("train.py").write_text(program)
    Path("run.sh").write_text(f"{command}\n")
    source = read_source("run.sh", pipes=False)
    return run.run(s.laptop(), Request((source,)), read_model, make_file_reader((source,)))


@pytest.mark.parametrize(
    ("program", "options", "implementation"),
    [
        (DATACLASS, "--no_flash True", "eager"),
        (DATACLASS, "--no_flash", "eager"),
        (DATACLASS, "--no_flash False", "flash_attention_2"),
        (DATACLASS, "", "flash_attention_2"),  # the field's default
        (DATACLASS, '"$@"', None),
        (DATACLASS.replace("args, =", "HfArgumentParser(A).set_defaults(no_flash=True)\nargs, ="), "", None),
        (DATACLASS.replace("default=False", "default=read()"), "", None),
        (DATACLASS.replace("not args.no", "not other.no"), "", None),
        (DATACLASS, "--no_flash $WORD", None),
        (DATACLASS.replace("Trainer(model", "args.no_flash = True\nTrainer(model"), "--no_flash False", None),
        (ARGPARSE, "--flash true", "flash_attention_2"),
        (ARGPARSE, "--flash False", None),  # a text is true
    ],
)
def test_a_conditional_attention_is_decided_by_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, options: str, implementation: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    [launch] = launches_of(lint(program, f"python train.py --output_dir o {options}"))
    is_unknown = "attn_implementation" in launch.job.unknown
    assert (None if is_unknown else launch.job.plan.attn_implementation) == implementation


UNFUSED = """import torch
from fire import Fire
from trl import SFTConfig, SFTTrainer
def train(packing=False):
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    config = SFTConfig(output_dir="o", packing=packing, model_init_kwargs={"attn_implementation": "sdpa"})
    SFTTrainer("m", args=config).train()
Fire(train)
"""


@pytest.mark.parametrize(
    ("program", "count"),
    [
        (UNFUSED, 1),
        (UNFUSED.replace("flash_sdp(False)", "flash_sdp(True)"), 0),
        (UNFUSED.replace("SFTTrainer(", "torch.backends.cuda.enable_flash_sdp(True)\n    SFTTrainer("), 0),
        (UNFUSED.replace("    torch", "    if packing: torch"), 0),
        (UNFUSED.replace('"sdpa"', '"eager"'), 0),
    ],
)
def test_sdpa_without_its_fused_kernels_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, count: int
) -> None:
    monkeypatch.chdir(tmp_path)
    report = lint(program, "python train.py --packing True")
    assert [launch.job.plan.packing for launch in launches_of(report)] != ["padding"], "Fire passes the option on"
    assert [finding.severity for finding in report.findings if finding.code == "ATN442"] == ["warning"] * count


@pytest.mark.parametrize(
    ("test", "is_true"),
    [
        ("args.stage == 'sft'", True),
        ("args.stage in ('sft', 'pt')", True),
        ("args.stage not in ['sft']", False),
        ("args.stage != 'pt'", True),
        ("args.stage in 'sft,pt'", None),  # a part of a text
        ("args.stage == ['sft']", None),
        ("args.stage < 'sft'", None),
    ],
)
def test_a_comparison_of_an_option(test: str, is_true: bool | None) -> None:
    assert PassedOptions({"stage": "sft"}).test(ast.parse(test, mode="eval").body) is is_true
