"""What a script names itself is the rehearsal's: its model, its data, the completions that it would generate."""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib
import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Generic, TypeVar

import pytest
import torch

import attncheck.rehearsal.drivers.rollouts as rollouts
import attncheck.rehearsal.watcher.modules as modules
import attncheck.rehearsal.watcher.objective as objective
import attncheck.rehearsal.watcher.randomness as randomness
from attncheck.core.results.smoke import CheckResult
from attncheck.rehearsal.columns import list_columns, list_model_classes, list_modules
from attncheck.rehearsal.execution import (
    WATCHER,
    list_absent,
    list_noted,
    list_replaced,
    list_watched_differences,
)
from attncheck.rehearsal.fidelity import leave_unasked
from attncheck.rehearsal.judged_run import CHECKS
from attncheck.rehearsal.shapes import read_shapes
from attncheck.rehearsal.watcher import own_rows, script_code
from attncheck.rehearsal.watcher.script_code import note_loss_settings
from attncheck.rehearsal.watcher.stand_ins import (
    _leave_failing_reader,
    _list_splits,
    answer_any_split,
    answer_removed,
    choose_model_type,
    choose_template,
    find_pictures,
    find_tokens,
    leave_early_stopping,
    leave_kernels,
    leave_login,
    leave_unknown,
    leave_unknown_keys,
    load_with_head,
    load_with_known,
    name_layers,
    number_markers,
    seed_with_defaults,
    take_known,
    take_known_columns,
    take_known_template,
)
from attncheck.rehearsal.worker.materials import add_columns, add_message_columns, fit_rows, make_tokenizer, tokenize
from attncheck.rehearsal.worker.shapes import list_turns
from tests.rehearsal.staging import ask_for_materials, make_materials

DATASETS = """
class Rows(list):
    pass
def load_dataset(path, *arguments, **options):
    return Rows([path, options])
def load_from_disk(path):
    return path
"""
FRAMES = """
import json
def read_csv(path, **options):
    return open(path).read()
def read_json(path, lines=False):
    return [json.loads(line) for line in open(path)]
read_parquet = read_excel = read_table = read_csv
"""
LAUNCHER = """
import os, subprocess, sys
def prepare_simple_launcher_cmd_env(args):
    return [sys.executable, *args], {**os.environ, "ACCELERATE_MIXED_PRECISION": "bf16"}
def simple_launcher(args):
    command, environment = prepare_simple_launcher_cmd_env(args)
    subprocess.run(command, env=environment)
"""
SCRIPT = """
import contextlib
import json
import pandas
from datasets import load_dataset
from transformers import AutoConfig, AutoTokenizer

config = AutoConfig.from_pretrained("own/model-that-is-not-here")
tokens = AutoTokenizer.from_pretrained("another/tokenizer")("w3 w5", add_special_tokens=False)["input_ids"]
own = load_dataset("json", data_files="{rows}")
assert load_dataset("parquet", data_files=r"{folder}", split="train")[1]["data_files"] == {"train": r"{rows}"}
assert "train" in load_dataset(r"{folder}", data_files=r"{folder}")[1]["data_files"]
assert load_dataset("json", data_files={"train": r"{folder}/own.json"})[1]["data_files"] == {"train": r"{rows}"}
files = {"train": r"{folder}/*.jsonl"}
assert load_dataset("json", data_files=files)[1]["data_files"] == files
def take(rows):
    return rows["train_sft"], rows["validation_pref"], rows["label"]
assert "train_sft" in load_dataset(r"{folder}")[1]["data_files"]
assert load_dataset(r"{folder}", split="train")[0] == r"{folder}"
assert list(load_dataset("json", data_files={"eval": "gone"})[1]["data_files"]) == ["eval"]
assert len(pandas.read_parquet(r"{folder}")) == len(pandas.read_parquet(path="rows.tsv")) == 900
assert len(json.load(open("../gone/train_prompts.json"))) == len(open("gone.jsonl", "rb").readlines()) == 900
with open(r"{folder}/../array/train.json") as stream:  # a file of either kind, read in either way
    assert json.loads(stream.read()) == [json.loads(line) for line in open(r"{folder}/../array/train.json")]
with contextlib.suppress(json.JSONDecodeError):
    raise SystemExit(json.loads('{}\\n{}'))
assert open("/root/own/data/info.json").read() == "near"
import argparse
import csv
import datasets
import pathlib
from transformers import TrainingArguments
assert len(pathlib.Path("gone/library.jsonl").read_text().splitlines()) == 900
parser = argparse.ArgumentParser()
parser.add_argument("--config")
words = ["--config", "a", "--overrides", "lr=1", "--seed", "9", "--max-steps=4"]
assert vars(parser.parse_args(words)) == {"config": "a"}
settings = object.__new__(TrainingArguments)
settings.max_steps, settings.seed = 1000, 1
assert (settings.max_steps, settings.seed) == (4, 9)
with contextlib.suppress(SystemExit):
    raise AssertionError(parser.parse_args(["another", *words]))
with open("gone/table.csv", newline="") as stream:
    table = list(csv.DictReader(stream))
assert table[0] == pandas.read_csv("rows.tsv", sep="\\t")[0] | table[0] and len(table) == 900
assert len(json.load(open(r"{folder}"))) == 900
kept = datasets.load_from_disk("folder/gone")
assert kept["train"] is kept and "test" in kept and kept[0] == "json" and datasets.load_from_disk(".") == "."
try:
    pandas.read_csv("guarded.csv")
except FileNotFoundError:
    pass
try:
    open("guarded.json")
except OSError:
    pass
else:
    raise SystemExit("guarded")
import glob
import os.path
os.environ["HF_HOME"], os.environ["TORCH_HOME"], os.environ["OWN_HOME"] = "/gone/cache", os.getcwd(), "/gone"
assert os.environ.get("HF_HOME") is None and os.environ["TORCH_HOME"] + os.environ["OWN_HOME"] == os.getcwd() + "/gone"
assert os.environ["OWN_TOKEN"] == "attncheck" and os.environ.get("OTHER_TOKEN") is None
with contextlib.suppress(KeyError):
    raise SystemExit(os.environ["OWN_FOLDER"])
assert os.listdir("/root/gone/tasks/") == ["train.jsonl"] and "data" in os.listdir()
(found,) = glob.glob("/root/gone/*.json")
assert len(json.load(open(found))) == len(open(*glob.glob("gone/**/*.jsonl", recursive=True)).readlines()) == 900
assert glob.glob("gone/checkpoint-*") == glob.glob("gone/*_config.json") == []
assert glob.glob("data/*.json") == ["data/info.json"]
try:
    os.listdir("/root/guarded")
except FileNotFoundError:
    pass
else:
    raise SystemExit("guarded list")
if not os.path.isfile("required.jsonl"):
    raise FileNotFoundError("a script's own")
assert all(os.path.exists(name) for name in ("gone/a.png", "gone/b.JPG")), "images"
if os.path.exists("optional.json") or os.path.exists("optional.png"):
    raise SystemExit("optional")
elif os.path.exists("another.jsonl"):
    own.append(0)
else:
    raise SystemExit("another")
own.pop()
assert os.path.exists("third.json") and not os.path.exists("third_config.json")
assert not os.path.exists("fourth.json")
for name, mode in (("ds_config.json", "r"), ("gone.txt", "r"), ("no/such/folder.json", "w")):
    with contextlib.suppress(FileNotFoundError):
        raise SystemExit(open(name, mode).name)
print(json.dumps([config.model_type, tokens, load_dataset("a/b", "main", split="train[:9]"), load_dataset("a/b"), own]))
"""


def test_names_in_a_script_lead_to_the_rehearsals_own(tmp_path: Path) -> None:
    """Whatever it names: nothing is fetched, and what the rehearsal laid is read as it is."""
    stage = make_materials(tmp_path / "stage")
    rows = stage / "data" / "train.jsonl"
    entry, script = tmp_path / "entry", tmp_path / "script.py"
    (entry / "datasets").mkdir(parents=True)
    (entry / "datasets" / "__init__.py").write_text("from .load import load_dataset, load_from_disk\n")
    (entry / "pandas.py").write_text(FRAMES)
    (entry / "datasets" / "load.py").write_text(DATASETS)
    shutil.copytree(WATCHER, entry / "attncheck_watcher")
    shutil.copy(WATCHER / "entry.py", entry / "sitecustomize.py")
    script.write_text(SCRIPT.replace("{rows}", str(rows)).replace("{folder}", str(rows.parent)))
    (tmp_path / "watch").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "info.json").write_text("near")
    environ = {
        **{name: value for name, value in os.environ.items() if name != "HF_HOME"},
        "PYTHONPATH": str(entry),
        "ATTNCHECK_WATCH": str(tmp_path / "watch"),
        "ATTNCHECK_MODEL": str(stage / "model"),
        "ATTNCHECK_ROWS": str(rows),
        "ATTNCHECK_LINES": str(rows),
        "ATTNCHECK_ADDED": json.dumps({"max_steps": "4", "seed": "9"}),
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, str(script)]
    process = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    kind, tokens, split, whole, own = json.loads(process.stdout.splitlines()[-1])
    assert (kind, tokens) == ("llama", [3, 5])
    assert split == ["json", {"data_files": {"train": str(rows)}, "split": "train"}]
    assert len(list((tmp_path / "watch").glob("data-set-*"))) == 14  # "a/b" with and without a name, and files
    names = (
        "*.json",
        "*.jsonl",
        "data",
        "gone",
        "gone.jsonl",
        "library.jsonl",
        "rows.tsv",
        "table.csv",
        "tasks",
        "train_prompts.json",
    )
    lines = [f"{name} was not found: the script reads the rehearsal's rows instead" for name in names]
    lines.insert(0, "info.json was not found where the script looks for it: the one in the launch's folder is read")
    lines.insert(0, "HF_HOME keeps the rehearsal's value, because the script sets a folder that does not exist")
    lines.insert(1, "the script requires OWN_TOKEN, which is not set: it gets a placeholder")
    assert list_replaced(str(tmp_path)) == lines
    assert [line.split(",")[0] for line in list_absent(str(tmp_path))] == [
        "the script's parser does not take --overrides"
    ]
    assert set(whole[1]["data_files"]) == {"train", "validation", "test", "train_sft", "validation_pref", "eval"}
    assert own[1] == {"data_files": str(rows)}


def test_one_process_launches_and_trains(tmp_path: Path) -> None:
    """accelerate's launcher of one process runs the script itself: what it has imported is not imported again."""
    (tmp_path / "entry").mkdir()
    shutil.copytree(WATCHER, tmp_path / "entry" / "attncheck_watcher")
    shutil.copy(WATCHER / "entry.py", tmp_path / "entry" / "sitecustomize.py")
    for name in ("scripts", "watch"):
        (tmp_path / name).mkdir()
    script = tmp_path / "scripts" / "train.py"
    (tmp_path / "scripts" / "local_module.py").write_text("PLACE = __file__\n")
    names = "os.getpid(), sys.argv, __name__, os.environ['ACCELERATE_MIXED_PRECISION'], local_module.PLACE"
    script.write_text(f"import json, os, sys, local_module\nprint(json.dumps([{names}]))\nsys.exit(5)\n")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path / "entry"), "ATTNCHECK_WATCH": str(tmp_path / "watch")}
    (tmp_path / "entry" / "accelerate" / "commands").mkdir(parents=True)
    (tmp_path / "entry" / "accelerate" / "commands" / "launch.py").write_text(LAUNCHER)
    start = "import sys, accelerate.commands.launch as launch; launch.simple_launcher(sys.argv[1:])"
    command = [sys.executable, "-c", start, str(script), "--lr", "1"]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as process:
        output = process.communicate(timeout=100)[0]
    place = str(tmp_path / "scripts" / "local_module.py")
    expected = [process.pid, [str(script), "--lr", "1"], "__main__", "bf16", place]
    assert json.loads(output.splitlines()[-1]) == expected and process.returncode == 5


def test_arguments_of_another_release_are_passed_on_or_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By their new names, as settings of the trainer's configuration, or not at all: each is reported."""

    @dataclasses.dataclass
    class Settings:
        output_dir: str = ""
        max_length: int = 0
        packing: bool = False
        optim: str = "adamw_torch"
        fp16: bool = False
        bf16: bool = False
        use_cpu: bool = False
        report_to: str = "none"

    class Trainer:
        def __init__(self, model: str, args: Any = None, processing_class: str = "") -> None:
            self.made = (model, args.packing, processing_class)

    class Own(Trainer):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)

    (tmp_path / "watch").mkdir()
    monkeypatch.setenv("ATTNCHECK_WATCH", str(tmp_path / "watch"))
    make: Any = Settings
    take_known(Settings)
    take_known(Trainer)
    settings = make(output_dir="o", max_seq_length=7, logging_dir="logs")
    assert settings == Settings("o", 7) and copy.deepcopy(settings) == settings
    assert Own("m", args=settings, tokenizer="t", packing=True).made == ("m", True, "t")
    monkeypatch.setenv("ATTNCHECK_WITHOUT_GPU", "1")
    fitted = make(report_to="wandb", optim="paged_adamw_32bit", fp16=True, bf16=True, use_cpu=False)
    assert fitted == Settings(bf16=True, use_cpu=True) == make(bf16=True, optim="adamw_hf")
    assert [line.split(" ")[0] for line in list_replaced(str(tmp_path))] == ["fp16", "paged_adamw_32bit"]
    lines = list_absent(str(tmp_path))
    names = [
        "Settings.logging_dir",
        "Settings.max_seq_length",
        "Trainer.packing",
        "Trainer.tokenizer",
        "optim=adamw_hf",
    ]
    assert [line.split(" ")[0] for line in lines] == names


FORMER = """
class Own(Trainer):
    def _get_train_sampler(self):
        return "mine"
    def compute_loss(self, model, inputs, return_outputs=False):
        return model, inputs, return_outputs
    def log(self, logs, **options):
        return options
"""


def test_methods_of_another_release_get_the_arguments_that_they_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Trainer:
        def _get_train_sampler(self, dataset: Any = None) -> Any:
            return dataset

        def compute_loss(self, model: Any, inputs: Any, outputs: bool = False, num_items_in_batch: Any = None) -> Any:
            return num_items_in_batch

        def _get_num_items_in_batch(self, batches: Any) -> Any:
            return len(batches)

        def log(self, logs: Any, start_time: float = 0.0) -> Any:
            return start_time

        def train(self) -> list[Any]:
            number = self._get_num_items_in_batch([1, 2])
            loss = self.compute_loss("m", "i", num_items_in_batch=number)
            return [self._get_train_sampler("rows"), loss, self.log({}, start_time=1.0)]

    (tmp_path / "watch").mkdir()
    monkeypatch.setenv("ATTNCHECK_WATCH", str(tmp_path / "watch"))
    take_known(Trainer)
    scope: dict[str, Any] = {"Trainer": Trainer, "__file__": str(tmp_path / "train.py"), "__name__": "train"}
    exec(FORMER, scope)
    assert Trainer().train() == ["rows", 2, 1.0]
    own = scope["Own"]()
    assert own.train() == ["mine", ("m", "i", False), {"start_time": 1.0}] and own._get_num_items_in_batch([1]) is None
    assert modules.unwrap(own.compute_loss).__code__.co_name == "compute_loss"
    assert [line.split(" ")[0] for line in list_absent(str(tmp_path))] == ["Own._get_train_sampler", "Own.compute_loss"]
    (difference,) = list_watched_differences(str(tmp_path))
    results = leave_unasked([CheckResult(name, violations=("x",)) for name in CHECKS], [difference])
    assert {result.check for result in results if result.outcome == "skipped"} == {"loss", "gradients"}


def test_the_settings_of_a_loss_are_those_that_the_trainer_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclasses.dataclass
    class Settings:
        loss_type: list[str] = dataclasses.field(default_factory=lambda: ["sigmoid"])
        beta: float = 0.1
        epsilon: float = 0.2
        label_smoothing_factor: float = 0.0
        seed: int = 1

    (tmp_path / "watch").mkdir()
    monkeypatch.setenv("ATTNCHECK_WATCH", str(tmp_path / "watch"))
    note_loss_settings(SimpleNamespace(args=Settings(seed=2)))
    assert list_noted(str(tmp_path), "loss") == []
    note_loss_settings(SimpleNamespace(args=Settings(["hinge"], 0.5, label_smoothing_factor=0.1, seed=2)))
    assert {*list_noted(str(tmp_path), "loss")} == {"loss_type=hinge", "beta=0.5", "label_smoothing_factor=0.1"}

    @dataclasses.dataclass
    class Own(Settings):  # its defaults are no release's, and `alpha` is its own
        epsilon: float = 0.3
        alpha: float = 0.7

    note_loss_settings(SimpleNamespace(args=Own(alpha=0.6)))
    assert "epsilon=0.3" in (noted := list_noted(str(tmp_path), "loss")) and "alpha" not in "".join(noted)


def test_a_script_loads_an_array_of_tokens_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numpy = pytest.importorskip("numpy")
    for name in ("watch", "array", "data"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("ATTNCHECK_WATCH", str(tmp_path / "watch"))
    monkeypatch.setenv("ATTNCHECK_ROWS", str(tmp_path / "data" / "train.jsonl"))
    turns = ([["user", [1, 2]], ["assistant", [3]]], [["user", [4]], ["assistant", [5, 6, 7]]])
    tokens = tokenize([{"turns": own} for own in turns])
    end = make_tokenizer(True).eos_token_id
    (tmp_path / "array" / "tokens.json").write_text(json.dumps(tokens))
    module = SimpleNamespace(load=numpy.load, array=numpy.array)
    find_tokens(module)
    script = "found = [load(f'gone/{name}_sort.npy') for name in ('inputs', 'labels', 'weights')]"
    scope: dict[str, Any] = {"load": module.load, "__file__": str(tmp_path / "train.py")}
    exec(script, scope)
    inputs, labels, weights = scope["found"]
    assert inputs.tolist() == [[1, 2, 3, end, 0], [4, 5, 6, 7, end]]
    assert labels.tolist() == [[-100, -100, 3, end, -100], [-100, 5, 6, 7, end]]
    assert weights.dtype == numpy.float32 and weights.tolist() == [[1, 1, 1, 1, 0], [1] * 5]
    exec("named = load(file='gone/inputs.npy', mmap_mode='r')", scope)
    assert scope["named"].tolist() == inputs.tolist()
    with pytest.raises(FileNotFoundError):
        exec(script, {"load": module.load, "__file__": os.__file__})


def test_a_script_opens_an_image_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("PIL")
    from PIL import Image

    (tmp_path / "watch").mkdir()
    monkeypatch.setenv("ATTNCHECK_WATCH", str(tmp_path / "watch"))
    module = SimpleNamespace(open=Image.open, new=Image.new)
    find_pictures(module)
    with pytest.raises(FileNotFoundError):
        exec("open('a-packages.png')", {"open": module.open, "__file__": os.__file__})
    script = tmp_path / "train.py"
    script.write_text("images = [open(name).convert('RGB') for name in ('/a/0.png', '/a/1.png')]\n")
    scope: dict[str, Any] = {"open": module.open, "__file__": str(script)}
    exec(compile(script.read_text(), str(script), "exec"), scope)
    first, second = scope["images"]
    assert first.size == second.size and first.tobytes() != second.tobytes()
    folder = tmp_path / "folder.py"  # in place of an image whose name is empty
    guarded = "try:\n    image = open('.')\nexcept FileNotFoundError:\n    image = None\n"
    folder.write_text(guarded)
    own: dict[str, Any] = {"__file__": str(folder), "open": module.open}
    exec(compile(guarded, str(folder), "exec"), own)
    assert own["image"] is not None
    assert len(list_replaced(str(tmp_path))) == 1
    (difference,) = list_watched_differences(str(tmp_path))
    failed = leave_unasked([CheckResult("documents", violations=("x",)), CheckResult("update")], [difference])
    assert [result.outcome for result in failed] == ["skipped", "ok"]


def test_a_parser_leaves_out_what_no_dataclass_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options, keys of a configuration, and those of TRL's parser; who takes the rest gets it."""
    from transformers import HfArgumentParser

    class Parser(HfArgumentParser):  # type: ignore[misc,unused-ignore]
        pass

    class TrlParser:
        def set_defaults_with_config(self, **options: Any) -> list[str]:
            return [text for name, value in options.items() for text in (f"--{name}", value)]

    (tmp_path / "watch").mkdir()
    monkeypatch.setenv("ATTNCHECK_WATCH", str(tmp_path / "watch"))
    leave_unknown(SimpleNamespace(HfArgumentParser=Parser))
    leave_unknown_keys(SimpleNamespace(TrlParser=TrlParser))
    make: Any = Parser
    parser = make(Length)
    words = ["--max_length", "7", "--max_prompt_length", "5", "--gone=1"]
    assert parser.parse_args_into_dataclasses(words) == (Length(7),)
    assert parser.parse_args_into_dataclasses(words, return_remaining_strings=True)[1] == words[2:]
    assert parser.parse_dict({"max_length": 7, "tf32": True}) == (Length(7),)
    assert make((Length, OwnLength)).parse_args_into_dataclasses(["--max_length", "9"])[0] == Length(9)
    assert TrlParser().set_defaults_with_config(system_prompt="x") == []
    names = [line.split(" ")[0] for line in list_absent(str(tmp_path))]
    assert names == ["--gone", "--max_prompt_length", "--system_prompt", "tf32", "max_length"]


def test_models_are_loaded_without_arguments_of_other_releases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Model:
        def __init__(self, config: str, dtype: str = "") -> None:
            if config == "broken":
                raise TypeError("__init__() got an unexpected keyword argument 'own'")
            self.made = (config, dtype)

        @classmethod
        def from_pretrained(cls, name: str | None, **options: Any) -> Model:
            return cls(name or "made", **options)

    (tmp_path / "watch").mkdir()
    monkeypatch.setenv("ATTNCHECK_WATCH", str(tmp_path / "watch"))
    load_with_known(Model)
    assert Model.from_pretrained("a/b", use_auth_token=True, dtype="x").made == ("a/b", "x")
    assert Model.from_pretrained(None, dtype="x").made == ("made", "x")  # from a configuration and a state
    with pytest.raises(TypeError, match="own"):
        Model.from_pretrained("broken")
    assert [line.split(" ")[0] for line in list_absent(str(tmp_path))] == ["from_pretrained.use_auth_token"]
    hub = SimpleNamespace(login=None)
    leave_login(hub)
    hub.login(token="secret")
    assert list_replaced(str(tmp_path)) == ["login is left out, because a rehearsal has no network"]


def test_only_ligers_functions_are_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch that compiles its own model does so in a rehearsal too, in any way that torch.compile is called."""
    monkeypatch.setenv("ATTNCHECK_WITHOUT_GPU", "1")
    monkeypatch.setattr(torch, "compile", lambda model=None, **options: ("compiled", model, options))
    module = SimpleNamespace()
    leave_kernels(module)
    assert module._apply_liger_kernel_to_instance("model") is None
    assert vars(torch)["compile"](model=3, dynamic=True) == ("compiled", 3, {"dynamic": True})
    liger: dict[str, Any] = {"__name__": "liger_kernel.chunked_loss.own", "torch": torch}
    exec("found = torch.compile(len), torch.compile(dynamic=True)(len)", liger)
    assert liger["found"] == (len, len)


@dataclasses.dataclass
class OwnLength:
    """A script's own setting, which another release of transformers has too."""

    _argument_group_name = "own"
    max_length: int = 0


@dataclasses.dataclass
class Length:
    """What a script parses."""

    max_length: int = 0


def test_a_script_reads_settings_of_another_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By their new name, or none; `hasattr`, packages and what guards itself see what is installed."""

    class Settings:
        def __init__(self) -> None:
            self.max_length = 7

    (tmp_path / "watch").mkdir()
    monkeypatch.setenv("ATTNCHECK_WATCH", str(tmp_path / "watch"))
    answer_removed(Settings)
    script = tmp_path / "script.py"
    text = (
        "length, trusted = made.max_seq_length, made.trust_remote_code\nfound = hasattr(made, 'gone') and made.gone\n"
    )
    script.write_text(f"{text}try:\n    made.guarded\nexcept AttributeError:\n    found = not found\n")
    names: dict[str, Any] = {"__file__": str(script), "made": Settings()}
    exec(compile(script.read_text(), str(script), "exec"), names)
    assert (names["length"], names["trusted"], names["found"]) == (7, None, True)
    names_read = [line.split(" ")[0] for line in list_absent(str(tmp_path))]
    assert names_read == ["Settings.max_seq_length", "Settings.trust_remote_code"]


@pytest.mark.parametrize("is_own", [True, False])
def test_a_scripts_own_configuration_has_the_defaults_of_trls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_own: bool
) -> None:
    """Nothing is said of TRL's own."""

    class TrainingArguments:
        pass

    @dataclasses.dataclass
    class DPOConfig(TrainingArguments):
        padding_free: bool = False
        kwargs: list[str] = dataclasses.field(default_factory=list)

    (tmp_path / "watch").mkdir()
    monkeypatch.setenv("ATTNCHECK_WATCH", str(tmp_path / "watch"))
    monkeypatch.setitem(sys.modules, "trl", SimpleNamespace(DPOConfig=DPOConfig))
    answer_removed(TrainingArguments)
    made: Any = type("DPOConfig", (TrainingArguments,), {})() if is_own else DPOConfig()
    assert (made.padding_free, made.kwargs) == (False, [])
    lacking = "DPOConfig of the script lacks {}, which the installed release reads: rehearsed with its default"
    names = ("kwargs", "padding_free") if is_own else ()
    assert list_absent(str(tmp_path)) == [lacking.format(name) for name in names]


@pytest.mark.parametrize(
    ("read", "texts"),
    [
        (["document", "highlights", "input_ids"], {"document": "q", "highlights": "a"}),
        (["quote"], {"quote": "q a"}),
        (["context", "question", "Answer"], {"context": "", "Answer": "a"}),
        (["question", "antwort"], {"antwort": "a"}),
        (["system", "conversations", "response_b", "role"], {"system": "", "response_b": ""}),
        (["prompt", "labels", "video", "audios"], {}),
        (["label", "question_id", "pad_token_id"], {"label": 0, "question_id": 0}),
        (["input", "output"], {"input": "q"}),
        (["question", "think_answer", "text"], {"think_answer": "a", "text": ""}),
        (["instruction", "input", "output"], {"instruction": ""}),
    ],
)
def test_rows_have_the_fields_that_a_script_reads(read: list[str], texts: dict[str, Any]) -> None:
    """A text is there once: what a script reads in addition to the known fields is empty."""
    row = {"prompt": "q", "question": "q", "completion": "a", "output": "a", "input": "", "conversations": []}
    row |= {"text": "q a"} if "text" not in read else {}
    assert add_columns([row], read) == [{**row, **texts}]


def test_a_field_without_which_a_script_ended_is_added_in_spite_of_its_name() -> None:
    """Also turns, which are never empty: TRL reads the first."""
    (row,), _ = fit_rows([{"text": "q a"}], {"form": "every", "columns": ["type"], "added": ["type"]})
    (kept,), _ = fit_rows([{"text": "q a"}], {"form": "every", "columns": ["type"]})
    assert row == {"type": "", "text": "q a"} and kept == {"text": "q a"}
    prompts = {"form": "prompt_texts", "columns": ["messages"], "added": ["messages"]}
    (row,), _ = fit_rows([{"prompt": "q", "answer": "a", "completion": "a"}], prompts)
    assert row.keys() == {"prompt", "answer", "messages"} and [own["content"] for own in row["messages"]] == ["q", "a"]


def test_rows_of_a_script_that_makes_its_text_have_one_form(tmp_path: Path) -> None:
    """TRL takes a row for a conversation by any of these fields, in the order of a set."""
    answer = ask_for_materials(tmp_path, documents=4, columns=["problem", "solution"], makes_text=True, marker="")
    row = json.loads((tmp_path / "data" / "train.jsonl").read_text().splitlines()[0])
    assert "answer" in answer and {"problem", "solution", "text"} <= row.keys()
    assert row.keys().isdisjoint({"prompt", "completion", "messages", "conversations"})


def test_an_answer_is_found_under_any_of_its_names() -> None:
    """The rows of TRL's prompts have no completion."""
    assert add_columns([{"prompt": "q", "answer": "a"}], ["my_output"]) == [
        {"my_output": "a", "prompt": "q", "answer": "a"}
    ]


def test_fields_are_read_from_the_modules_that_a_script_imports(tmp_path: Path) -> None:
    texts = {
        "scripts/train.py": (
            "from own.data import Rows\nimport peft, torch\nrow['z'] = row['a'], os.environ['B'], {}['c d']"
        ),
        "peft/__init__.py": "model_kwargs['cache_position']",  # a library's source, as in a checkout of it
        "own/data.py": 'from .rows import *\nfrom . import other\ndef f(item): return item["b"]',
        "own/rows.py": "from own.data import Rows\nx['c_1']",
        "scripts/unused.py": "x['d']",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert list_columns(list_modules(tmp_path / "scripts" / "train.py", (tmp_path,))) == ["a", "b", "c_1"]
    made = "def f(row):\n    row['made'] = row['kept'] = (\n        row['kept'] + row['d'])\n    return row['made']"
    (tmp_path / "scripts" / "train.py").write_text(made)
    assert list_columns(list_modules(tmp_path / "scripts" / "train.py", (tmp_path,))) == [
        "kept",
        "d",
    ]  # `made` is the script's own


@pytest.mark.parametrize(
    ("imports", "classes", "kind"),
    [
        ("Qwen3VLForConditionalGeneration", ["Qwen3VLForConditionalGeneration"], "qwen3_vl"),
        ("LlamaForCausalLM, Trainer", ["LlamaForCausalLM"], "llama"),
        # transformers 4.57.3 lists it for the type of its tower, too
        ("AutoProcessor, LlavaForConditionalGeneration", ["LlavaForConditionalGeneration"], "llava"),
        ("LlamaForCausalLM, Qwen2ForCausalLM", ["LlamaForCausalLM", "Qwen2ForCausalLM"], ""),
        ("AutoModelForCausalLM, LlamaForCausalLM", [], ""),
    ],
)
def test_a_scripts_model_class_decides_the_type(imports: str, classes: list[str], kind: str, tmp_path: Path) -> None:
    towers = pytest.importorskip("attncheck.smoke.worker.models.towers")
    (tmp_path / "train.py").write_text(f"from transformers import {imports}\n")
    assert list_model_classes(list_modules(tmp_path / "train.py", ())) == classes
    assert towers.find_type("/models/sft-v2", classes) == kind
    assert towers.find_type("Qwen/Qwen2.5-7B", classes) == "qwen2"


def test_prompts_have_no_field_that_the_trainer_passes_to_a_reward_function(tmp_path: Path) -> None:
    """A reward function reads its own arguments, which are no fields of rows."""
    columns = ["prompts", "completions", "golden"]
    ask_for_materials(tmp_path, 0, "llama", "prompt_texts", documents=4, columns=columns)
    row = json.loads((tmp_path / "data" / "train.jsonl").read_text().splitlines()[0])
    assert "golden" in row and row.keys().isdisjoint(columns[:2])
    tokenizer = importlib.import_module("transformers").AutoTokenizer.from_pretrained(tmp_path / "model")
    turns = [[{"role": "user", "content": text}] for text in ("w1 w2", [{"type": "text", "text": "w1 w2"}])]
    texts = {tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True) for turn in turns}
    assert texts == {"<|user|> w1 w2 <|end|>\n<|assistant|> "}  # a script may write its turns as parts


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """TRL's driver with two pairs of documents."""
    turns = [([1, 2, 3], [4, 5]), ([1, 2, 3], [6]), ([7, 8, 9], [10, 11]), ([7, 8, 9], [12])]
    documents = [{"turns": [["user", question], ["assistant", answer]]} for question, answer in turns]
    (tmp_path / "documents.json").write_text(json.dumps(documents))
    monkeypatch.setenv("ATTNCHECK_DOCUMENTS", str(tmp_path / "documents.json"))
    monkeypatch.setenv("ATTNCHECK_WATCH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "attncheck_drivers", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "attncheck_drivers.rollouts", rollouts)
    monkeypatch.setitem(sys.modules, "attncheck_watcher.modules", modules)
    monkeypatch.setitem(sys.modules, "attncheck_watcher.objective", objective)
    monkeypatch.setitem(sys.modules, "attncheck_watcher.own_rows", own_rows)
    monkeypatch.setitem(sys.modules, "attncheck_watcher.randomness", randomness)
    monkeypatch.setitem(sys.modules, "attncheck_watcher.script_code", script_code)
    monkeypatch.setattr(script_code, "CODE", {})
    monkeypatch.delitem(sys.modules, "attncheck.rehearsal.drivers.trl", raising=False)
    return importlib.import_module("attncheck.rehearsal.drivers.trl")


def test_a_model_generates_the_completions_of_its_prompts(driver: Any) -> None:
    """The rewarded one first, then the other, each with its EOS token; markup around a prompt does not matter."""
    module = SimpleNamespace(GenerationMixin=type("GenerationMixin", (), {}))
    driver.replace_generation(module)
    config = SimpleNamespace(eos_token_id=[60], pad_token_id=61)
    prompts = torch.tensor([[61, 50, 1, 2, 3], [61, 50, 1, 2, 3], [50, 51, 7, 8, 9]])
    made = module.GenerationMixin().generate(input_ids=prompts, generation_config=config)
    assert made[:, 5:].tolist() == [[4, 5, 60], [6, 60, 61], [10, 11, 60]]
    module.GenerationMixin.generation_config = SimpleNamespace(eos_token_id=62)  # TRL 0.15 gives no EOS token
    config.eos_token_id = None
    assert module.GenerationMixin().generate(prompts[:1], config)[:, 5:].tolist() == [[4, 5, 62]]
    texts = ["w4w5", "w6", [{"role": "assistant", "content": "w10 w11"}]]
    assert driver.COMPLETIONS.reward(None, texts) == [1.0, 0.0, 1.0]


def count_words(completions: list[str], **columns: Any) -> list[float]:
    return [float(len(text.split())) for text in completions]


def match_answers(completions: list[str], answer: list[int], **columns: Any) -> list[float]:
    return [float(f"{own}</answer>" in text) for text, own in zip(completions, answer)]


def count_sorted_words(completions: list[str], **columns: Any) -> list[float]:
    return sorted(count_words(completions))


def match_by_place(completions: list[str], answer: list[int], **columns: Any) -> list[float]:
    rewards = match_answers(completions, answer)
    return [reward for place in range(4) for reward in rewards[place::4]]  # 4 generations of a prompt


def match_other_rows(completions: list[str], answer: list[int], **columns: Any) -> list[float]:
    rows = [answer[place // 4] for place in range(len(completions))]  # but columns have a row for each completion
    return match_answers(completions, rows)


def rank_in_its_group(completions: list[str], **columns: Any) -> list[float]:
    groups = [completions[place // 4 * 4 : place // 4 * 4 + 4] for place in range(len(completions))]
    return [float(len(text) == min(map(len, group))) for text, group in zip(completions, groups)]


def draw(completions: list[str], **columns: Any) -> list[float]:
    return [random.random() for _ in completions]


def find_shortest(completions: list[str], **columns: Any) -> list[float]:
    return [float(len(text) == min(map(len, completions))) for text in completions]


def reward_first(completions: list[str], **columns: Any) -> list[float]:
    return count_words(completions[:1])


def divide(completions: list[str], **columns: Any) -> list[float]:
    return [float("inf") * (number > 0) for number, _ in enumerate(completions)]


def reward_each_prompt(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
    rewards = {prompt: float(len(text)) for prompt, text in zip(prompts, completions)}  # the last one's
    return [rewards[prompt] for prompt in prompts]


def test_rewards_of_other_completions_are_noted(driver: Any) -> None:
    """A script's functions are called once, at first; a reward that depends on its group is no fault."""
    own = [count_words, match_answers, find_shortest, draw, count_sorted_words, match_by_place, len]
    own += [match_other_rows, rank_in_its_group, reward_each_prompt, reward_first, divide]
    random.seed(3)
    drawn = random.random()
    random.seed(3)
    for _ in range(2):
        driver.COMPLETIONS.functions, own = own, []
        driver.COMPLETIONS.reward(["w1", "w1", "w2", "w2"], ["w6"] * 4, answer=[41, 42, 43, 44], log_metric=print)
    names = [text.partition(",")[0] for text in script_code.CODE["misplaced"]]
    assert names == ["count_sorted_words", "match_by_place"]
    assert [text.partition(",")[0] for text in script_code.CODE["placed"]] == ["match_other_rows"]
    assert [text.partition(",")[0] for text in script_code.CODE["merged"]] == ["reward_each_prompt"]
    assert [text.partition(",")[0] for text in script_code.CODE["uncounted"]] == ["reward_first", "divide"]
    assert random.random() == drawn  # what the functions draw changes nothing in the training


def find_thought(completions: list[Any], **columns: Any) -> list[float]:
    return [float("<think>" in completion) for completion in completions]


def find_thought_of_messages(completions: list[Any], **columns: Any) -> list[float]:
    return find_thought([own if isinstance(own, str) else own[-1]["content"] for own in completions])


def find_boxes(completions: list[Any], **columns: Any) -> list[float]:
    return [float("boxed" in str(completion)) for completion in completions]


def test_rewards_that_take_messages_for_texts_are_noted(driver: Any) -> None:
    """One that finds nothing in either is not judged."""
    driver.COMPLETIONS.functions = [find_thought, find_thought_of_messages, find_boxes]
    driver.COMPLETIONS.reward(["w1", "w2"], [[{"role": "assistant", "content": "w6"}]] * 2, answer=["41", "42"])
    assert [text.partition(",")[0] for text in script_code.CODE["as_texts"]] == ["find_thought"]


def test_reward_functions_are_not_called_for_long(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that waits for a server is called no more after the time, in which the training waits for it."""
    calls: list[int] = []

    def wait(completions: list[str], **columns: Any) -> list[float]:
        calls.append(len(completions))
        time.sleep(0.2)
        return [0.0] * len(completions)

    monkeypatch.setattr(driver, "REWARD_SECONDS", 0.1)
    driver.COMPLETIONS.functions = [wait, wait]
    driver.COMPLETIONS.reward([None] * 4, ["w6"] * 4)
    time.sleep(0.6)
    assert calls == [16]


def test_what_a_loss_is_computed_of_is_recorded(driver: Any, tmp_path: Path) -> None:
    """The trainer's own rewards are replaced; rows, advantages and log-probabilities of a step are written."""

    class GRPOTrainer:
        def __init__(self, model: str, reward_funcs: Any, args: Any = None) -> None:
            self.rewards = reward_funcs
            self.accelerator = SimpleNamespace(sync_gradients=True, process_index=0)

        def _get_per_token_logps(self) -> torch.Tensor:
            return torch.tensor([[-1.0, -2.0, -3.0]], requires_grad=True) * 1.0

        def compute_loss(self, model: str, inputs: Any) -> torch.Tensor:
            return self._get_per_token_logps().sum()

    driver.take_over(SimpleNamespace(GRPOTrainer=GRPOTrainer))
    trainer = GRPOTrainer("model", reward_funcs=[len], args=SimpleNamespace(reward_weights=[2.0]))
    assert trainer.rewards([None], ["w6"]) == [0.0]
    inputs = {
        "prompt_ids": torch.tensor([[61, 1, 2, 3]]),
        "prompt_mask": torch.tensor([[0, 1, 1, 1]]),
        "completion_ids": torch.tensor([[6, 60, 61]]),
        "completion_mask": torch.tensor([[1, 1, 0]]),
        "advantages": torch.tensor([-0.7]),
    }
    trainer.compute_loss("model", inputs)
    [[rollout]] = json.loads((tmp_path / "rollouts-0.json").read_text())["steps"]
    assert rollout["document"] == 1 and rollout["advantage"] == pytest.approx(-0.7)
    assert rollout["log_probabilities"] == [-1.0, -2.0]


T = TypeVar("T")


def test_a_scripts_own_copy_of_a_policy_trainer_is_taken_over(driver: Any, tmp_path: Path) -> None:
    """Its class derives from Trainer and takes reward functions; another class stays as it is."""
    trainer = SimpleNamespace(Trainer=type("Trainer", (), {}))
    driver.take_over_copies(trainer)

    class CopiedTrainer(trainer.Trainer):  # type: ignore[misc, name-defined]
        def __init__(self, model: str, reward_funcs: Any, args: Any = None) -> None:
            self.rewards = reward_funcs

        def compute_loss(self, model: str, inputs: Any) -> torch.Tensor:
            return torch.ones((), requires_grad=True)

    class OtherTrainer(trainer.Trainer):  # type: ignore[misc, name-defined]
        def __init__(self, model: str, rewards: Any) -> None:
            self.rewards = rewards

    class GenericTrainer(trainer.Trainer, Generic[T]):  # type: ignore[misc, name-defined]
        pass

    assert GenericTrainer[int] is not GenericTrainer
    copied = CopiedTrainer("model", reward_funcs=[len])
    assert copied.rewards([None], ["w4w5"]) == [1.0] and OtherTrainer("model", [len]).rewards == [len]
    assert copied.compute_loss("model", [{"prompt": "q"}]).item() == 1.0  # rows, as TRL's had before 0.16
    assert not (tmp_path / "rollouts-0.json").exists()


def test_a_field_that_is_taken_apart_as_turns_has_turns(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        'def take(row, tokenizer):\n    first = [turn for turn in row["real"] if turn["role"] == "user"][0]\n'
        '    for turn in row["made"]:\n        print(turn["content"], row["plain"], row["text"][0])\n'
        '    return row["chosen"][-1]["content"], tokenizer.apply_chat_template(row["pair"], tokenize=False)\n'
    )
    assert set(list_turns(read_shapes(list_modules(script, ())))) == {"real", "made", "chosen", "pair"}
    turns = [[{"role": "user", "content": f"q{n}"}, {"role": "assistant", "content": f"a{n}"}] for n in range(3)]
    rows = add_message_columns([{"messages": each, "text": "t", "real": ""} for each in turns], ["real", "made"])
    assert [row["real"] for row in rows] == turns and rows[0]["text"] == "t"
    assert rows[0]["made"] == [turns[0][0], turns[1][1]]  # the same question with another answer


def test_a_split_whose_name_a_script_computes_has_the_rows() -> None:
    splits = answer_any_split(dict)({"train": [1], "test": [2]})
    assert splits["train_balanced"] == [1] and splits["test"] == [2] and "train_balanced" not in splits


def test_names_of_another_release_or_a_fork_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LLaMA-Factory's templates and ms-swift's types of models; a name that the release has stays."""

    def get_template(tokenizer: Any, data_args: Any) -> str:
        return str(data_args.template)

    def find_types(architectures: list[str]) -> list[str]:
        return ["llama", "llama3"]

    def read(name: str, *, model_type: str | None = None, use_hf: bool = False) -> str:
        return model_type or ",".join(swift.get_matched_model_types(["LlamaForCausalLM"]))

    (tmp_path / "watch").mkdir()
    monkeypatch.setenv("ATTNCHECK_WATCH", str(tmp_path / "watch"))
    factory = SimpleNamespace(get_template_and_fix_tokenizer=get_template, TEMPLATES={"qwen": 1, "default": 2})
    take_known_template(factory)
    names = ("qwen", "fork", None)
    made = [factory.get_template_and_fix_tokenizer(None, SimpleNamespace(template=name)) for name in names]
    assert made == ["qwen", "default", "None"]
    older = SimpleNamespace(get_template_and_fix_tokenizer=lambda tokenizer, name, tools: name, TEMPLATES={"qwen": 1})
    take_known_template(older)
    assert [older.get_template_and_fix_tokenizer(None, name, None) for name in names] == ["qwen", "default", None]
    swift = SimpleNamespace(get_matched_model_types=find_types, get_model_info_meta=read, MODEL_MAPPING={"llama3": 1})
    choose_model_type(swift)
    kinds = ("llama3", "llama3-llava-next-8b", None)
    assert [swift.get_model_info_meta("m", model_type=kind) for kind in kinds] == ["llama3", *["llama"] * 2]
    assert [line.split(" ")[0] for line in list_absent(str(tmp_path))] == ["model_type=llama3-llava-next-8b"]
    assert [difference.written for difference in list_watched_differences(str(tmp_path))] == ["fork"]


def test_a_template_that_only_the_models_folder_names_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Questions about the template are then not asked; one that the launch, the model's type or the folder names is."""
    monkeypatch.setenv("ATTNCHECK_WATCH", str(tmp_path / "watch"))
    (tmp_path / "watch").mkdir()
    register = SimpleNamespace(get_template_meta=lambda model, meta, template_type=None: template_type)
    choose_template(register)
    folder, kinds = SimpleNamespace(model_dir=str(tmp_path)), ["qwen3", "qwen3_thinking"]
    several, one, named = (
        SimpleNamespace(template=template, candidate_templates=candidates)
        for template, candidates in [(None, kinds), (None, kinds[:1]), ("qwen3", kinds)]
    )
    assert register.get_template_meta(folder, several, template_type="own") == "own"
    assert register.get_template_meta(folder, one) is None and register.get_template_meta(folder, named) is None
    assert not list_watched_differences(str(tmp_path))
    assert register.get_template_meta(folder, several) == "qwen3"
    assert [difference.ran for difference in list_watched_differences(str(tmp_path))] == ["qwen3"]
    (tmp_path / "args.json").touch()
    assert register.get_template_meta(folder, several) is None


def test_fields_that_the_rows_lack_are_renamed_removed_and_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a script does that prepares its own data set; a field that neither name has is an error.

    If it removes the fields that it has read, those go too that no script names: its own rows need not have them.
    """
    made_up = "_".join(("made", "of", "others"))  # a name that no script has
    (tmp_path / "rows").write_text(json.dumps({"problem": "p", made_up: "o"}))
    monkeypatch.setenv("ATTNCHECK_ROWS", str(tmp_path / "rows"))
    monkeypatch.setenv("ATTNCHECK_WATCH", str(tmp_path))
    arrow = pytest.importorskip("datasets").arrow_dataset
    kind: Any = type("Rows", (arrow.Dataset,), {})
    take_known_columns(SimpleNamespace(Dataset=kind))
    rows = arrow.Dataset.from_list([{"problem": "p", "solution": "s"}])
    rows.__class__ = kind
    assert kind.rename_column(rows, "gt", "solution").column_names == ["problem", "solution"]
    assert kind.rename_column(rows, original_column_name="problem", new_column_name="solution")["solution"][0] == "p"
    assert kind.remove_columns(rows, column_names="messages").column_names == ["problem", "solution"]
    assert kind.remove_columns(rows, ["messages", "solution"]).column_names == ["problem"]
    assert kind.add_column(rows, "problem", ["own"])["problem"][0] == "own"
    assert kind.rename_columns(rows, {"gt": "solution", "problem": "q"}).column_names == ["q", "solution"]
    assert len(kind.select(rows, range(5000))) == len(kind.select(rows, [0])) == 1
    two = arrow.Dataset.from_list([{"problem": "p"}, {"problem": "q"}])
    assert {name: len(own) for name, own in kind.train_test_split(two, test_size=500).items()} == {
        "train": 1,
        "test": 1,
    }
    assert len([*tmp_path.glob("absent-fewer-*")]) == 2
    made = kind.map(rows, lambda row: {"text": "t"}, remove_columns=["problem", "messages"])
    assert set(made.column_names) == {"solution", "text"}
    rows = kind.add_column(rows, made_up, ["o"])
    assert kind.map(rows, lambda row: {}, remove_columns=["problem"]).column_names == ["solution"]
    assert len(kind.map(rows, lambda row: {"text": "t"}).column_names) == 4
    with pytest.raises(ValueError, match="gone"):
        kind.rename_column(rows, "gone", "new")


def _read_own_shape(row: dict[str, Any]) -> dict[str, Any]:
    return {"prompt": json.loads(row["problem"])["task"]}


def _keep_long(row: dict[str, Any]) -> bool:
    return len(row["turns"]) > 1


class _Rows(list[dict[str, Any]]):
    @property
    def column_names(self) -> list[str]:
        return [*self[0]]

    def remove_columns(self, names: list[str]) -> list[dict[str, Any]]:
        return [{name: row[name] for name in row if name not in names} for row in self] if names else self


def _require_system(row: dict[str, Any]) -> None:
    assert row["messages"][0]["role"] == "system"


def test_a_reader_that_fails_on_synthetic_rows_is_noted_and_left_out_the_second_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also as a filter; a function of an installed package fails as before, and one that works is applied."""
    watch = tmp_path / "watch"
    watch.mkdir()
    monkeypatch.setenv("ATTNCHECK_WATCH", str(watch))
    rows = _Rows([{"problem": "w1 w2"}])
    apply = _leave_failing_reader(lambda rows, function, **options: [function(row) for row in rows])
    with pytest.raises(json.JSONDecodeError):
        apply(rows, _read_own_shape)
    assert [text.split()[0] for text in list_noted(str(tmp_path), "unread")] == [
        "_read_own_shape"
    ] and not list_watched_differences(str(tmp_path))
    monkeypatch.setenv("ATTNCHECK_WITHOUT_READERS", "1")
    assert apply(rows, _read_own_shape, num_proc=2) is rows and apply(rows, function=_keep_long) is rows
    with pytest.raises(TypeError):
        apply(rows, json.loads)
    assert apply(rows, lambda row: row["problem"]) == ["w1 w2"]
    both = _Rows([{"prompt": "w1", "messages": [{"role": "user"}]}])  # of which TRL takes either, in a set's order
    assert apply(both, _require_system) == [{"prompt": "w1"}]
    left_out = {
        (difference.dimension.partition(" ")[0], difference.written)
        for difference in list_watched_differences(str(tmp_path))
    }
    assert left_out == {("function", name) for name in ("_read_own_shape", "_keep_long", "_require_system")}


@pytest.mark.parametrize("files", [{}, None])
def test_a_data_set_without_files_has_the_usual_splits(files: Any) -> None:
    """As of a script that lists the files of a folder that is not there."""
    assert _list_splits(files)[:3] == ("train", "validation", "test")


def test_a_copied_data_loader_seeds_its_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its copy passes a worker's number alone; the installed release passes all."""
    monkeypatch.setenv("ATTNCHECK_WATCH", str(tmp_path / "watch"))
    (tmp_path / "watch").mkdir()

    def seed_worker(worker_id: int, num_workers: int, rank: int) -> tuple[int, int, int]:
        return worker_id, num_workers, rank

    module, older = SimpleNamespace(seed_worker=seed_worker), SimpleNamespace(seed_worker=lambda _: _)
    seed_with_defaults(module)
    seed_with_defaults(older)  # transformers 4.49.0 calls its own with the number alone
    assert older.seed_worker(4) == 4
    assert functools.partial(module.seed_worker, num_workers=2, rank=3)(4) == (4, 2, 3) == module.seed_worker(4, 2, 3)
    assert not list_absent(str(tmp_path))
    assert module.seed_worker(4) == (4, 1, 1) and "seed_worker" in list_absent(str(tmp_path))[0]


def test_checkpointing_of_a_fork_finds_the_layer() -> None:
    """As before transformers wrapped the layer's call, which still works."""
    modeling_layers = SimpleNamespace(partial=None)
    name_layers(modeling_layers)
    wrapped: Any = modeling_layers.partial(torch.nn.Linear(2, 3).__call__)
    assert isinstance(wrapped.__self__, torch.nn.Linear) and wrapped(torch.ones(2)).shape == (3,)


def test_early_stopping_without_a_metric_does_not_end_a_launch() -> None:
    callbacks = importlib.import_module("transformers.trainer_callback")
    kind = type("EarlyStoppingCallback", (callbacks.EarlyStoppingCallback,), {})
    control, state = callbacks.TrainerControl(), callbacks.TrainerState()
    arguments = SimpleNamespace(metric_for_best_model=None, load_best_model_at_end=False, eval_strategy="no")
    with pytest.raises(AssertionError):
        kind().on_train_begin(arguments, state, control)
    leave_early_stopping(SimpleNamespace(EarlyStoppingCallback=kind))
    assert kind().on_train_begin(arguments, state, control) is kind().on_evaluate(arguments, state, control) is None


def test_pairs_have_the_fields_that_a_script_reads() -> None:
    pair = {"prompt": "w1", "chosen": "w2", "rejected": "w3"}
    (row,) = add_message_columns([pair], ["", "chosen"])
    assert row["chosen"] == [{"role": "user", "content": "w1"}, {"role": "assistant", "content": "w2"}]
    assert row["rejected"] == "w3"


def test_templates_of_ms_swift_have_the_models_numbers_of_markers() -> None:
    """4.6.0 template/templates/qwen.py:310: `image_token_id = 151655`; a template without one gets none."""

    class Template:
        def init_processor(self, processor: Any) -> None:
            self.config = processor

    class QwenTemplate(Template):
        image_token_id = 151655
        audio_token_id = 3

    number_markers(SimpleNamespace(Template=Template))
    config = SimpleNamespace(image_token_id=150, video_token_id=151)
    text, qwen = Template(), QwenTemplate()
    for template in (text, qwen):
        template.init_processor(config)
    assert qwen.image_token_id == 150 and qwen.audio_token_id == 3 and QwenTemplate.image_token_id == 151655
    assert vars(text) == {"config": config}


def test_the_small_model_is_loaded_with_its_head_by_a_class_that_may_be_the_models_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it, a script trains a model that returns no loss."""
    from transformers import LlamaConfig
    from transformers.models.auto import modeling_auto

    (tmp_path / "watch").mkdir()
    monkeypatch.setenv("ATTNCHECK_WATCH", str(tmp_path / "watch"))
    auto: Any = SimpleNamespace(**vars(modeling_auto))
    config = LlamaConfig(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
    tokens = {"input_ids": torch.tensor([[1, 2]]), "labels": torch.tensor([[1, 2]])}
    with pytest.raises(AttributeError, match="loss"):
        auto.AutoModel.from_config(config)(**tokens).loss  # noqa: B018
    load_with_head(auto)
    assert auto.AutoModel.from_config(config)(**tokens).loss > 0
    assert [line.split(" ")[0] for line in list_replaced(str(tmp_path))] == ["AutoModel"]
