"""The class of a model that a launch leaves to a variable: what its own tree names for it, if that is one class."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attncheck.core.facts import Absent
from attncheck.core.launch import Source
from attncheck.lint.rewriting import read_launches
from attncheck.rehearsal import cutting, staging
from attncheck.rehearsal.named_models import list_named_models
from attncheck.rehearsal.worker.materials import find_kind
from attncheck.workers.pool import Pool
from tests.snapshots import laptop

TRL = "trl sft --model_name_or_path m --dataset_name d --output_dir o\n"
LAUNCH = "MODEL_PATH={}\ntrl sft --model_name_or_path $MODEL_PATH --dataset_name d --output_dir o\n"
# The value in the launch, other files, and the class that they decide.
TREES: dict[str, tuple[str, dict[str, str], str]] = {
    "a call by position": ("$4", {"README.md": "bash run.sh GPUS 4 MODEL_PATH Qwen2.5-3B-Instruct"}, "qwen2"),
    "a call by option": ("$OPTARG", {"README.md": "bash scripts/run.sh \\\n  -p Qwen/Qwen3-8B -d data"}, "qwen3"),
    "a script that calls it": ("$BASE", {"all.sh": "export BASE=/data/qwen2.5-1.5b-it\nbash run.sh"}, "qwen2"),
    "several classes": ("$4", {"README.md": "bash run.sh 1 Qwen/Qwen3-8B\nbash run.sh 1 Llama-3.1-8B"}, ""),
    "a script that does not call it": ("$BASE", {"evaluate.sh": "BASE=Qwen/Qwen3-8B\npython test.py"}, ""),
    "a comparison": ("$BASE", {"README.md": "run.sh beats Qwen3-8B"}, ""),
    "a value of its own": ("mine/tuned_14b", {"README.md": "bash run.sh\nMODEL_PATH=Qwen/Qwen3-8B"}, ""),
}


@pytest.mark.parametrize("title", TREES)
def test_a_tree_names_the_class_of_a_models_variable(
    title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value, files, kind = TREES[title]
    monkeypatch.chdir(tmp_path)
    for name, text in {**files, "run.sh": LAUNCH.format(value)}.items():
        (tmp_path / name).write_text(text)
    source = Source("run.sh", LAUNCH.format(value), "shell")
    (launch,) = read_launches(laptop(), source, lambda name: Absent("no"), lambda path: None)
    found, reason = find_kind({"stand_in_for": value, "named": list_named_models(launch, value)})
    assert found == kind
    assert bool(reason) == bool(kind) and (not kind or next(iter(files)) in reason or "README.md" in reason)


def test_the_launchs_own_file_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = 'if [ -z "$BASE" ]; then\n  BASE="deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"\nfi\n' + LAUNCH.format("$BASE")
    (tmp_path / "README.md").write_text("BASE=meta-llama/Llama-3.1-8B bash run.sh")
    (launch,) = read_launches(laptop(), Source("run.sh", text, "shell"), lambda name: Absent("no"), lambda path: None)
    assert find_kind({"stand_in_for": "$BASE", "named": list_named_models(launch, "$BASE")}) == (
        "qwen2",
        "run.sh names deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B for it",
    )


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        ('DEFAULT="Qwen/Qwen3-8B"\nBASE="${DEFAULT}"', "qwen3"),
        ('OTHER="Qwen/Qwen3-8B"\nBASE="$1"', ""),
        ('DEFAULT="Qwen/Qwen3-8B"\nBASE="${DEFAULT}"\nBASE=meta-llama/Llama-3.1-8B', ""),
    ],
)
def test_a_variables_value_is_another_variable(lines: str, kind: str) -> None:
    text = f"{lines}\n{LAUNCH.format('$BASE')}"
    (launch,) = read_launches(laptop(), Source("run.sh", text, "shell"), lambda name: Absent("no"), lambda path: None)
    assert find_kind({"stand_in_for": "$BASE", "named": list_named_models(launch, "$BASE")})[0] == kind


@pytest.mark.parametrize(("kind", "found"), [("qwen3_moe", "qwen3_moe"), ("my_own", "")])
def test_a_launchs_model_type_decides_the_class(kind: str, found: str) -> None:
    text = f"swift sft --model /data/checkpoint-155 --model_type {kind} --dataset d --output_dir o\n"
    (launch,) = read_launches(laptop(), Source("run.sh", text, "shell"), lambda name: Absent("no"), lambda path: None)
    message = {"stand_in_for": "/data/checkpoint-155", "named": list_named_models(launch, "/data/checkpoint-155")}
    assert find_kind(message)[0] == found


OWN = """import argparse
from transformers import Trainer
parser = argparse.ArgumentParser()
parser.add_argument("--base-model", default="Qwen/Qwen3-0.6B")
parser.add_argument("--output_dir")
parser.add_argument("--learning_rate", type=float)
parser.add_argument("--per_device_train_batch_size", type=int)
options = parser.parse_args()
Trainer(options.base_model)
"""


@pytest.mark.parametrize(
    ("option", "name"), [("", "Qwen/Qwen3-0.6B"), ("--base-model a/b ", "a/b"), ("--base-model $BASE ", "$BASE")]
)
def test_the_programs_default_names_the_model(
    option: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(OWN)
    options = f"{option}--output_dir o --learning_rate 1e-5 --per_device_train_batch_size 1"
    source = Source("run.sh", f"python train.py {options}\n", "shell")
    files = {"train.py": Source("train.py", OWN, "python")}
    (launch,) = read_launches(laptop(), source, lambda name: Absent("no"), files.get)
    assert cutting.name_model(launch) == name


@pytest.mark.parametrize(
    ("driver", "is_known", "unknown", "text"),
    [
        ("verl", False, True, TRL),
        ("", False, False, TRL),
        ("verl", True, False, TRL),
        ("", False, True, "swift sft --model_type my_own --dataset d --output_dir o\n"),
    ],
)
def test_a_driver_loads_a_model_of_an_unknown_class(
    driver: str, is_known: bool, unknown: bool, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch may name no model: its own script may build one, but a driver of verl's actor trains the stand-in.

    A launch that names only a type, which is not known, does too.
    """
    (launch,) = read_launches(laptop(), Source("run.sh", text, "shell"), lambda name: Absent("no"), lambda path: None)
    materials = cutting.make_materials(launch, str(tmp_path), 30, False, 2)
    cut = replace(cutting.cut_job(launch, materials), driver=driver)
    answer = {"remarks": [], "made_up": [], "model": "llama", "is_known": is_known, "reason": ""}
    event = SimpleNamespace(kind="answer", answer=answer)
    monkeypatch.setattr(staging, "run_worker", lambda *arguments: {"materials": event})
    monkeypatch.setattr(staging, "choose_model", lambda read: (staging.STAND_IN, staging.NO_NAME))
    target: Any = SimpleNamespace(device="cpu", threads_per_worker=lambda count: 1)
    request: Any = SimpleNamespace(seed=0, trusts_remote_code=False)
    stage = staging.Stage(launch, str(tmp_path), materials, target, request, lambda text: None, Pool("python", 1))
    staging.make_materials(stage, cut)
    assert (bool(stage.unknown), stage.has_class) == (unknown, is_known)


def test_files_that_cannot_be_read_name_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = LAUNCH.format("$BASE")
    (tmp_path / "README.md").write_text("BASE=meta-llama/Llama-3.1-8B bash run.sh")
    (tmp_path / "README.of.a.folder.md").mkdir()
    os.mkfifo(tmp_path / "README.that.waits.md")
    (launch,) = read_launches(laptop(), Source("run.sh", text, "shell"), lambda name: Absent("no"), lambda path: None)
    assert [word for word, _ in list_named_models(launch, "$BASE")[1]] == ["meta-llama/Llama-3.1-8B"]
