"""What a program passes on of its command's options is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from attncheck.core.results.lint import launches_of
from attncheck.lint import run
from attncheck.lint.inputs import make_file_reader
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


@pytest.mark.parametrize(
    ("program", "options", "implementation"),
    [
        (DATACLASS, "--no_flash True", "eager"),
        (DATACLASS, "--no_flash", "eager"),
        (DATACLASS, "--no_flash False", "flash_attention_2"),
        (DATACLASS, "", None),  # the default is the parser's
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
    (tmp_path / "train.py").write_text(program)
    (tmp_path / "run.sh").write_text(f"python train.py --output_dir o {options}\n")
    source = read_source("run.sh", pipes=False)
    report = run.run(s.laptop(), run.Request((source,)), read_model, make_file_reader((source,)))
    [launch] = launches_of(report)
    is_unknown = "attn_implementation" in launch.job.unknown
    assert (None if is_unknown else launch.job.plan.attn_implementation) == implementation
