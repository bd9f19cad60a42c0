"""LLaMA-Factory: how launches are read, what is said of them, and the corrected ones before the real parser."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from attncheck.core.facts import Known
from attncheck.core.job import Job
from attncheck.core.launch import Source
from attncheck.core.snapshot import Snapshot
from attncheck.lint import launches
from attncheck.lint.frameworks.llamafactory import FRAMEWORK
from attncheck.lint.frameworks.llamafactory.tables import parser
from tests import wheels
from tests.lint.frameworks.test_trl import corrected, launch, said
from tests.snapshots import h200, h200x2, model, package, without

LAUNCHES = Path(__file__).parents[2] / "data" / "launch" / "llamafactory"
HEAD = "model_name_or_path: a/b\nstage: sft\ndo_train: true\nfinetuning_type: full\n"


def here(version: str = "5.5.4") -> Snapshot:
    """One H200 with flash-attn and a transformers that LLaMA-Factory 0.9.5 takes."""
    return package(h200(), "transformers", version)


def read(text: str, version: str = "0.9.5", snapshot: Snapshot | None = None) -> Job:
    """Return the job of a file that begins with `HEAD`."""
    return FRAMEWORK.read(launch(HEAD + text, name="a.yaml"), version, snapshot or here())


def test_recognised() -> None:
    assert FRAMEWORK.trainer(launch(HEAD, name="a.yaml")) == "sft"
    assert FRAMEWORK.trainer(launch("llamafactory-cli train x.yaml stage=dpo")) == "dpo"
    assert FRAMEWORK.trainer(launch("torchrun src/train.py --stage pt --do_train")) == "pt"
    for other in ("llamafactory-cli chat x.yaml", "python train.py --output_dir o --stage_3 4"):
        assert not FRAMEWORK.trainer(launch(other))
    assert not FRAMEWORK.trainer(launch("base_model: a/b\nflash_attn: fa2\ntemplate: x\n", name="a.yaml"))


def test_attention() -> None:
    assert read("flash_attn: fa2").plan.attn_implementation == "flash_attention_2"
    assert read("flash_attn: disabled").plan.attn_implementation == "eager"
    assert read("").plan.attn_implementation == "" and not read("").problems
    assert said(read("flash_attn: fa3")) == [("refuses", "attn_implementation")]
    assert said(read("flash_attn: fa3", "0.9.3")) == [("refuses", "flash_attn")], "no choice of that release"
    missing = read("flash_attn: fa2", snapshot=without(here(), "flash-attn"))
    assert missing.plan.attn_implementation == "" and [each.consequence for each in missing.problems] == ["replaces"]
    gemma = model(without(here(), "flash-attn"), model_type="gemma2")
    assert read("", snapshot=gemma).plan.attn_implementation == "eager"
    assert read("", snapshot=model(here(), model_type="gemma2")).plan.attn_implementation == "flash_attention_2"


def test_gpt_oss() -> None:
    oss = model(here(), model_type="gpt_oss")
    assert [each.consequence for each in read("flash_attn: fa3", snapshot=oss).problems] == ["refuses"]
    old = package(oss, "transformers", "4.57.1")
    assert not read("", snapshot=old).problems
    assert read("", snapshot=old).plan.attn_implementation == "kernels-community/vllm-flash-attn3"
    assert [each.consequence for each in read("", snapshot=package(oss, "transformers", "4.55.4")).problems] == [
        "refuses"
    ]


def test_packing() -> None:
    plain = read("packing: true\nflash_attn: sdpa")
    assert said(plain) == [("wrong", "neat_packing")] and plain.plan.packing == "mask_2d"
    alone = read("packing: true\nflash_attn: fa2\nper_device_train_batch_size: 1")
    assert not said(alone) and alone.plan.packing == "position_ids", "flash attention minds the positions of one row"
    assert said(read("packing: true\nflash_attn: fa2\nper_device_train_batch_size: 2")) == [("wrong", "neat_packing")]
    neat = read("neat_packing: true\nflash_attn: fa2\nper_device_train_batch_size: 1")
    assert not said(neat) and neat.plan.packing == "position_ids" and neat.plan.max_length == 2048
    dense = read("neat_packing: true\nper_device_train_batch_size: 1")
    assert dense.plan.packing == "mask_4d" and [each.mild for each in dense.problems] == [True]
    rows = read("neat_packing: true\nflash_attn: fa2\nper_device_train_batch_size: 4\ngradient_accumulation_steps: 2")
    assert rows.problems[0].sets == {"per_device_train_batch_size": "1", "gradient_accumulation_steps": "8"}
    text = HEAD.replace("sft", "dpo") + "neat_packing: true\n"
    dpo = FRAMEWORK.read(launch(text, name="a.yaml"), "0.9.5", here())
    assert said(dpo) == [("refuses", "neat_packing")] and dpo.plan.packing == "padding"
    pretraining = FRAMEWORK.read(launch(HEAD.replace("sft", "pt"), name="a.yaml"), "0.9.5", here())
    assert pretraining.plan.packing == "mask_2d" and pretraining.problems[0].mild


def test_neat_packing_by_version() -> None:
    text = "neat_packing: true\nflash_attn: fa2\nper_device_train_batch_size: 1"
    assert said(read(text, "0.9.4", here("4.53.3")))[0][0] == "refuses"
    assert said(read(text, "0.9.3", here("4.53.3")))[0][0] == "wrong"
    assert not said(read(text, "0.9.3", here("4.52.4"))) and not said(read(text, "0.9.4", here("4.52.4")))
    refused = model(here(), model_type="gemma4")
    assert said(read(text, snapshot=refused)) == [("refuses", "neat_packing,packing")]


def test_recurrent_layers() -> None:
    hybrid = model(here(), model_type="qwen3_5", layer_types=("linear_attention", "full_attention"))
    neat = "neat_packing: true\nper_device_train_batch_size: 1\nflash_attn: "
    assert ("wrong", "packing") in said(read(neat + "sdpa", snapshot=hybrid))
    assert [each.consequence for each in read(neat + "fa2", snapshot=hybrid).problems] == ["refuses"]
    assert not said(read(neat + "fa2", snapshot=package(hybrid, "flash-linear-attention", "0.4.1")))
    next_ = model(here(), model_type="qwen3_next", layer_types=("linear_attention",))
    assert ("wrong", "packing") in said(read(neat + "fa2", snapshot=next_)) and not said(read("", snapshot=next_))


def test_the_rest() -> None:
    assert said(read("enable_liger_kernel: true", snapshot=model(here(), model_type="deepseek_v3"))) == [
        ("ignores", "liger")
    ]
    assert not said(read("enable_liger_kernel: true", snapshot=model(here(), model_type="qwen3")))
    assert said(read("pure_bf16: true\ndeepspeed: ds_z3_config.json")) == [("refuses", "pure_bf16,bf16")]
    assert not said(read("pure_bf16: true\ndeepspeed: ds_z2_config.json"))
    idle = FRAMEWORK.read(launch(HEAD.replace("do_train: true\n", ""), name="a.yaml"), "0.9.5", here())
    assert said(idle) == [("no_step", "do_train")]
    plans = {text: read(text).plan.precision for text in ("pure_bf16: true", "bf16: true", "fp16: true", "")}
    assert list(plans.values()) == ["bf16", "autocast", "fp16", "fp32"]
    assert read("disable_gradient_checkpointing: true").plan.gradient_checkpointing is False


def test_processes() -> None:
    files = {"a.yaml": HEAD + "deepspeed: ds_z2_config.json\n"}
    command = "llamafactory-cli train a.yaml"
    one = FRAMEWORK.read(launch(command, files), "0.9.5", here())
    assert [each.consequence for each in one.problems] == ["refuses"] and one.world_size == Known(1)
    two = package(h200x2(), "transformers", "5.5.4")
    assert not FRAMEWORK.read(launch("FORCE_TORCHRUN=1 " + command, files), "0.9.5", here()).problems
    assert FRAMEWORK.read(launch(command, files), "0.9.5", two).world_size == Known(2)
    many = FRAMEWORK.read(launch("FORCE_TORCHRUN=1 NNODES=2 NPROC_PER_NODE=4 " + command, files), "0.9.5", two)
    assert many.world_size == Known(8) and many.nodes == 2
    script = FRAMEWORK.read(launch("python src/train.py --stage sft --do_train --dataset d"), "0.9.5", two)
    assert [each.consequence for each in script.problems] == ["refuses"]


def test_written() -> None:
    files = {"a.yaml": HEAD + "flash_attn: auto  # ours\nimage_dir: x\n"}
    start = launch("llamafactory-cli train a.yaml packing=true cutoff_len=9", files)
    sets = {
        "attn_implementation": "flash_attention_2",
        "packing": "off",
        "max_length": "10",
        "gradient_checkpointing": "off",
    }
    job = FRAMEWORK.read(start, "0.9.5", here())
    edits = FRAMEWORK.write(start, job, sets)
    assert {edit.source for edit in edits} == {"run.sh", "a.yaml"}
    assert corrected(FRAMEWORK, start, "0.9.5", sets, here()) == (
        HEAD + "flash_attn: fa2  # ours\nmedia_dir: x\ndisable_gradient_checkpointing: true\n"
    )
    flags = launch("torchrun src/train.py --stage sft --do_train --packing --bf16 --evaluation_strategy no")
    text = corrected(FRAMEWORK, flags, "0.9.5", {"packing": "true", "precision": "fp16"}, here())
    assert text == "torchrun src/train.py --stage sft --do_train --packing false --bf16 false --eval_strategy no --fp16"


@pytest.mark.parametrize("path", sorted(LAUNCHES.iterdir()), ids=lambda path: str(path.name))
def test_the_corpus_is_read(path: Path) -> None:
    def beside(name: str) -> Source | None:
        return launches.source_of(str(LAUNCHES / name)) if (LAUNCHES / name).exists() else None

    [start] = launches.launches(launches.source_of(str(path)), beside)
    assert FRAMEWORK.trainer(start) and FRAMEWORK.model(start)
    for version in ("0.9.0", "0.9.5"):
        job = FRAMEWORK.read(start, version, without(h200(), "transformers"))
        text = corrected(FRAMEWORK, start, version, {}, without(h200(), "transformers"))
        source = start.file or start.source
        again = launches.launches(Source(source.name, text, source.kind), beside)[0]
        left = FRAMEWORK.read(again, version, without(h200(), "transformers")).unknown_settings
        assert not left and job.plan.max_length in (1024, 2048)


# The real dataclasses out of the wheel and transformers' own parser, without what else LLaMA-Factory imports.
PARSES = """
import importlib, json, sys, types
for name in ("llamafactory", "llamafactory.hparams", "llamafactory.extras"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [sys.argv[1] + "/" + name.replace(".", "/")]
class Stub(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *words, **more: False
from transformers import HfArgumentParser
import transformers.training_args_seq2seq
for name in ("omegaconf", "peft", "peft.utils", "llamafactory.extras.misc", "llamafactory.extras.packages"):
    sys.modules[name] = Stub(name)
taken = {"model_args": "ModelArguments", "data_args": "DataArguments", "training_args": "TrainingArguments",
         "finetuning_args": "FinetuningArguments", "generating_args": "GeneratingArguments"}
parser = HfArgumentParser([getattr(importlib.import_module("llamafactory.hparams." + m), c) for m, c in taken.items()])
found = []
for words in json.load(sys.stdin):
    try:
        found.append(parser.parse_known_args(words)[1])
    except SystemExit:
        found.append(None)
json.dump({"found": found, "options": sorted(parser._option_string_actions)}, sys.stdout)
"""


def test_the_real_parser_agrees() -> None:
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    try:
        wheel = wheels.fetch("llamafactory", "0.9.5")
    except (subprocess.SubprocessError, OSError, IndexError):
        pytest.skip("the wheel of llamafactory cannot be had")
    now = here(transformers.__version__)
    texts = [path.read_text() for path in sorted(LAUNCHES.glob("*.sh")) if "--stage" in path.read_text()]
    texts += ["torchrun src/train.py --model_name_or_path a --stage sft --do_train --packing --bf16",
              "torchrun src/train.py --model_name_or_path a --stage sft --do_train --image_dir x --flash_attn fa9",
              "torchrun src/train.py --model_name_or_path a --stage sft --do_train --bf16"]  # fmt: skip
    before = [launch(text) for text in texts]
    after = []
    for start in before:
        job = FRAMEWORK.read(start, "0.9.5", now)
        sets = {name: value for each in job.problems if not each.mild for name, value in each.sets.items()}
        after.append(launch(corrected(FRAMEWORK, start, "0.9.5", sets, now)))
    fronts = [2 if each.words[0].text == "llamafactory-cli" else 1 for each in (*before, *after)]
    words = [[word.text for word in each.words[front:]] for each, front in zip((*before, *after), fronts)]
    words = [[*each, *([] if "--output_dir" in each else ["--output_dir", "o"])] for each in words]
    done = subprocess.run(
        [sys.executable, "-c", PARSES, str(wheel.path)], input=json.dumps(words), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["found"][len(before) :] == [[]] * len(after)
    assert [each == [] for each in told["found"][: len(before)]] == [False] * (len(before) - 1) + [True]
    options = set(parser("0.9.5", transformers.__version__).here)
    real = {each[2:] for each in told["options"] if "-" not in each[2:] and not each.startswith("--no_")}
    assert real - {"help", ""} == options
