"""Keywords that a program passes to a trainer or a configuration whose release takes none of that name."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import transformers

from attncheck.core.findings import Finding
from attncheck.lint import run
from attncheck.lint.context import Request
from attncheck.lint.fields.names import build_parser_options
from attncheck.lint.inputs import make_file_reader
from attncheck.lint.sources import read_source
from tests import snapshots as s
from tests.lint.launches import read_model
from tests.lint.programs.trees import write_tree

COMMAND = "accelerate launch train.py --output_dir o --per_device_train_batch_size 1\n"
HEAD = """
from transformers import HfArgumentParser, Trainer, TrainingArguments
from trl import SFTConfig, SFTTrainer
"""
MAIN = "def main():\n    args = HfArgumentParser((SFTConfig,)).parse_args_into_dataclasses()\n"
RUN = "if __name__ == '__main__':\n    main()\n"
REFUSED = "SFTTrainer(model=m, args=args, max_seq_length=512, processing_class=t)"


def lint_program(folder: Path, text: str, trl: str, transformers_version: str = "4.51.3") -> list[Finding]:
    """Return the errors and warnings about names, of a program with these releases."""
    write_tree(folder, {"run.sh": COMMAND, "train.py": HEAD + text, ".git/HEAD": ""})
    source = read_source(str(folder / "run.sh"))
    snapshot = s.with_package(s.h200(), "transformers", transformers_version)
    snapshot = s.with_package(snapshot, "trl", trl) if trl else snapshot
    report = run.run(snapshot, Request((source,)), read_model, make_file_reader((source,)))
    assert report.findings is not None
    return [finding for finding in report.findings if finding.code == "ATN440"]


@pytest.mark.parametrize(
    ("text", "trl", "replacement"),
    [
        (f"{MAIN}    trainer = {REFUSED}\n{RUN}", "0.16.1", "SFTConfig(max_seq_length=…)"),
        (f"{MAIN}    trainer = {REFUSED}\n{RUN}", "0.22.2", "SFTConfig(max_length=…)"),
        (f"{MAIN}    SFTTrainer(args=args, tokenizer=t)\n{RUN}", "0.16.1", "SFTTrainer(processing_class=…)"),
        (
            f"class Mine(SFTTrainer):\n    def log(self): pass\n{MAIN}    Mine(args=args, tokenizer=t)\n{RUN}",
            "0.16.1",
            "SFTTrainer(processing_class=…)",
        ),
        (  # both branches
            f"{MAIN}    if a:\n        SFTTrainer(peft_config=p, tokenizer=t)\n    else:\n"
            f"        SFTTrainer(tokenizer=u)\n{RUN}",
            "0.16.1",
            "SFTTrainer(processing_class=…)",
        ),
        ("SFTTrainer(args=SFTConfig(max_seq_length=8, bf16=x), model=m).fit()", "0.22.2", "max_length"),
    ],
)
def test_a_refused_keyword_is_an_error_with_its_new_place(
    tmp_path: Path, text: str, trl: str, replacement: str
) -> None:
    [finding] = lint_program(tmp_path, text, trl)
    assert finding.severity == "error"
    assert finding.locations[0].source.endswith("train.py")
    assert finding.fixes[0].text == replacement


@pytest.mark.parametrize(
    ("text", "trl"),
    [
        (f"{MAIN}    trainer = {REFUSED}\n{RUN}", "0.12.2"),  # the only release that takes both
        (f"{MAIN}    SFTTrainer(args=args, tokenizer=t)\n{RUN}", "0.15.2"),  # renamed by a decorator
        (f"{MAIN}    if old:\n        {REFUSED}\n{RUN}", "0.16.1"),  # the program may know the release
        (  # chosen by the release
            f"{MAIN}    if new:\n        SFTTrainer(processing_class=t)\n    else:\n"
            f"        SFTTrainer(tokenizer=t)\n{RUN}",
            "0.16.1",
        ),
        (f"{MAIN}    if old:\n        {REFUSED}\n    elif new:\n        {REFUSED}\n{RUN}", "0.16.1"),
        (f"{MAIN}    try:\n        {REFUSED}\n    except TypeError:\n        pass\n{RUN}", "0.16.1"),
        (f"def unused():\n    {REFUSED}\n{MAIN}    SFTTrainer(args=args)\n{RUN}", "0.16.1"),
        (
            f"{MAIN}    dict(a=unused)[kind]()\n    {{'b': lambda: {REFUSED}}}\n    SFTTrainer(args=args)\n{RUN}",
            "0.16.1",
        ),
        (
            "class Mine(SFTTrainer):\n    def __init__(self, **more):\n        super().__init__()\n"
            f"{MAIN}    Mine(args=args, max_seq_length=8)\n{RUN}",
            "0.16.1",
        ),
        (
            f"from unsloth import FastLanguageModel\nfrom unsloth import SFTTrainer\n{MAIN}    {REFUSED}\n{RUN}",
            "0.16.1",
        ),
        (f"import unsloth\nunsloth.FastModel()\n{MAIN}    {REFUSED}\n{RUN}", "0.16.1"),  # it replaces TRL's trainers
    ],
)
def test_a_keyword_that_may_be_taken_is_not_reported(tmp_path: Path, text: str, trl: str) -> None:
    assert not lint_program(tmp_path, text, trl)


def test_the_refused_keywords_of_a_call_are_one_finding(tmp_path: Path) -> None:
    call = "SFTTrainer(args=args, tokenizer=t, max_seq_length=8, dataset_text_field='x')"
    [finding] = lint_program(tmp_path, f"{MAIN}    {call}\n{RUN}", "0.22.2")
    assert finding.severity == "error" and len(finding.locations) == 3
    assert [line.split()[-1] for line in finding.fixes[0].text.splitlines()] == [
        "SFTTrainer(processing_class=…)",
        "SFTConfig(max_length=…)",
        "SFTConfig(dataset_text_field=…)",
    ]


def test_transformers_trainer_refuses_tokenizer_since_5(tmp_path: Path) -> None:
    text = (
        "args = HfArgumentParser((TrainingArguments,)).parse_args_into_dataclasses()\nTrainer(args=args, tokenizer=t)\n"
    )
    [finding] = lint_program(tmp_path / "new", text, "", "5.5.4")
    assert finding.severity == "error" and finding.fixes[0].text == "Trainer(processing_class=…)"
    assert not lint_program(tmp_path / "old", text, "", "4.57.6")


def test_the_table_has_the_keywords_of_the_installed_release() -> None:
    """As Python itself reads them: the constructors of the release that the tests run with."""
    for trainer in (transformers.Trainer, transformers.Seq2SeqTrainer):
        known = build_parser_options(("transformers", transformers.__version__, (trainer.__name__,))).current
        assert known.keys() == inspect.signature(trainer).parameters.keys()
