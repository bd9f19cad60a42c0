"""Scripts that write their settings out, `SFTConfig(…)`: they run as they are, their settings cut on the way."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attncheck.core.facts import Absent
from attncheck.core.launch import Source
from attncheck.lint.rewriting import ReadLaunch, read_launches
from attncheck.rehearsal import cutting
from attncheck.rehearsal.judged_run import _is_same, _take_loss_settings
from attncheck.rehearsal.watcher.stand_ins import cut_settings
from tests.snapshots import laptop

SCRIPT = """
import argparse
from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

parser = argparse.ArgumentParser()
parser.add_argument("--model_name_or_path")
options = parser.parse_args()
rows = load_dataset("a/b", split="train"){rows}
args = SFTConfig(output_dir="/data/out", packing=True, max_steps=1000, hub_model_id="me/x")
SFTTrainer(options.model_name_or_path, args=args, train_dataset=rows).train()
"""
GRPO = """
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer

options = dict(output_dir="/data/out", max_steps=1000)
options.update({sets})
rows = load_dataset("a/b", split="train")
GRPOTrainer("Qwen/Qwen2.5-0.5B", reward_funcs=len, args=GRPOConfig(**options), train_dataset=rows).train()
"""
FORMATTED = '.map(lambda row: {"text": row["question"] + row["answer"]})'


def read(name: str, text: str, kind: Any, script: str) -> ReadLaunch:
    files = {"train.py": Source("train.py", script, "python")}
    (launch,) = read_launches(laptop(), Source(name, text, kind), lambda name: Absent("not cached"), files.get)
    return launch


def cut(launch: ReadLaunch, sets: dict[str, str] | None = None) -> cutting.CutLaunch:
    materials = cutting.make_materials(launch, "/stage", 30, False, 2)
    return cutting.cut_launch(launch, cutting.cut_job(launch, materials), sets or {}, "/stage", materials)


@pytest.mark.parametrize("is_alone", [True, False])
def test_the_script_runs_as_written_with_its_settings_cut_in_its_process(
    is_alone: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = SCRIPT.format(rows="")
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(script)
    command = "python train.py --model_name_or_path Qwen/Qwen2.5-0.5B\n"
    launch = read("train.py", script, "python", script) if is_alone else read("run.sh", command, "shell", script)
    assert launch.job.plan.packed
    result = cut(launch, {"packing": "off"})
    expected = "python train.py" if is_alone else "python train.py --model_name_or_path /stage/models/Qwen2.5-0.5B"
    assert result.command == expected
    settings = json.loads(result.cut.environ["ATTNCHECK_SETTINGS"])
    assert (settings["max_steps"], settings["report_to"], settings["packing"]) == ("30", "none", "off")
    assert settings["hub_model_id"] is None and settings["output_dir"].startswith("/stage/")
    assert result.cut.environ["ATTNCHECK_ROWS"].startswith("/stage/")
    assert script not in result.files.values() or is_alone


@pytest.mark.parametrize(("rows", "form", "targets"), [("", "messages", "all"), (FORMATTED, "every", "labelled")])
def test_rows_have_the_columns_that_the_script_reads(rows: str, form: str, targets: str) -> None:
    launch = read("run.sh", "python train.py", "shell", SCRIPT.replace("{rows}", rows))
    result = cutting.cut_job(launch, cutting.make_materials(launch, "/stage", 30, False, 2))
    assert (result.form, result.objective.targets) == (form, targets)


@dataclass
class Arguments:
    """As transformers' TrainingArguments: derived from, and changed by its own `__post_init__`."""

    max_steps: int = -1
    report_to: Any = "all"
    learning_rate: float = 5e-5
    use_cpu: bool = False

    def __post_init__(self) -> None:
        self.report_to = [self.report_to]


@dataclass
class Derived(Arguments):
    """As TRL's SFTConfig."""

    packing: bool = False
    callbacks: list[str] = field(default_factory=list)


def test_settings_are_replaced_as_the_script_gives_them(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"max_steps": "30", "report_to": "none", "learning_rate": None, "use_cpu": "true", "callbacks": None}
    monkeypatch.setenv("ATTNCHECK_SETTINGS", json.dumps(settings))
    cut_settings(SimpleNamespace(TrainingArguments=Arguments))
    made = Derived(max_steps=1000, report_to="wandb", learning_rate=1.0, packing=True, callbacks=["x"])
    assert made == Derived(30, ["none"], 5e-5, True, packing=True)
    assert made.report_to == ["none"] and made.callbacks == []
    made.max_steps = 5
    assert made.max_steps == 5, "what a library assigns later is its own"
    exec("made.max_steps = 7", {"__name__": "__main__", "made": made})
    assert made.max_steps == 30, "the script's own is not"


def test_a_script_in_another_folder_is_run_where_it_is(tmp_path: Path) -> None:
    script = SCRIPT.format(rows="")
    source = Source(str(tmp_path / "sft" / "train.py"), script, "python")
    (launch,) = read_launches(laptop(), source, lambda name: Absent("not cached"), lambda path: None)
    assert cut(launch).command == f"python {source.name}"


@pytest.mark.parametrize(("sets", "normalisation"), [("loss_type=kind", "document_sums"), ("entropy_coef=1", "")])
def test_the_objective_is_that_of_the_settings_that_the_trainer_has(
    sets: str, normalisation: str, tmp_path: Path
) -> None:
    """The script computes them: TRL's default would be judged."""
    script = GRPO.format(sets=sets)
    launch = read("train.py", script, "python", script)
    materials = cutting.make_materials(launch, str(tmp_path), 30, False, 2)
    scaled = cutting.cut_job(launch, materials)
    assert scaled.objective.normalisations == ("step_tokens",)
    (tmp_path / "watch").mkdir()
    stage: Any = SimpleNamespace(read=launch, materials=materials, folder=str(tmp_path))
    assert _take_loss_settings(stage, scaled) == (scaled, ())
    (tmp_path / "watch" / f"absent-loss-{sets.replace('kind', 'dr_grpo')}").touch()
    changed, (remark,) = _take_loss_settings(stage, scaled)
    assert remark.endswith(sets.replace("kind", "dr_grpo").replace("=", " "))
    if normalisation:
        policy = changed.objective.policy
        assert policy is not None and policy.divisor == 64 and changed.objective.normalisations == (normalisation,)
    else:
        assert not changed.objective.is_documented


def test_a_setting_that_is_spelled_otherwise_is_the_same() -> None:
    assert _is_same("0.1", "1e-1") and _is_same("True", "true") and _is_same("hinge", "hinge")
    assert not any(_is_same(*pair) for pair in (("0.1", "0.2"), ("hinge", ""), ("0.1", "beta")))


def test_an_option_is_left_out_with_its_unknown_value(tmp_path: Path) -> None:
    options = "".join(
        f'parser.add_argument("--{name}", {kind})\n'
        for name, kind in {"weight": "type=float", "count": "type=int", "is_on": "type=bool", "data_path": ""}.items()
    )
    script = SCRIPT.format(rows="").replace("options = ", f"{options}options = ")
    command = 'python train.py --model_name_or_path a/b --weight "$W" --count 3 --is_on "${B}" --data_path d.json\n'
    text = cut(read("run.sh", command, "shell", script)).command
    assert "--count 3" in text and not {"--weight", "--is_on"} & {*text.split()} and "$" not in text


def test_a_launch_that_leaves_its_folder_is_run_where_its_program_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT.format(rows=""))
    command = "cd ../\npython train.py --model_name_or_path a/b\n"
    assert str(tmp_path) in cut(read("scripts/run.sh", command, "shell", SCRIPT.format(rows=""))).command
