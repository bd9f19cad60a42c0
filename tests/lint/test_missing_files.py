"""Configuration files that a command names and that are not where it runs, or are no JSON."""

from __future__ import annotations

from pathlib import Path

import pytest

from attncheck.lint import run
from attncheck.lint.context import Request
from attncheck.lint.inputs import make_file_reader
from attncheck.lint.sources import read_source
from tests import snapshots as s
from tests.lint.launches import read_model
from tests.lint.programs.trees import write_tree

TRAIN = """
from transformers import HfArgumentParser
from trl import ModelConfig, SFTConfig, SFTTrainer

args, model = HfArgumentParser((SFTConfig, ModelConfig)).parse_args_into_dataclasses()
SFTTrainer(model=model.model_name_or_path, args=args).train()
"""
FILES = {"src/train.py": TRAIN, "ds/zero.json": "{}", "ds/zero.yaml": "distributed_type: DEEPSPEED\n", ".git/HEAD": ""}
FILES["ds/stage.json"] = '{"zero_optimization": {"stage": 3}}'
FILES |= {
    f"ds/{name}.yaml": f"{FILES['ds/zero.yaml']}deepspeed_config:\n  deepspeed_config_file: ds/{name}.json\n"
    for name in ("stage", "lost")
}
OPTIONS = "src/train.py --model_name_or_path m --output_dir o"


@pytest.mark.parametrize(
    ("text", "severities"),
    [
        (f"accelerate launch --config_file conf/fsdp.yaml {OPTIONS}", ["error"]),
        (f"accelerate launch --config_file ds/zero.yaml {OPTIONS}", []),
        (f"accelerate launch --config_file /data/fsdp.yaml {OPTIONS}", []),
        (f"accelerate launch --config_file $CONFIG/fsdp.yaml {OPTIONS}", []),
        (f"envsubst < a > conf/fsdp.yaml\naccelerate launch --config_file conf/fsdp.yaml {OPTIONS}", []),
        (f"accelerate launch --config_file local/fsdp.yaml {OPTIONS}", []),  # git ignores it
        (f"accelerate launch --config_file third/fsdp.yaml {OPTIONS}", []),  # a submodule
        (f"cd $WORK\naccelerate launch --config_file conf/fsdp.yaml {OPTIONS}", []),
        (f"docker run image accelerate launch --config_file conf/fsdp.yaml {OPTIONS}", []),
        (f"accelerate launch --config_file conf/fsdp.yaml {OPTIONS.replace('src/', '')}", []),  # found in no folder
        (f"cd src\naccelerate launch --config_file ds/zero.yaml {OPTIONS.replace('src/', '')}", ["error"]),
        (  # a path from the folder in which the script starts
            f'cd src\ntorchrun {OPTIONS.replace("src/", "")} --deepspeed "$(pwd)/ds/zero.json"',
            [],
        ),
        (f"accelerate launch --config_file ds/lost.yaml {OPTIONS}", ["error"]),
        (f"accelerate launch --config_file ds/stage.yaml {OPTIONS}", []),
        (f"accelerate launch --config_file ds/stage.json {OPTIONS}", ["error"]),
        (f"accelerate launch --deepspeed_config_file ds/stage.json {OPTIONS}", ["warning"]),
        (f"accelerate launch $MORE --deepspeed_config_file ds/stage.json {OPTIONS}", []),
        (f"accelerate launch --use_deepspeed --deepspeed_config_file ds/stage.json {OPTIONS}", []),
        (f"accelerate launch --config_file ds/zero.yaml --deepspeed_config_file ds/stage.json {OPTIONS}", []),
        (f"torchrun --nproc_per_node 8 {OPTIONS} --deepspeed ds/zero.json", []),
        (f"torchrun --nproc_per_node 8 {OPTIONS} --deepspeed ds/zero1.json", ["error"]),
        (f"torchrun --nproc_per_node 8 {OPTIONS} --deepspeed ds/zero.yaml", ["error"]),
    ],
)
def test_a_file_that_is_not_where_its_program_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, severities: list[str]
) -> None:
    write_tree(tmp_path, {**FILES, ".gitignore": "/local/\n", "run.sh": text + "\n"})
    (tmp_path / "third").mkdir()
    monkeypatch.chdir(tmp_path)
    source = read_source("run.sh")
    snapshot = s.with_package(s.h200(), "trl", "1.16.0")
    report = run.run(snapshot, Request((source,)), read_model, make_file_reader((source,)))
    texts = ("does not exist", "not JSON", "a DeepSpeed file, not one of", "accelerate ignores it")
    found = [item for item in report.findings if any(text in item.message for text in texts)]
    assert [item.severity for item in found] == severities
    assert all(item.code == ("ATN441" if item.severity == "error" else "ATN443") for item in found)


@pytest.mark.parametrize(
    ("path", "function", "count"),
    [
        ("examples/own", "search.generate", 1),
        ('/root/Megatron-LM:"$(dirname "$0")"/examples/own', "search.generate", 1),
        ("examples/search", "search.generate", 0),
        ("examples/own:$OTHER", "search.generate", 0),
        ("examples/own", "examples.search.search.generate", 0),
        ("examples/own", "installed.generate", 0),
    ],
)
def test_a_function_of_a_module_that_is_not_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, function: str, count: int
) -> None:
    options = "--hf-checkpoint m --rollout-batch-size 8 --n-samples-per-prompt 8 --advantage-estimator grpo --colocate"
    text = f"PYTHONPATH={path} python train.py {options} --custom-rm-path {function}\n"
    files = {"examples/search/search.py": "def generate(): pass\n", "train.py": "import slime\n", ".git/HEAD": ""}
    write_tree(tmp_path, {**files, "run.sh": text})
    monkeypatch.chdir(tmp_path)
    source = read_source("run.sh")
    report = run.run(s.h200(), Request((source,)), read_model, make_file_reader((source,)))
    found = [item for item in report.findings if "ModuleNotFoundError" in item.message]
    assert [item.severity for item in found] == ["warning"] * count
