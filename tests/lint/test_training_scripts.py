"""Settings that a training script writes out are read as options are, and corrected in its own lines."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from attncheck.core.findings import Finding
from attncheck.core.launch import Launch, Source
from attncheck.core.report import Report
from attncheck.core.results.lint import launches_of
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.target import with_version
from attncheck.lint import frameworks, run
from attncheck.lint.context import Request
from attncheck.lint.files import configuration, editing, python
from attncheck.lint.inputs import make_file_reader
from attncheck.lint.launches import find_launches
from attncheck.lint.sources import source_from_argv
from tests import snapshots as s
from tests.lint import launches

SFT = """
import torch
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer

LENGTH = 4096
extra = {"logging_steps": 10, "max_length": LENGTH}
model = AutoModelForCausalLM.from_pretrained(
    "Qwen/Qwen2.5-7B", attn_implementation="flash_attention_2", torch_dtype=torch.bfloat16
)
args = SFTConfig(
    output_dir="äus",
    packing=True,
    packing_strategy="wrapped",  # fills rows
    learning_rate=compute_rate(),
    **extra,
)
SFTTrainer(model=model, args=args).train()
"""
TRAINER = """
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
model = AutoModelForCausalLM.from_pretrained("gpt2"%s)
Trainer(model, TrainingArguments("out"%s)).train()
"""
VERSIONS = {"trl": "1.16.0", "transformers": "5.17.0"}


def make_source(text: str, name: str = "train.py") -> Source:
    return Source(name, f"{text}\ntrainer.train()\n", "python")


def read_settings(text: str) -> dict[str, str]:
    """Return the settings that are known, by name."""
    entries = configuration.parse_configuration(make_source(text)).entries
    return {entry.name: entry.value for entry in entries if entry.known}


def test_the_model_of_a_script_s_own_trainer_is_read_unless_its_constructor_is_its_own() -> None:
    text = (
        "from trl import SFTConfig, SFTTrainer\nclass Own(SFTTrainer):\n    def {}(self, *arguments):\n        pass\n"
        "trainer = Own('gpt2', args=SFTConfig())\n"
    )
    assert read_settings(text.format("create_optimizer"))["model_name_or_path"] == "gpt2"
    assert "model_name_or_path" not in read_settings(text.format("__init__"))


def make_snapshot(**versions: str) -> Snapshot:
    snapshot = s.h200()
    for name, version in {**VERSIONS, **versions}.items():
        snapshot = with_version(snapshot, name, version)
    return snapshot


def lint(text: str, **versions: str) -> tuple[list[Finding], Report]:
    request = Request((make_source(text),))
    report = run.run(make_snapshot(**versions), request, launches.read_model, launches.read_no_file)
    return list(report.findings), report


def find_framework(launch: Launch) -> tuple[str, str]:
    names = ((framework.name, framework.trainer(launch)) for framework in frameworks.load())
    return next(((name, trainer) for name, trainer in names if trainer), ("", ""))


def test_literals_names_and_dicts_are_read() -> None:
    settings = read_settings(SFT)
    assert settings["packing"] == "true" and settings["packing_strategy"] == "wrapped"
    assert (settings["max_length"], settings["logging_steps"]) == ("4096", "10")
    assert settings["model_name_or_path"] == "Qwen/Qwen2.5-7B"
    assert (settings["attn_implementation"], settings[python.DTYPE]) == ("flash_attention_2", "bfloat16")
    assert "learning_rate" not in settings


@pytest.mark.parametrize(
    "text",
    [
        "packing = True\nif x: packing = False\nSFTTrainer(args=SFTConfig(packing=packing))",
        "def make(packing): return SFTTrainer(args=SFTConfig(packing=packing))",
        "a = SFTConfig(packing=True)\na.packing = False\nSFTTrainer(args=a)",
        "a = SFTConfig(packing=True) if x else SFTConfig(packing=False)\nSFTTrainer(args=a)",
        "a = SFTConfig(packing=True) if x else SFTConfig()\nSFTTrainer(args=a)",
        "d = {'packing': True}\nd['packing'] = False\nSFTTrainer(args=SFTConfig(**d))",
        "d = {'packing': True}\nd.update(e)\nSFTTrainer(args=SFTConfig(**d))",
        "SFTTrainer(args=SFTConfig(packing=bool(1)))",
        "for packing in (True,):\n    SFTTrainer(args=SFTConfig(packing=packing))",
    ],
)
def test_what_only_running_tells_is_not_known(text: str) -> None:
    assert "packing" not in read_settings(f"from trl import SFTConfig, SFTTrainer\n{text}\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import trl\ntrl.SFTTrainer('gpt2', args=trl.SFTConfig())", ("trl", "sft")),
        ("from trl import GRPOConfig as C, GRPOTrainer as T\nT(args=C(beta=0.0))", ("trl", "grpo")),
        ("from trl import DPOTrainer, DPOConfig\nDPOTrainer(args=DPOConfig())", ("trl", "dpo")),
        ("from trl import SFTTrainer\nfrom transformers import TrainingArguments\n"
         "SFTTrainer(packing=True, args=TrainingArguments('o'))", ("trl", "sft")),
        (TRAINER % ("", ""), ("transformers", "trainer")),
        ("from trl import SFTConfig, SFTTrainer, TrlParser\nTrlParser(SFTConfig)\nSFTTrainer(SFTConfig())", ("", "")),
        ("from trl import SFTTrainer, SFTConfig\nfrom alignment import H4ArgumentParser\n"
         "a = H4ArgumentParser((ModelArguments, SFTConfig)).parse()\nSFTTrainer(args=a)", ("", "")),
        ("from trl import RewardTrainer, RewardConfig\nfrom transformers import HfArgumentParser\n"
         "a = HfArgumentParser(ScriptArguments).parse()\nRewardTrainer(args=RewardConfig(bf16=True, lr=a.lr))",
         ("trl", "reward")),
        ("from transformers import HfArgumentParser, TrainingArguments, Trainer\nclass Own(TrainingArguments): pass\n"
         "a = HfArgumentParser((Own,)).parse()\nTrainer(args=TrainingArguments('o'))", ("", "")),
        ("from trl import SFTTrainer\nSFTTrainer('gpt2', train_dataset=d)", ("trl", "sft")),
        ("from trl import SFTTrainer\nSFTTrainer(model=m, args=make_args())", ("", "")),
        ("from mine import SFTConfig, SFTTrainer\nSFTTrainer(args=SFTConfig(packing=True))", ("", "")),
        ("from trl import SFTTrainer, DPOTrainer, SFTConfig, DPOConfig\n"
         "SFTTrainer(args=SFTConfig())\nDPOTrainer(args=DPOConfig())", ("", "")),
        ("print('Trainer')", ("", "")),
        ("from trl import SFTTrainer\nSFTTrainer(", ("", "")),
    ],
)  # fmt: skip
def test_the_class_decides_whose_launch_it_is(text: str, expected: tuple[str, str]) -> None:
    trainers = [find_framework(launch) for launch in find_launches(make_source(text), launches.read_no_file)]
    assert (trainers or [("", "")]) == [expected]


def test_a_script_that_trains_nothing_is_no_launch() -> None:
    text = "from trl import SFTConfig, SFTTrainer\nSFTTrainer(args=SFTConfig(packing=True)).evaluate()\n"
    assert find_launches(Source("evaluate.py", text, "python"), launches.read_no_file) == []


def test_a_wrong_setting_is_an_error_and_corrected_in_its_line() -> None:
    findings, report = lint(SFT)
    [finding] = [finding for finding in findings if finding.code == "ATN444"]
    assert finding.severity == "error" and finding.fixes[0].proven
    [launch] = launches_of(report)
    assert '-    packing_strategy="wrapped",  # fills rows' in launch.diff
    assert '+    packing_strategy="bfd",  # fills rows' in launch.diff


def test_the_same_script_without_the_fault_is_silent() -> None:
    findings, _ = lint(SFT.replace("wrapped", "bfd"))
    assert not [finding for finding in findings if finding.severity == "error"]


def test_a_renamed_argument_is_renamed() -> None:
    _, report = lint(TRAINER % ("", ", evaluation_strategy='steps'"))
    [launch] = launches_of(report)
    assert "eval_strategy='steps'" in launch.diff and "ATN440" in {finding.code for finding in report.findings}


def test_a_value_that_is_not_known_is_no_finding() -> None:
    written, _ = lint(TRAINER % ("", ", bf16=True, fp16=True"))
    computed, _ = lint(TRAINER % ("", ", bf16=is_supported(), fp16=not is_supported()"))
    assert not [finding for finding in computed if finding.severity != "note"]
    assert len(computed) <= len(written)


def test_the_dtype_of_the_weights_is_that_of_the_call() -> None:
    for dtype, precision in (('"bfloat16"', "bf16"), ("torch.float16", "fp16"), ('"float32"', "autocast")):
        [launch] = launches_of(lint("import torch\n" + TRAINER % (f", torch_dtype={dtype}", ", bf16=True"))[1])
        assert launch.job.plan.precision == precision


def test_an_argument_in_brackets_is_removed_whole() -> None:
    source = make_source(
        "from trl import SFTConfig, SFTTrainer\nSFTTrainer(args=SFTConfig(packing=(a or b), bf16=True))\n"
    )
    [packing, _] = configuration.parse_entries(source)[:2]
    text = editing.apply_edits(source, [editing.remove_setting(source, packing.span)])
    assert "SFTConfig(bf16=True)" in text


def test_an_argument_is_added_to_the_call_that_takes_it() -> None:
    source = make_source(SFT)
    for name, value, line in (
        ("gradient_checkpointing", "true", "gradient_checkpointing=True"),
        ("attn_implementation", "sdpa", 'attn_implementation="sdpa"'),
        ("dtype", "float32", 'torch_dtype="float32"'),
    ):
        text = editing.apply_edits(source, [editing.add_key(source, name, value)])
        ast.parse(text)
        assert line in text and text.count("attn_implementation") == 1
    plain = make_source("from trl import SFTConfig, SFTTrainer\nSFTTrainer('m', args=SFTConfig())\n")
    text = editing.apply_edits(plain, [editing.add_key(plain, "attn_implementation", "sdpa")])
    assert 'SFTConfig(model_init_kwargs={"attn_implementation": "sdpa"})' in text


def test_a_command_is_linted_by_its_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text(SFT)
    monkeypatch.chdir(tmp_path)
    source = source_from_argv(["torchrun", "--nproc-per-node", "8", "train.py", "--packing", "--bf16"])
    [launch] = find_launches(source, make_file_reader((source,)))
    assert launch.file is not None and launch.file.name == "train.py" and find_framework(launch) == ("trl", "sft")
    report = run.run(make_snapshot(), Request((source,)), launches.read_model, make_file_reader((source,)))
    assert "ATN444" in {finding.code for finding in report.findings}
    assert not [finding for finding in report.findings if "--bf16" in finding.message]  # its own option


def test_a_script_that_is_not_there_is_reported() -> None:
    source = source_from_argv(["torchrun", "nosuch.py"])
    report = run.run(s.h200(), Request((source,)), launches.read_model, launches.read_no_file)
    [finding] = report.findings
    assert finding.code == "ATN454" and "nosuch.py: no such file" in finding.message


OPTIONS = """
import argparse
from trl import SFTConfig, SFTTrainer
parser = argparse.ArgumentParser()
parser.add_argument("--pack", action="store_true")
parser.add_argument("--strategy", default="bfd")
parser.add_argument("--max-len", type=int, default=2048)
parser.add_argument("--rate", type=float, default=compute())
args = parser.parse_args()
config = SFTConfig(packing=args.pack, packing_strategy=args.strategy, max_length=args.max_len, learning_rate=args.rate)
SFTTrainer("gpt2", args=config).train()
"""


def read_script(text: str, words: tuple[str, ...]) -> tuple[dict[str, str], set[str]]:
    """Write a script into the working folder, and return its known settings and the codes of its launch's findings."""
    Path("train.py").write_text(text)
    source = source_from_argv(["python", "train.py", *words])
    [launch] = find_launches(source, make_file_reader((source,)))
    known = {entry.name: entry.value.lower() for entry in launch.entries if entry.known and entry.name != python.DTYPE}
    report = run.run(make_snapshot(), Request((source,)), launches.read_model, make_file_reader((source,)))
    return known, {finding.code for finding in report.findings}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), {"packing": "false", "packing_strategy": "bfd", "max_length": "2048"}),
        (("--pack", "--strategy", "wrapped"), {"packing": "true", "packing_strategy": "wrapped", "max_length": "2048"}),
        (("--max-len=512", "--rate", "1e-5"), {"packing": "false", "packing_strategy": "bfd", "max_length": "512",
                                               "learning_rate": "1e-5"}),
    ],
)  # fmt: skip
def test_an_argument_that_is_an_option_of_the_script_is_followed(
    words: tuple[str, ...], expected: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    known, codes = read_script(OPTIONS, words)
    assert known == {"model_name_or_path": "gpt2", **expected}
    assert ("ATN444" in codes) == ("wrapped" in words)


FIELDS = """
from dataclasses import dataclass, field
from transformers import HfArgumentParser
from trl import SFTConfig, SFTTrainer
@dataclass
class ScriptArguments:
    pack: bool = field(default=True, metadata={"help": "pack"})
    strategy: str = "wrapped"
    rate: float = field(default_factory=compute)
@dataclass
class Other:
    steps: int = 3
script_args = HfArgumentParser(ScriptArguments).parse_args_into_dataclasses()[0]
rate, steps = script_args.rate, 1
config = SFTConfig(packing=script_args.pack, packing_strategy=script_args.strategy, max_steps=script_args.steps)
SFTTrainer("gpt2", args=config).train()
"""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), {"packing": "true", "packing_strategy": "wrapped"}),
        (("--no_pack",), {"packing": "false", "packing_strategy": "wrapped"}),
        (("--strategy", "bfd"), {"packing": "true", "packing_strategy": "bfd"}),
        (("--pack", "False"), {"packing": "false", "packing_strategy": "wrapped"}),
    ],
)
def test_a_field_of_the_script_is_followed(
    words: tuple[str, ...], expected: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    known, codes = read_script(FIELDS, words)
    assert known == {"model_name_or_path": "gpt2", **expected}
    is_wrapped = expected == {"packing": "true", "packing_strategy": "wrapped"}
    assert ("ATN444" in codes) == is_wrapped


def test_an_option_that_the_script_changes_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = OPTIONS.replace("config =", "args.pack = True\nconfig =")
    (tmp_path / "train.py").write_text(changed)
    monkeypatch.chdir(tmp_path)
    source = source_from_argv(["python", "train.py", "$@"])
    [launch] = find_launches(source, make_file_reader((source,)))
    assert "packing" not in {entry.name for entry in launch.entries if entry.known}


HELPER = """
from peft import PeftModel
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
helper = AutoModelForCausalLM.from_pretrained("h", torch_dtype="float16", attn_implementation="eager")
trainer = Trainer(model={model}, args=TrainingArguments(output_dir="o"))
trainer.train()
"""


ADAPTER = "PeftModel.from_pretrained(load(), 'a')"  # of an unknown model, which may be any in the script


@pytest.mark.parametrize(
    ("model", "expected"),
    [("helper", {"float16", "eager"}), (ADAPTER, {"float16", "eager"}), ("'m'", set()), ("args.m", set())],
)
def test_a_model_that_the_trainer_does_not_get_gives_no_settings(model: str, expected: set[str]) -> None:
    entries = python.parse(Source("train.py", HELPER.format(model=model), "python")).entries
    assert {entry.value for entry in entries if entry.name in python.MODEL_ARGUMENTS.values()} == expected
