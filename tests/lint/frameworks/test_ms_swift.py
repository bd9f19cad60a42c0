"""ms-swift's launches: read, judged and corrected; the corrected ones parsed with the fields of its own dataclasses."""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attncheck.core.facts import Known
from attncheck.core.job import Job
from attncheck.core.launch import Launch
from attncheck.lint.frameworks.ms_swift import FRAMEWORK
from attncheck.lint.names import table
from tests import snapshots, wheels
from tests.lint.framework_launches import CORPUS, corrected, launch, of_file, read, said, told
from tests.lint.tools.class_fields import read as read_archive
from tests.lint.tools.names_ms_swift import NEW, OLD, fields

COMMAND = "swift sft --model Qwen/Qwen2.5-7B --dataset a b --torch_dtype bfloat16 --max_length 2048"
FLASH = " --attn_impl flash_attn --packing true"
KV2: dict[str, Any] = {"num_heads": Known(16), "num_kv_heads": Known(2)}
QWEN3_5: dict[str, Any] = {"model_type": "qwen3_5_text", "layer_types": ("linear_attention",) * 3 + ("full_attention",)}
QWEN3_NEXT = {**QWEN3_5, "model_type": "qwen3_next"}


def job(more: str, version: str = "4.6.0", command: str = COMMAND, **model: Any) -> Job:
    started = launch(command + more, "command", {"c.yaml": "model: x\ntuner_type: lora\n"})
    return FRAMEWORK.read(started, version, snapshots.model(snapshots.h200(), **model))


def after(more: str, version: str, sets: dict[str, str], command: str = COMMAND, **model: Any) -> str:
    started = launch(command + more, "command")
    found = FRAMEWORK.read(started, version, snapshots.model(snapshots.h200(), **model))
    return corrected(started, FRAMEWORK.write(started, found, sets))["command line"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("swift sft --model x", "sft"),
        ("swift pt --model x", "pt"),
        ("swift rlhf --model x", "dpo"),
        ("swift rlhf --rlhf_type grpo --model x", "grpo"),
        ("torchrun --nproc_per_node 2 -m swift.cli.sft --model x", "sft"),
        ("python swift/cli/rlhf.py --rlhf_type kto", "kto"),
        ("megatron sft --model x", "megatron"),
        ("swift infer --model x", ""),
        ("swift export --model x", ""),
        ("trl sft --model x", ""),
    ],
)
def test_commands_are_recognised(text: str, expected: str) -> None:
    assert FRAMEWORK.trainer(launch(text, "command")) == expected


def test_files_are_recognised_by_their_keys() -> None:
    assert FRAMEWORK.trainer(launch("model: x\ntuner_type: lora\n", "yaml")) == "sft"
    assert FRAMEWORK.trainer(launch("model: x\nrlhf_type: kto\n", "yaml")) == "kto"
    assert FRAMEWORK.trainer(launch("model: x\ntuner_type: lora\nmicro_batch_size: 1\n", "yaml")) == "megatron"
    assert FRAMEWORK.trainer(launch("model: x\ndata: y\n", "yaml")) == ""


def test_megatron_is_recognised_and_not_judged() -> None:
    found = job("", command="megatron sft --model x --attention_backend flash --packing true")
    assert (found.trainer, found.unknown_settings, found.problems) == ("megatron", (), ())
    assert "not read" in found.remarks[0]
    started = launch("megatron sft --model x", "command")
    assert FRAMEWORK.write(started, found, {"packing": "off"}) == ()


def test_what_a_plan_is() -> None:
    plan = job(FLASH + " --per_device_train_batch_size 2 --use_liger_kernel true").plan
    assert (plan.attn_implementation, plan.packing, plan.precision) == ("flash_attention_2", "position_ids", "bf16")
    assert (plan.batch, plan.max_length, plan.liger, plan.gradient_checkpointing) == (1, 4096, True, True)
    assert plan.accumulation == 8, "16 rows to a step where none is written"
    padded = job(" --padding_side left --gradient_checkpointing false").plan
    assert (padded.packing, padded.padding_side, padded.gradient_checkpointing) == ("padding", "left", False)
    assert job("", command=COMMAND.replace("bfloat16", "float32")).plan.precision == "fp16"
    assert job(" --bf16 true", command=COMMAND.replace("bfloat16", "float32")).plan.precision == "autocast"
    assert job(FLASH + " --packing_length 8192").plan.max_length == 8192
    assert job(" --rlhf_type gkd", command=COMMAND.replace("sft", "rlhf")).plan.padding_side == "left"


def test_sequence_parallelism_is_ulysses_over_what_divides_and_a_ring_over_the_rest() -> None:
    whole = job(FLASH + " --sequence_parallel_size 4")  # 4 key/value heads
    assert (whole.scheme, whole.hooked, whole.plan.ring_size) == ("ulysses", ("flash_attention_2", "sdpa"), 4)
    derived = job(FLASH + " --sequence_parallel_size 4", **KV2)
    assert (derived.scheme, derived.hooked) == ("ring", ("flash_attention_2",))
    assert job(FLASH + " --sequence_parallel_size 4", "3.8.3", **KV2).scheme == "ulysses"
    old = launch("SEQUENCE_PARALLEL_IMPL=ring_attention " + COMMAND + FLASH + " --sequence_parallel_size 4", "command")
    ring = read(FRAMEWORK, old, "3.8.3")
    assert (ring.scheme, ring.plan.heads_k_stride) == ("llama3", 2), "RING_HEAD_STRIDE is 2 where it is not set"
    assert job(FLASH).scheme == ""


def test_processes_are_those_of_torchrun_or_of_the_variables() -> None:
    started = launch("NPROC_PER_NODE=4 NNODES=2 " + COMMAND, "command")
    assert read(FRAMEWORK, started, "4.6.0").world_size == Known(8)
    assert job("").world_size == Known(1)
    torchrun = launch("torchrun --nproc_per_node 2 -m swift.cli.sft --model x", "command")
    assert read(FRAMEWORK, torchrun, "4.6.0").world_size == Known(2)
    in_file = launch("model: x\ntuner_type: lora\nENV:\n  NPROC_PER_NODE: 2\n", "yaml")
    assert read(FRAMEWORK, in_file, "4.6.0").world_size == Known(2)


RLHF = COMMAND.replace("swift sft", "swift rlhf")
FIRES: list[tuple[str, str, str, str, str, str, dict[str, Any]]] = [
    # version, command, settings, consequence, words of the message, settings under which it is silent, the model
    ("4.6.0", COMMAND, " --packing true", "refuses", "attn_impl not written", FLASH, {}),
    (
        "4.6.0",
        COMMAND,
        " --padding_free true --attn_impl sdpa",
        "refuses",
        "padding_free with attn_impl sdpa",
        FLASH,
        {},
    ),
    ("4.1.3", COMMAND, " --packing true --attn_impl flash_attention_4", "refuses", "flash_attention_4", FLASH, {}),
    ("4.6.0", RLHF, " --rlhf_type rm" + FLASH, "refuses", "rm with packing", " --rlhf_type kto" + FLASH, {}),
    ("3.8.3", RLHF, " --rlhf_type kto" + FLASH, "refuses", "kto with packing", " --rlhf_type gkd" + FLASH, {}),
    (
        *("4.6.0", RLHF, " --rlhf_type kto --sequence_parallel_size 2", "refuses", "kto with sequence_parallel_size"),
        *(" --rlhf_type dpo --sequence_parallel_size 2", {}),
    ),
    (
        *("4.6.0", RLHF, " --rlhf_type grpo --use_liger_kernel true" + FLASH, "refuses", "Liger's loss and packing"),
        *(" --rlhf_type grpo" + FLASH, {}),
    ),
    (
        *("4.6.0", COMMAND, " --attn_impl flash_attn --sequence_parallel_size 4", "refuses", "asks for padding_free"),
        *(FLASH + " --sequence_parallel_size 4", KV2),
    ),
    (
        *("4.6.0", COMMAND, " --sequence_parallel_size 4" + FLASH, "refuses", "as a number: TypeError"),
        *(" --sequence_parallel_size 2" + FLASH, {**KV2, "sliding_window": Known(4096)}),
    ),
    (
        *("4.6.0", COMMAND, " --sequence_parallel_size 4" + FLASH, "refuses", "Qwen3.5's recurrent layers refuse"),
        *(" --sequence_parallel_size 2" + FLASH, {**KV2, **QWEN3_5}),
    ),
    (
        *("3.8.3", COMMAND, " --sequence_parallel_size 8", "refuses", "does not divide 28 heads"),
        *(" --sequence_parallel_size 4", {}),
    ),
    (
        *("4.6.0", COMMAND, " --sequence_parallel_size 2 --padding_side left", "refuses", "padding_side left"),
        *(" --padding_side left", {}),
    ),
    ("4.6.0", COMMAND, FLASH + " --lazy_tokenize true", "refuses", "lazy_tokenize", FLASH, {}),
    ("4.6.0", COMMAND, FLASH, "wrong", "packing with qwen3_next", " --attn_impl flash_attn", QWEN3_NEXT),
    ("4.6.0", COMMAND, " --sequence_parallel_size 2", "wrong", "2 with qwen3_next", "", QWEN3_NEXT),
    ("4.1.3", COMMAND, FLASH, "wrong", "packing with qwen3_5_text", "", QWEN3_5),
]


@pytest.mark.parametrize(("version", "command", "more", "consequence", "words", "silent", "model"), FIRES)
def test_objections(
    version: str, command: str, more: str, consequence: str, words: str, silent: str, model: dict[str, Any]
) -> None:
    found = said(job(more, version, command, **model), consequence, words)
    assert found is not None, job(more, version, command, **model).problems
    assert found.evidence[0].startswith("ms-swift ") and found.location.source == "command line" and found.sets
    assert said(job(silent, version, command, **model), consequence, words) is None
    mended = job("", version, after(more, version, dict(found.sets), command, **model), **model)
    assert said(mended, consequence, words) is None, "its own settings do not mend it"


def test_sdpa_has_no_ring() -> None:
    """Only where packing does not ask for flash before: the model in a release that packs by another name."""
    started = launch(COMMAND + " --attn_impl sdpa --padding_free true --sequence_parallel_size 4", "command")
    found = FRAMEWORK.read(started, "4.6.0", snapshots.model(snapshots.h200(), **KV2))
    assert said(found, "refuses", "which sdpa does not have") is not None
    whole = FRAMEWORK.read(started, "4.6.0", snapshots.model(snapshots.h200()))
    assert said(whole, "refuses", "which sdpa does not have") is None, "four key/value heads: Ulysses alone"


def test_qwen3_5_asks_for_flash_linear_attention() -> None:
    with_it = snapshots.package(snapshots.h200(), "flash-linear-attention", "0.5.2")
    started = launch(COMMAND + FLASH, "command")
    for snapshot, silent in ((snapshots.h200(), False), (with_it, True)):
        found = FRAMEWORK.read(started, "4.6.0", snapshots.model(snapshot, **QWEN3_5))
        assert (said(found, "refuses", "flash-linear-attention is not installed") is None) == silent
        assert said(found, "wrong") is None


def test_a_configuration_file_is_named_as_the_release_wants() -> None:
    for version, silent in (("4.0.4", True), ("4.1.0", False), ("3.9.3", False)):
        found = job("", version, "swift sft --config c.yaml")
        assert (said(found, "refuses", "--config") is None) == silent, version
    assert said(job("", "4.6.0", "swift sft c.yaml"), "refuses", "--config") is None


def test_names_that_a_release_does_not_know() -> None:
    (renamed,) = job(" --train_type lora").unknown_settings
    assert (renamed.now, renamed.since) == (("--tuner_type",), "4.1.0")
    assert job(" --train_type lora", "4.0.4").unknown_settings == (), "still taken there"
    (old,) = job(" --tuner_type lora", "3.12.6").unknown_settings
    assert (old.now, old.since) == (("--train_type",), "4.0.0")
    (typo,) = job(" --atn_impl sdpa").unknown_settings
    assert (typo.now, typo.since, typo.near) == ((), "", "--attn_impl")
    assert job(" --full_determinism true --learning-rate 1e-5 --seq 2").unknown_settings == (), (
        "transformers' own; a prefix"
    )
    gone = {each.name: each.now for each in job(" --gpu_memory_utilization 0.5", "4.6.0", RLHF).unknown_settings}
    assert gone == {"--gpu_memory_utilization": ("--vllm_gpu_memory_utilization",)}


@pytest.mark.parametrize(
    ("version", "more", "sets", "expected"),
    [
        ("4.6.0", "", {"attn_implementation": "flash_attention_2"}, " --attn_impl flash_attention_2"),
        ("4.6.0", " --attn_impl sdpa", {"attn_implementation": "flash_attention_2"}, " --attn_impl flash_attention_2"),
        ("4.6.0", " --packing true --packing_length 9", {"packing": "off"}, " --packing false"),
        ("4.6.0", " --padding_free true", {"packing": "off"}, " --padding_free false"),
        ("4.6.0", " --sequence_parallel_size 8", {"ring_size": "2"}, " --sequence_parallel_size 2"),
        (
            "4.6.0",
            " --fp16 true",
            {"liger": "on", "batch": "2"},
            " --fp16 true --use_liger_kernel true --per_device_train_batch_size 2",
        ),
        ("4.6.0", " --train_type full --seed 1", {}, " --tuner_type full --seed 1"),
        ("3.12.6", " --tuner_type full", {}, " --train_type full"),
        ("4.6.0", "", {"global_batch": "32", "heads_k_stride": "2"}, " --gradient_accumulation_steps 32"),
        ("4.6.0", " --padding_side left", {"padding_side": "\0drop"}, ""),
    ],
)
def test_settings_are_written_in_the_names_of_the_release(
    version: str, more: str, sets: dict[str, str], expected: str
) -> None:
    assert after(more, version, sets) == COMMAND + expected


def test_a_script_keeps_its_layout_and_comments() -> None:
    text = "# first\nNPROC_PER_NODE=2 \\\nswift sft \\\n    --model x \\\n    --train_type full \\\n"
    text += "    --packing true  # rows\n"
    started = launch(text, "shell")
    found = read(FRAMEWORK, started, "4.6.0")
    edited = corrected(started, FRAMEWORK.write(started, found, {"packing": "off"}))["run.sh"]
    assert edited == text.replace("--train_type", "--tuner_type").replace("packing true", "packing false")


def test_a_file_keeps_its_layout_and_comments() -> None:
    text = "model: x  # model\ntrain_type: lora  # kind\nattn_impl: sdpa\ndataset:\n  - a\n"
    started = launch(text, "yaml")
    found = read(FRAMEWORK, started, "4.6.0")
    edited = corrected(started, FRAMEWORK.write(started, found, {"attn_implementation": "eager"}))["config.yaml"]
    assert edited == text.replace("train_type", "tuner_type").replace("sdpa", "eager")


FILES = sorted((CORPUS / "ms_swift").glob("*"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_corpus_is_known_to_its_own_release(path: Path) -> None:
    framework, version = told(path)
    found = read(FRAMEWORK, of_file(path), version)
    assert framework == "ms-swift" and found.trainer
    assert [each.name for each in found.unknown_settings] == []


class Parser(argparse.ArgumentParser):
    """Takes the options that HfArgumentParser makes of a dataclass's fields."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(add_help=False)
        for name in names:
            self.add_argument(f"--{name}", *{f"--{name.replace('_', '-')}"} - {f"--{name}"}, nargs="*", dest=name)

    def left(self, started: Launch) -> list[str]:
        """Return what ms-swift would raise for as remaining_argv; a file's keys are options (cli/main.py:61)."""
        words = [word.text for word in started.words[2:]]
        words += [word for entry in started.entries for word in (f"--{entry.name.split('.')[0]}", "x")]
        return [word for word in self.parse_known_args(words)[1] if word.startswith("--")]


def own_parser(version: str, kind: str) -> Parser:
    """Return the parser of a release, out of its wheel, with the training arguments of transformers as installed."""
    spec = importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None:
        pytest.skip("no transformers")
    try:
        wheel = wheels.fetch("ms-swift", version)
    except (subprocess.SubprocessError, OSError, IndexError):
        pytest.skip("no wheel to be had")
    from tests.lint.tools.class_fields import Package

    folder = Path(spec.origin).parent
    texts = {
        f"transformers.{name}": (folder / f"{name}.py").read_text()
        for name in ("training_args", "training_args_seq2seq")
    }
    theirs = Package(texts).fields("transformers.training_args_seq2seq", "Seq2SeqTrainingArguments")
    assert len(theirs) > 90
    if version[0] == "3":  # it requires transformers<4.58, which has them still
        theirs |= dict.fromkeys(("warmup_ratio", "logging_dir"), ("float", 0.0))
    own = fields(read_archive(wheel.path, "swift"), (NEW if version[0] == "4" else OLD)[kind])
    return Parser([*theirs, *(name for name in own if name not in theirs)])


@pytest.mark.parametrize("version", ["3.12.6", "4.6.0"])
def test_ms_swifts_own_fields_agree(version: str) -> None:
    """A command is left with nothing over after correction; before, with what we say is not known."""
    parsers = {kind: own_parser(version, kind) for kind in ("sft", "rlhf")}
    seen = 0
    for path in FILES:
        started = of_file(path)
        found = read(FRAMEWORK, started, version)
        if found.trainer == "megatron":
            continue
        parser = parsers["sft" if found.trainer in ("sft", "pt") else "rlhf"]
        before = {name.split("=")[0] for name in parser.left(started)}
        assert {f"--{each.name.lstrip('-')}" for each in found.unknown_settings} == before, path
        sets = {key: value for each in found.problems for key, value in each.sets.items()}
        text = corrected(started, FRAMEWORK.write(started, found, sets))[started.source.name]
        again = replace(started.source, text=text)
        left = parser.left(launch(again.text, again.kind))
        assert set(left) == {f"--{each.name.lstrip('-')}" for each in found.unknown_settings if not each.now}, path
        seen += bool(found.unknown_settings)
    assert seen > 2, "no file of another release"


@pytest.mark.parametrize("version", ["3.12.6", "4.6.0"])
def test_the_table_of_names_says_what_the_wheel_says(version: str) -> None:
    try:
        wheel = wheels.fetch("ms-swift", version)
    except (subprocess.SubprocessError, OSError, IndexError):
        pytest.skip("no wheel to be had")
    own = fields(read_archive(wheel.path, "swift"), (NEW if version[0] == "4" else OLD)["sft"])
    order = table("ms_swift")["versions"]
    at = order.index(version)
    known = {
        name: span[2:]
        for name, spans in table("ms_swift")["names"].items()
        for span in spans
        if order.index(span[0]) <= at <= order.index(span[1])
    }
    assert known == own


@pytest.mark.parametrize(
    "text",
    [
        *("swift", "megatron", "swift sft", "swift sft --", "swift sft --model", "swift rlhf --rlhf_type"),
        *("swift sft --sequence_parallel_size x", "swift sft --sequence_parallel_size -3 --packing"),
        "NPROC_PER_NODE=$N swift sft --model $M --packing $P",
    ],
)
def test_strange_commands_give_an_answer(text: str) -> None:
    started = launch(text, "command")
    FRAMEWORK.trainer(started)
    found = read(FRAMEWORK, started, "4.6.0")
    FRAMEWORK.write(started, found, {"attn_implementation": "sdpa", "packing": "off", "ring_size": "1"})
