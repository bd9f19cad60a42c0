"""The trainer that a program certainly makes: its own compute_loss, and a model that is spread over GPUs."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import transformers

from attncheck.doctor.target import forget_packages
from attncheck.lint import run
from attncheck.lint.context import Request
from attncheck.lint.inputs import make_file_reader
from attncheck.lint.programs.made_trainers import find_made
from attncheck.lint.programs.modules import SourceTree
from attncheck.lint.programs.program import Entry, find_entry
from attncheck.lint.sources import read_source
from tests import snapshots as s
from tests.lint.launches import read_model
from tests.lint.programs.trees import write_tree

PROGRAM = """
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments

class Other(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False):
        return model(**inputs).loss

class Mine(Trainer):
    def compute_loss(self, model, inputs, {parameters}):
        {body}

def main():
    args = HfArgumentParser((TrainingArguments,)).parse_args_into_dataclasses()
    model = AutoModelForCausalLM.from_pretrained("m"{placed})
    {wrapped}
    trainer = {trainer}(model={model}, args=args)
    trainer.train()

main()
"""
COUNTS = "return_outputs=False, num_items_in_batch=None"
OWN_MEAN = "outputs = model(**inputs); return outputs.loss"
ACCUMULATES = "--gradient_accumulation_steps 4"


def lint_program(
    folder: Path, version: str, command: str = "torchrun --nproc_per_node 2 train.py", options: str = "", **parts: str
) -> list[tuple[str, str]]:
    """Return the severity and the location's line of each finding in the program."""
    defaults = {
        "parameters": COUNTS,
        "body": OWN_MEAN,
        "placed": "",
        "trainer": "Mine",
        "model": "model",
        "wrapped": "",
    }
    given = {**defaults, **parts}
    text = f"{command} --output_dir o --per_device_train_batch_size 1 {options}\n"
    write_tree(folder, {"run.sh": text, "train.py": PROGRAM.format(**given), ".git/HEAD": ""})
    source = read_source(str(folder / "run.sh"))
    snapshot = s.with_package(s.h200(), "transformers", version) if version else forget_packages(s.h200(), "unknown")
    report = run.run(snapshot, Request((source,)), read_model, make_file_reader((source,)))
    places = [(finding, place) for finding in report.findings or () for place in finding.locations]
    return [(finding.severity, finding.code) for finding, place in places if place.source.endswith("train.py")]


@pytest.mark.parametrize(
    ("version", "parts", "expected"),
    [
        ("5.5.4", {"parameters": "return_outputs=False"}, [("error", "ATN441")]),
        ("4.46.3", {"parameters": "return_outputs=False"}, [("error", "ATN441")]),
        ("4.45.2", {"parameters": "return_outputs=False"}, []),
        ("5.5.4", {"parameters": "return_outputs=False, **kwargs"}, []),
        ("5.5.4", {"trainer": "Trainer"}, []),
        ("5.5.4", {"trainer": "Other"}, [("error", "ATN441")]),
    ],
)
def test_a_loss_without_the_count_is_refused(
    tmp_path: Path, version: str, parts: dict[str, str], expected: list[tuple[str, str]]
) -> None:
    assert lint_program(tmp_path, version, **parts) == expected


@pytest.mark.parametrize(
    ("version", "options", "body", "expected"),
    [
        ("5.5.4", ACCUMULATES, OWN_MEAN, [("warning", "ATN444")]),
        ("4.49.0", ACCUMULATES, OWN_MEAN, [("warning", "ATN444")]),
        ("", ACCUMULATES, OWN_MEAN, [("warning", "ATN444")]),
        ("4.46.3", ACCUMULATES, OWN_MEAN, []),
        ("5.4.0", ACCUMULATES, OWN_MEAN, []),  # accelerate divides it
        ("5.5.4", "", OWN_MEAN, []),
        ("5.5.4", ACCUMULATES, "return model(**inputs, num_items_in_batch=num_items_in_batch).loss", []),
        ("5.5.4", ACCUMULATES, "return model(**inputs).loss / self.args.gradient_accumulation_steps", []),
        ("5.5.4", ACCUMULATES, "return super().compute_loss(model, inputs)", []),
        ("5.5.4", ACCUMULATES, "return cross_entropy(inputs['labels'], reduction='sum')", []),
    ],
)
def test_an_own_mean_is_not_divided_by_the_accumulation(
    tmp_path: Path, version: str, options: str, body: str, expected: list[tuple[str, str]]
) -> None:
    assert lint_program(tmp_path, version, options=options, body=body) == expected


@pytest.mark.parametrize(
    ("version", "command", "placed", "expected"),
    [
        ("4.51.3", "torchrun --nproc_per_node 2 train.py", ", device_map='auto'", [("error", "ATN441")]),
        ("4.45.2", "torchrun --nproc_per_node 2 train.py", ", device_map='auto'", [("warning", "ATN441")]),
        ("", "torchrun --nproc_per_node 2 train.py", ", device_map='auto'", [("warning", "ATN441")]),
        ("4.51.3", "torchrun --nproc_per_node 1 train.py", ", device_map='auto'", []),
        ("4.51.3", "python train.py", ", device_map='auto'", []),
        ("4.51.3", "CUDA_VISIBLE_DEVICES=0 torchrun --nproc_per_node 2 train.py", ", device_map='auto'", []),
        ("4.51.3", "ACCELERATE_BYPASS_DEVICE_MAP=true torchrun --nproc_per_node 2 train.py", ", device_map='auto'", []),
        ("4.51.3", "torchrun --nproc_per_node 2 train.py", ", device_map={'': rank}", []),
        ("4.51.3", "torchrun --nproc_per_node 2 train.py", ", device_map=None if ranks > 1 else 'auto'", []),
    ],
)
def test_a_model_on_several_gpus_is_refused_in_several_processes(
    tmp_path: Path, version: str, command: str, placed: str, expected: list[tuple[str, str]]
) -> None:
    assert lint_program(tmp_path, version, command, placed=placed, trainer="Trainer") == expected


@pytest.mark.parametrize(
    ("model", "wrapped", "expected"),
    [
        ("model", "", [("error", "ATN441")]),
        ("wrapped", "wrapped = get_peft_model(model, config)", [("error", "ATN441")]),
        ("model", "model = model.half()", [("error", "ATN441")]),
        ("loaded", "loaded, device = model, model.device", [("error", "ATN441")]),
        ("model", "model = AutoModelForCausalLM.from_pretrained('m')", []),
        ("path", "path = 'm'; device = model.device", []),
        ("'m'", "", []),
        ("args.path", "", []),
    ],
)
def test_only_the_model_that_the_trainer_gets_is_spread(
    tmp_path: Path, model: str, wrapped: str, expected: list[tuple[str, str]]
) -> None:
    parts = {"placed": ", device_map='auto'", "model": model, "wrapped": wrapped}
    assert lint_program(tmp_path, "4.51.3", **parts) == expected


def test_the_installed_trainer_does_what_the_constraints_say() -> None:
    text = " ".join(inspect.getsource(transformers.Trainer.training_step).split())
    assert "self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)" in text
    assert "self.model_accepts_loss_kwargs" in text and "loss / self.current_gradient_accumulation_steps" in text


@pytest.mark.parametrize(
    ("loads", "head"),
    [
        ("AutoModelForTokenClassification.from_pretrained('m')", "ForTokenClassification"),
        ("AutoModelForCausalLM.from_pretrained('m')", "ForCausalLM"),
        ("AutoModel.from_pretrained('m')", ""),
        ("make()", ""),
    ],
)
def test_the_head_of_a_programs_model(loads: str, head: str, tmp_path: Path) -> None:
    program = f"from transformers import *\nmodel = {loads}\nTrainer(model=model).train()\n"
    write_tree(
        tmp_path,
        {"train.py": program.replace("*", "AutoModel, AutoModelForCausalLM, AutoModelForTokenClassification, Trainer")},
    )
    tree = SourceTree((tmp_path,), tmp_path)
    module = find_entry(Entry(str(tmp_path / "train.py")), tree)
    assert module is not None and find_made(tree, [module])[1].head == head


CUT = "rows = [t[i : i + block_size] for i in range(0, total, block_size)]\n"


@pytest.mark.parametrize(
    ("prepares", "is_equal"),
    [
        (f"{CUT}result['labels'] = result['input_ids'].copy()\n", True),
        ("collator = default_data_collator\nrow['labels'] = row['input_ids'].copy()\n", True),
        ("row['labels'] = row['input_ids'].copy()\n", False),
        (f"{CUT}row['labels'] = [-100] * len(prompt) + answer\n", False),
        (f"{CUT}row['labels'] = row['input_ids'].copy()\nrow['labels'][:9] = [-100] * 9\n", False),
    ],
)
def test_rows_of_one_length_whose_labels_are_all_their_tokens(tmp_path: Path, prepares: str, is_equal: bool) -> None:
    (tmp_path / "train.py").write_text(f"from transformers import Trainer\n{prepares}Trainer().train()\n")
    tree = SourceTree((tmp_path,), tmp_path)
    module = find_entry(Entry(str(tmp_path / "train.py")), tree)
    assert module is not None and find_made(tree, [module])[1].has_equal_rows == is_equal


@pytest.mark.parametrize(
    ("start", "is_made"),
    [
        ("import other\nother.train()", True),
        ("from other import train\ntrain()", True),
        ("import other, tools\nother.Worker().train()", False),
        ("import other\nmodel.train()", False),
        ("import other\nother.Child().fit()", True),
        ("import other\nmodel.fit()", False),
    ],
)
def test_a_method_of_another_object_calls_no_function_of_the_program(tmp_path: Path, start: str, is_made: bool) -> None:
    made = "from transformers import Trainer\ndef train():\n    Trainer(model=m, tokenizer=t)\n"
    classes = "class Base:\n    def fit(self):\n        train()\nclass Child(Base):\n    pass\n"
    write_tree(tmp_path, {"train.py": f"{start}\n", "other.py": made + classes, "tools.py": "", ".git/HEAD": ""})
    tree = SourceTree((tmp_path,), tmp_path)
    main = find_entry(Entry(str(tmp_path / "train.py")), tree)
    assert main is not None
    keywords, _ = find_made(tree, [main, *tree.list_imported(main, 9)])
    assert bool(keywords) == is_made
