"""The model of a program that names its own option for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from attncheck.lint import launches
from attncheck.lint.inputs import make_file_reader
from attncheck.lint.programs.own_models import find_own_model, read_own_model
from attncheck.lint.sources import read_source
from tests.lint.programs.trees import write_tree

PROGRAM = """
import argparse
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer

parser = argparse.ArgumentParser()
parser.add_argument("--base_model")
parser.add_argument("--ref_model")
args = parser.parse_args()
tokenizer = AutoTokenizer.from_pretrained(args.ref_model)
{load}
Trainer(model=model).train()
"""
LOAD = "model = AutoModelForCausalLM.from_pretrained({})"


@pytest.mark.parametrize(
    ("load", "options", "model"),
    [
        (LOAD.format("args.base_model"), "--base_model a --ref_model b", "a"),
        (LOAD.format("args.base_model, num_labels=1"), "--ref_model b --base-model=a", "a"),
        (LOAD.format("args.base_model"), "--base_model $MODEL", ""),
        (LOAD.format("'c'"), "--base_model a", ""),
        (f"{LOAD.format('args.base_model')}\nif tokenizer:\n    {LOAD.format('args.ref_model')}", "--base_model a", ""),
    ],
)
def test_the_option_that_loads_the_model(tmp_path: Path, load: str, options: str, model: str) -> None:
    write_tree(tmp_path, {"train.py": PROGRAM.replace("{load}", load), "run.sh": f"python train.py {options}\n"})
    source = read_source(str(tmp_path / "run.sh"))
    (launch,) = launches.find_launches(source, make_file_reader((source,)))
    assert find_own_model(launch) == model


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("from transformers import GPT2Config, GPT2LMHeadModel\nGPT2LMHeadModel(GPT2Config())", True),
        ("import transformers\ntransformers.LlamaForCausalLM(config)", True),
        ("from transformers import BertForSequenceClassification as Model\nModel(config)", False),
        ("from own import GPT2LMHeadModel\nGPT2LMHeadModel(config)", False),
        ("from transformers import GPT2LMHeadModel\nx: GPT2LMHeadModel = load()", False),
    ],
)
def test_a_model_that_a_program_builds_by_its_class_is_a_language_model(
    tmp_path: Path, text: str, is_one: bool
) -> None:
    write_tree(tmp_path, {"train.py": f"{text}\nloss.backward()\n", "run.sh": "python train.py\n"})
    source = read_source(str(tmp_path / "run.sh"))
    (launch,) = launches.find_launches(source, make_file_reader((source,)))
    assert read_own_model(launch).is_language_model == is_one
