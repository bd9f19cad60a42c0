"""ms-swift's launches: read, judged and corrected; the corrected ones are parsed with its own dataclasses' fields."""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attncheck.core.facts import Absent, Known, Unreadable
from attncheck.core.job import Job
from attncheck.core.launch import Launch
from attncheck.lint import proof
from attncheck.lint.fields.releases import list_releases
from attncheck.lint.frameworks.ms_swift import FRAMEWORK
from attncheck.lint.names import load_table
from attncheck.lint.release import ChosenRelease
from tests import snapshots, wheels
from tests.lint.framework_launches import (
    CORPUS,
    apply_edits,
    find_problem,
    load_launch,
    parse_launch,
    read_corpus_header,
    read_job,
)
from tests.lint.frameworks.ranges import check_range
from tools.names.class_fields import read_package as read_archive
from tools.names.ms_swift import NEW_PATHS, OLD_PATHS, read_fields

COMMAND = "swift sft --model Qwen/Qwen2.5-7B --dataset a b --torch_dtype bfloat16 --max_length 2048"
TWO_GPUS = "CUDA_VISIBLE_DEVICES=0,1"
FLASH_PACKING = " --attn_impl flash_attn --packing true"
TWO_KV_HEADS: dict[str, Any] = {"num_heads": Known(16), "num_kv_heads": Known(2)}
QWEN3_5: dict[str, Any] = {"model_type": "qwen3_5_text", "layer_types": ("linear_attention",) * 3 + ("full_attention",)}
QWEN3_NEXT = {**QWEN3_5, "model_type": "qwen3_next"}


def read_command_job(more: str, version: str = "4.6.0", command: str = COMMAND, **model: Any) -> Job:
    launch = parse_launch(command + more, "command", {"c.yaml": "model: x\ntuner_type: lora\n"})
    return FRAMEWORK.read(launch, version, snapshots.with_model(snapshots.h200(), **model))


def rewrite_command(more: str, version: str, sets: dict[str, str], command: str = COMMAND, **model: Any) -> str:
    launch = parse_launch(command + more, "command")
    job = FRAMEWORK.read(launch, version, snapshots.with_model(snapshots.h200(), **model))
    return apply_edits(launch, FRAMEWORK.write(launch, job, sets))["command line"]


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
        ("python -m swift.cli.main rlhf --rlhf_type grpo --model x", "grpo"),
        ("python swift/cli/main.py sft --model x", "sft"),
        ("python -m swift.cli._megatron.main sft --model x", "megatron"),
        (
            "torchrun swift/cli/_megatron/sft.py --model x --num_layers 2 --micro_batch_size 1 --seq_length 9",
            "megatron",
        ),
        ("python -m other.cli.main sft --model x", ""),
        ("python -m swift.cli.main infer --model x", ""),
        ("swift infer --model x", ""),
        ("swift export --model x", ""),
        ("trl sft --model x", ""),
    ],
)
def test_commands_are_recognised(text: str, expected: str) -> None:
    assert FRAMEWORK.trainer(parse_launch(text, "command")) == expected


def test_files_are_recognised_by_their_keys() -> None:
    assert FRAMEWORK.trainer(parse_launch("model: x\ntuner_type: lora\n", "yaml")) == "sft"
    assert FRAMEWORK.trainer(parse_launch("model: x\nrlhf_type: kto\n", "yaml")) == "kto"
    assert FRAMEWORK.trainer(parse_launch("model: x\ntuner_type: lora\nmicro_batch_size: 1\n", "yaml")) == "megatron"
    assert FRAMEWORK.trainer(parse_launch("model: x\ndata: y\n", "yaml")) == ""


def test_megatron_is_recognised_and_not_judged() -> None:
    job = read_command_job("", command="megatron sft --model x --attention_backend flash --packing true")
    assert (job.trainer, job.unknown_settings, job.problems) == ("megatron", (), ())
    assert "only the sizes" in job.remarks[0]
    assert isinstance(job.world_size, Absent)
    launch = parse_launch("megatron sft --model x", "command")
    assert FRAMEWORK.write(launch, job, {"packing": "off"}) == ()


def test_what_a_plan_is() -> None:
    plan = read_command_job(FLASH_PACKING + " --per_device_train_batch_size 2 --use_liger_kernel true").plan
    assert (plan.attn_implementation, plan.packing, plan.precision) == ("flash_attention_2", "position_ids", "bf16")
    assert (plan.batch, plan.max_length, plan.liger, plan.gradient_checkpointing) == (1, 4096, True, True)
    assert plan.accumulation == 8, "16 rows to a step if none is written"
    padded = read_command_job(" --padding_side left --gradient_checkpointing false").plan
    assert (padded.packing, padded.padding_side, padded.gradient_checkpointing) == ("padding", "left", False)
    assert read_command_job("", command=COMMAND.replace("bfloat16", "float32")).plan.precision == "fp16"
    assert read_command_job(" --bf16 true", command=COMMAND.replace("bfloat16", "float32")).plan.precision == "autocast"
    assert read_command_job(FLASH_PACKING + " --packing_length 8192").plan.max_length == 8192
    assert read_command_job(" --rlhf_type gkd", command=COMMAND.replace("sft", "rlhf")).plan.padding_side == "left"


def test_sequence_parallelism_is_ulysses_over_what_divides_and_a_ring_over_the_rest() -> None:
    undivided = read_command_job(FLASH_PACKING + " --sequence_parallel_size 4")  # 4 key/value heads
    assert (undivided.scheme, undivided.hooked, undivided.plan.ring_size) == (
        "ulysses",
        ("flash_attention_2", "sdpa"),
        4,
    )
    derived = read_command_job(FLASH_PACKING + " --sequence_parallel_size 4", **TWO_KV_HEADS)
    assert (derived.scheme, derived.hooked) == ("ring", ("flash_attention_2",))
    assert read_command_job(FLASH_PACKING + " --sequence_parallel_size 4", "3.8.3", **TWO_KV_HEADS).scheme == "ulysses"
    old = parse_launch(
        "SEQUENCE_PARALLEL_IMPL=ring_attention " + COMMAND + FLASH_PACKING + " --sequence_parallel_size 4", "command"
    )
    ring = read_job(FRAMEWORK, old, "3.8.3")
    assert (ring.scheme, ring.plan.heads_k_stride) == ("llama3", 2), "RING_HEAD_STRIDE is 2 where it is not set"
    assert read_command_job(FLASH_PACKING).scheme == ""


def test_processes_are_those_of_torchrun_or_of_the_variables() -> None:
    launch = parse_launch("NPROC_PER_NODE=4 NNODES=2 " + COMMAND, "command")
    assert read_job(FRAMEWORK, launch, "4.6.0").world_size == Known(8)
    assert read_command_job("").world_size == Known(1)
    torchrun = parse_launch("torchrun --nproc_per_node 2 -m swift.cli.sft --model x", "command")
    assert read_job(FRAMEWORK, torchrun, "4.6.0").world_size == Known(2)
    no_number = parse_launch("NPROC_PER_NODE=² " + COMMAND, "command")
    assert isinstance(read_job(FRAMEWORK, no_number, "4.6.0").world_size, Unreadable)
    in_file = parse_launch("model: x\ntuner_type: lora\nENV:\n  NPROC_PER_NODE: 2\n", "yaml")
    assert read_job(FRAMEWORK, in_file, "4.6.0").world_size == Known(2)


RLHF = COMMAND.replace("swift sft", "swift rlhf")
PROBLEM_CASES: list[tuple[str, str, str, str, str, str, dict[str, Any]]] = [
    # version, command, settings, consequence, a fragment of the message, valid settings, the model
    ("4.6.0", COMMAND, " --packing true", "refuses", "attn_impl not written", FLASH_PACKING, {}),
    (
        "4.6.0",
        COMMAND,
        " --padding_free true --attn_impl sdpa",
        "refuses",
        "padding_free with attn_impl sdpa",
        FLASH_PACKING,
        {},
    ),
    (
        "4.1.3",
        COMMAND,
        " --packing true --attn_impl flash_attention_4",
        "refuses",
        "flash_attention_4",
        FLASH_PACKING,
        {},
    ),
    (
        "4.6.0",
        RLHF,
        " --rlhf_type rm" + FLASH_PACKING,
        "refuses",
        "rm with packing",
        " --rlhf_type kto" + FLASH_PACKING,
        {},
    ),
    (
        "3.8.3",
        RLHF,
        " --rlhf_type kto" + FLASH_PACKING,
        "refuses",
        "kto with packing",
        " --rlhf_type gkd" + FLASH_PACKING,
        {},
    ),
    (
        *("4.6.0", RLHF, " --rlhf_type kto --sequence_parallel_size 2", "refuses", "kto with sequence_parallel_size"),
        *(" --rlhf_type dpo --sequence_parallel_size 2", {}),
    ),
    (
        *(
            "4.6.0",
            RLHF,
            " --rlhf_type grpo --use_liger_kernel true" + FLASH_PACKING,
            "refuses",
            "Liger's loss and packing",
        ),
        *(" --rlhf_type grpo" + FLASH_PACKING, {}),
    ),
    (
        *("4.6.0", COMMAND, " --attn_impl flash_attn --sequence_parallel_size 4", "refuses", "requires padding_free"),
        *(FLASH_PACKING + " --sequence_parallel_size 4", TWO_KV_HEADS),
    ),
    (
        *("4.6.0", COMMAND, " --sequence_parallel_size 4" + FLASH_PACKING, "refuses", "as a number: TypeError"),
        *(" --sequence_parallel_size 2" + FLASH_PACKING, {**TWO_KV_HEADS, "sliding_window": Known(4096)}),
    ),
    (
        *(
            "4.6.0",
            COMMAND,
            " --sequence_parallel_size 4" + FLASH_PACKING,
            "refuses",
            "Qwen3.5's recurrent layers refuse",
        ),
        *(" --sequence_parallel_size 2" + FLASH_PACKING, {**TWO_KV_HEADS, **QWEN3_5}),
    ),
    (
        *("3.8.3", COMMAND, " --sequence_parallel_size 8", "refuses", "does not divide 28 heads"),
        *(" --sequence_parallel_size 4", {}),
    ),
    (
        *("4.6.0", COMMAND, " --sequence_parallel_size 2 --padding_side left", "refuses", "padding_side left"),
        *(" --padding_side left", {}),
    ),
    ("4.6.0", COMMAND, FLASH_PACKING + " --lazy_tokenize true", "refuses", "lazy_tokenize", FLASH_PACKING, {}),
    ("4.6.0", COMMAND, FLASH_PACKING, "wrong", "packing with qwen3_next", " --attn_impl flash_attn", QWEN3_NEXT),
    ("4.6.0", COMMAND, " --sequence_parallel_size 2", "wrong", "2 with qwen3_next", "", QWEN3_NEXT),
    ("4.1.3", COMMAND, FLASH_PACKING, "wrong", "packing with qwen3_5_text", "", QWEN3_5),
]


@pytest.mark.parametrize(("version", "command", "more", "consequence", "fragment", "valid", "model"), PROBLEM_CASES)
def test_objections(
    version: str, command: str, more: str, consequence: str, fragment: str, valid: str, model: dict[str, Any]
) -> None:
    problem = find_problem(read_command_job(more, version, command, **model), consequence, fragment)
    assert problem is not None, read_command_job(more, version, command, **model).problems
    assert problem.evidence[0].startswith("ms-swift ") and problem.location.source == "command line" and problem.sets
    assert find_problem(read_command_job(valid, version, command, **model), consequence, fragment) is None
    fixed = read_command_job("", version, rewrite_command(more, version, dict(problem.sets), command, **model), **model)
    assert find_problem(fixed, consequence, fragment) is None, "its own settings do not fix it"


@pytest.mark.parametrize(
    ("version", "more", "is_said"),
    [
        ("4.6.0", "dpo --adapters sft", True),
        ("4.6.0", "dpo --adapters sft --ref_adapters sft", False),
        ("4.6.0", "grpo --adapters sft", True),
        ("4.6.0", "grpo --adapters sft --beta 0", False),
        ("3.7.0", "dpo --adapters sft", True),
        ("3.7.0", "dpo --adapters sft --train_type full", False),
        ("4.6.0", "cpo --adapters sft", False),
    ],
)
def test_the_reference_of_a_trained_adapter(version: str, more: str, is_said: bool) -> None:
    problem = find_problem(read_command_job(f" --rlhf_type {more}", version, RLHF), "replaces", "the model without it")
    assert (problem is not None) is is_said


EMPTY = [" --dataset", " --output_dir --packing false", " --max_length --seed 1", " --torch_dtype"]
WITH_VALUE = [' --dataset ""', " --output_dir=", " --packing", " --no_packing", " --max_length 5", " --dataset $NAME"]


@pytest.mark.parametrize("version", ["2.0.0", "3.10.2", "4.6.0"])
@pytest.mark.parametrize("more", EMPTY)
def test_an_option_without_the_value_that_it_needs_is_refused(more: str, version: str) -> None:
    assert find_problem(read_command_job(more, version, COMMAND), "refuses", "has no value") is not None


@pytest.mark.parametrize("version", ["2.0.0", "3.10.2", "4.6.0"])
@pytest.mark.parametrize("more", WITH_VALUE)
def test_a_switch_and_an_empty_text_are_accepted(more: str, version: str) -> None:
    assert find_problem(read_command_job(more, version, COMMAND), "refuses", "has no value") is None


WINDOWED = {**TWO_KV_HEADS, "sliding_window": Known(4096)}


@pytest.mark.parametrize(
    ("command", "more", "fragment", "model", "since", "until"),
    [
        (COMMAND, " --packing true", "attn_impl not written", {}, "3.5.0", ""),
        (COMMAND, " --packing true --attn_impl flash_attention_4", "with attn_impl flash_attention_4", {}, "3.5.0",
         "4.2.0"),
        (RLHF, " --rlhf_type rm" + FLASH_PACKING, "rm with packing", {}, "3.8.0", ""),
        (RLHF, " --rlhf_type kto" + FLASH_PACKING, "kto with packing", {}, "3.8.0", "3.9.0"),
        (RLHF, " --rlhf_type kto --sequence_parallel_size 2", "kto with sequence_parallel_size", {}, "3.7.0", ""),
        (RLHF, " --rlhf_type grpo --use_liger_kernel true" + FLASH_PACKING, "Liger's loss and packing", {}, "3.5.3",
         ""),
        (COMMAND, " --attn_impl flash_attn --sequence_parallel_size 4", "requires padding_free", TWO_KV_HEADS, "3.9.0",
         ""),
        (COMMAND, " --sequence_parallel_size 4" + FLASH_PACKING, "as a number: TypeError", WINDOWED, "3.9.0", ""),
        (COMMAND, " --sequence_parallel_size 4" + FLASH_PACKING, "recurrent layers refuse",
         {**TWO_KV_HEADS, **QWEN3_5}, "4.2.0", ""),
        (COMMAND, " --sequence_parallel_size 8", "does not divide 28 heads", {}, "3.4.1", "3.9.0"),
        (COMMAND, " --sequence_parallel_size 2 --padding_side left --per_device_train_batch_size 1",
         "padding_side left", {}, "4.3.1", ""),
        (COMMAND, FLASH_PACKING + " --lazy_tokenize true", "packing with lazy_tokenize", {}, "3.7.0", ""),
        (COMMAND, FLASH_PACKING, "packing with qwen3_next", QWEN3_NEXT, "3.8.0", ""),
        (COMMAND, FLASH_PACKING, "recurrent state leaks", QWEN3_5, "3.8.0", "4.3.1"),
        (COMMAND, FLASH_PACKING, "flash-linear-attention is not installed", QWEN3_5, "4.3.1", ""),
        (f"{TWO_GPUS} {COMMAND}", " --deepspeed zero3", "one process with 2 GPUs", {}, "3.5.0", ""),
        ("swift sft --config c.yaml", "", "is not an option before", {}, "3.8.0", "3.10.0"),
        ("swift sft --config c.yaml", "", "is not an option since", {}, "4.1.0", ""),
    ],
)  # fmt: skip
def test_objections_hold_in_their_releases_alone(
    command: str, more: str, fragment: str, model: dict[str, Any], since: str, until: str
) -> None:
    def fires(version: str) -> bool:
        problems = read_command_job(more, version, command, **model).problems
        return any(fragment in problem.message for problem in problems)

    check_range(fires, list_releases("ms_swift"), since, until)


@pytest.mark.parametrize(
    ("before", "options", "is_said"),
    [(TWO_GPUS, "--deepspeed zero3", True), (TWO_GPUS, "", False),
     ("CUDA_VISIBLE_DEVICES=0", "--deepspeed zero3", False),
     (f"NPROC_PER_NODE=2 {TWO_GPUS}", "--deepspeed zero3", False)],
)  # fmt: skip
def test_deepspeed_needs_a_process_per_gpu(before: str, options: str, is_said: bool) -> None:
    job = FRAMEWORK.read(parse_launch(f"{before} {COMMAND} {options}", "shell"), "4.6.0", snapshots.h200())
    assert (find_problem(job, "refuses", "one process with 2 GPUs") is not None) is is_said


def test_sdpa_has_no_ring() -> None:
    """Only where packing does not ask for flash before: the model in a release that packs by another name."""
    launch = parse_launch(COMMAND + " --attn_impl sdpa --padding_free true --sequence_parallel_size 4", "command")
    job = FRAMEWORK.read(launch, "4.6.0", snapshots.with_model(snapshots.h200(), **TWO_KV_HEADS))
    assert find_problem(job, "refuses", "which sdpa does not support") is not None
    undivided = FRAMEWORK.read(launch, "4.6.0", snapshots.with_model(snapshots.h200()))
    assert find_problem(undivided, "refuses", "which sdpa does not support") is None, (
        "four key/value heads: Ulysses alone"
    )


def test_qwen3_5_asks_for_flash_linear_attention() -> None:
    with_it = snapshots.with_package(snapshots.h200(), "flash-linear-attention", "0.5.2")
    launch = parse_launch(COMMAND + FLASH_PACKING, "command")
    for snapshot, is_valid in ((snapshots.h200(), False), (with_it, True)):
        job = FRAMEWORK.read(launch, "4.6.0", snapshots.with_model(snapshot, **QWEN3_5))
        assert (find_problem(job, "refuses", "flash-linear-attention is not installed") is None) == is_valid
        assert find_problem(job, "wrong") is None


@pytest.mark.parametrize(
    ("transformers", "size", "leaks"), [("5.8.1", 1, True), ("5.9.0", 1, False), ("5.8.1", 2, False)]
)
def test_qwen3_5_needs_a_transformers_that_hands_on_the_borders(transformers: str, size: int, leaks: bool) -> None:
    snapshot = snapshots.with_package(snapshots.h200(), "transformers", transformers)
    launch = parse_launch(f"{COMMAND}{FLASH_PACKING} --sequence_parallel_size {size}", "command")
    job = FRAMEWORK.read(launch, "4.6.0", snapshots.with_model(snapshot, **QWEN3_5))
    assert (find_problem(job, "wrong", "recurrent state leaks") is not None) == leaks


def test_a_configuration_file_is_named_as_the_release_wants() -> None:
    for version, is_valid in (("4.0.4", True), ("4.1.0", False), ("3.9.3", False)):
        job = read_command_job("", version, "swift sft --config c.yaml")
        assert (find_problem(job, "refuses", "--config") is None) == is_valid, version
    assert find_problem(read_command_job("", "4.6.0", "swift sft c.yaml"), "refuses", "--config") is None


def test_names_that_a_release_does_not_know() -> None:
    (renamed,) = read_command_job(" --train_type lora").unknown_settings
    assert (renamed.now, renamed.since) == (("--tuner_type",), "4.1.0")
    assert read_command_job(" --train_type lora", "4.0.4").unknown_settings == (), "still taken there"
    (old,) = read_command_job(" --tuner_type lora", "3.12.6").unknown_settings
    assert (old.now, old.since) == (("--train_type",), "4.0.0")
    (typo,) = read_command_job(" --atn_impl sdpa").unknown_settings
    assert (typo.now, typo.since, typo.near) == ((), "", "--attn_impl")
    assert read_command_job(" --full_determinism true --learning-rate 1e-5 --seq 2").unknown_settings == (), (
        "transformers' own; a prefix"
    )
    gone = {
        unknown.name: unknown.now
        for unknown in read_command_job(" --gpu_memory_utilization 0.5", "4.6.0", RLHF).unknown_settings
    }
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
    assert rewrite_command(more, version, sets) == COMMAND + expected


def test_a_script_keeps_its_layout_and_comments() -> None:
    text = "# first\nNPROC_PER_NODE=2 \\\nswift sft \\\n    --model x \\\n    --train_type full \\\n"
    text += "    --packing true  # rows\n"
    launch = parse_launch(text, "shell")
    job = read_job(FRAMEWORK, launch, "4.6.0")
    edited = apply_edits(launch, FRAMEWORK.write(launch, job, {"packing": "off"}))["run.sh"]
    assert edited == text.replace("--train_type", "--tuner_type").replace("packing true", "packing false")


def test_a_file_keeps_its_layout_and_comments() -> None:
    text = "model: x  # model\ntrain_type: lora  # kind\nattn_impl: sdpa\ndataset:\n  - a\n"
    launch = parse_launch(text, "yaml")
    job = read_job(FRAMEWORK, launch, "4.6.0")
    edited = apply_edits(launch, FRAMEWORK.write(launch, job, {"attn_implementation": "eager"}))["config.yaml"]
    assert edited == text.replace("train_type", "tuner_type").replace("sdpa", "eager")


CORPUS_FILES = sorted((CORPUS / "ms_swift").glob("*"))


@pytest.mark.parametrize("path", CORPUS_FILES, ids=lambda path: path.stem)
def test_the_corpus_is_known_to_its_own_release(path: Path) -> None:
    framework, version = read_corpus_header(path)
    job = read_job(FRAMEWORK, load_launch(path), version)
    assert framework == "ms-swift" and job.trainer
    assert [unknown.name for unknown in job.unknown_settings] == []


class DataclassParser(argparse.ArgumentParser):
    """A parser with the options that HfArgumentParser makes of a dataclass's fields."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(add_help=False)
        for name in names:
            self.add_argument(f"--{name}", *{f"--{name.replace('_', '-')}"} - {f"--{name}"}, nargs="*", dest=name)

    def find_leftovers(self, launch: Launch) -> list[str]:
        """Return what ms-swift would raise for as remaining_argv; a file's keys are options (cli/main.py:61)."""
        argv = [word.text for word in launch.words[2:]]
        argv += [word for entry in launch.entries for word in (f"--{entry.name.split('.')[0]}", "x")]
        return [word for word in self.parse_known_args(argv)[1] if word.startswith("--")]


def make_own_parser(version: str, kind: str) -> DataclassParser:
    """Return the parser of a release, out of its wheel, with the training arguments of transformers as installed."""
    spec = importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None:
        pytest.skip("no transformers")
    try:
        wheel = wheels.fetch_wheel("ms-swift", version)
    except (subprocess.SubprocessError, OSError, IndexError):
        pytest.skip("no wheel to be had")
    from tools.names.class_fields import Package

    folder = Path(spec.origin).parent
    texts = {
        f"transformers.{name}": (folder / f"{name}.py").read_text()
        for name in ("training_args", "training_args_seq2seq")
    }
    inherited = Package(texts).collect_fields("transformers.training_args_seq2seq", "Seq2SeqTrainingArguments")
    assert len(inherited) > 90
    if version[0] == "3":  # it requires transformers<4.58, which has them still
        inherited |= dict.fromkeys(("warmup_ratio", "logging_dir"), ("float", 0.0))
    fields = read_fields(read_archive(wheel.path, "swift"), (NEW_PATHS if version[0] == "4" else OLD_PATHS)[kind])
    return DataclassParser([*inherited, *(name for name in fields if name not in inherited)])


@pytest.mark.parametrize("version", ["3.12.6", "4.6.0"])
def test_ms_swifts_own_fields_agree(version: str) -> None:
    """A command is left with nothing over after correction; before, with what we say is not known."""
    parsers = {kind: make_own_parser(version, kind) for kind in ("sft", "rlhf")}
    with_unknown = 0
    for path in CORPUS_FILES:
        launch = load_launch(path)
        job = read_job(FRAMEWORK, launch, version)
        if job.trainer == "megatron":
            continue
        parser = parsers["sft" if job.trainer in ("sft", "pt") else "rlhf"]
        before = {name.split("=")[0] for name in parser.find_leftovers(launch)}
        assert {f"--{unknown.name.lstrip('-')}" for unknown in job.unknown_settings} == before, path
        sets = {key: value for problem in job.problems for key, value in problem.sets.items()}
        text = apply_edits(launch, FRAMEWORK.write(launch, job, sets))[launch.source.name]
        corrected_source = replace(launch.source, text=text)
        leftovers = parser.find_leftovers(parse_launch(corrected_source.text, corrected_source.kind))
        assert set(leftovers) == {
            f"--{unknown.name.lstrip('-')}" for unknown in job.unknown_settings if not unknown.now
        }, path
        with_unknown += bool(job.unknown_settings)
    assert with_unknown > 2, "no file of another release"


@pytest.mark.parametrize("version", ["3.12.6", "4.6.0"])
def test_the_table_of_names_says_what_the_wheel_says(version: str) -> None:
    try:
        wheel = wheels.fetch_wheel("ms-swift", version)
    except (subprocess.SubprocessError, OSError, IndexError):
        pytest.skip("no wheel to be had")
    fields = read_fields(read_archive(wheel.path, "swift"), (NEW_PATHS if version[0] == "4" else OLD_PATHS)["sft"])
    releases = load_table("ms_swift")["versions"]
    position = releases.index(version)
    known = {
        name: span[2:]
        for name, spans in load_table("ms_swift")["names"].items()
        for span in spans
        if releases.index(span[0]) <= position <= releases.index(span[1])
    }
    assert known == fields


@pytest.mark.parametrize(
    "text",
    [
        *("swift", "megatron", "swift sft", "swift sft --", "swift sft --model", "swift rlhf --rlhf_type"),
        *("swift sft --sequence_parallel_size x", "swift sft --sequence_parallel_size -3 --packing"),
        "NPROC_PER_NODE=$N swift sft --model $M --packing $P",
    ],
)
def test_strange_commands_give_an_answer(text: str) -> None:
    launch = parse_launch(text, "command")
    FRAMEWORK.trainer(launch)
    job = read_job(FRAMEWORK, launch, "4.6.0")
    FRAMEWORK.write(launch, job, {"attn_implementation": "sdpa", "packing": "off", "ring_size": "1"})


# After modelscope/ms-swift v2.4.2 examples/pytorch/llm/scripts/qwen1half_7b_chat/lora_ddp_ds/sft.sh and the like.
OLD_COMMAND = (
    "swift sft --model_type qwen2-7b --model_id_or_path Qwen/Qwen2-7B --sft_type lora --dataset a --max_length 4096"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("swift dpo --model_type qwen-7b --sft_type lora", "dpo"),
        ("swift simpo --model_type qwen-7b", "simpo"),
        ("torchrun --nproc_per_node 4 llm_sft.py --model_type qwen-7b --sft_type lora", "sft"),
        ("python examples/pytorch/llm/llm_rlhf.py --rlhf_type kto", "kto"),
        ("megatron dpo --model x", ""),
    ],
)
def test_commands_of_2_x_are_recognised(text: str, expected: str) -> None:
    assert FRAMEWORK.trainer(parse_launch(text, "command")) == expected


def test_2_x_has_settings_of_its_own() -> None:
    job = read_command_job(" --use_flash_attn true --dtype fp16 --batch_size 2 --packing true", "2.4.2", OLD_COMMAND)
    plan = job.plan
    assert (plan.attn_implementation, plan.precision, plan.packing) == ("flash_attention_2", "fp16", "position_ids")
    assert (plan.batch, plan.max_length, plan.accumulation) == (1, 2 * 4096, 8)
    assert job.model == "Qwen/Qwen2-7B"
    assert not job.unknown_settings and not job.problems
    assert read_command_job(" --packing true", "2.2.5", OLD_COMMAND).plan.packing == "padding"


def test_transformers_arguments_are_no_options_of_2_x() -> None:
    unknown = read_command_job(" --use_liger_kernel true", "2.6.1", OLD_COMMAND)
    assert [setting.name for setting in unknown.unknown_settings] == ["--use_liger_kernel"]
    known = read_command_job(" --use_liger_kernel true", "3.0.0", "swift sft --model x")
    assert not known.unknown_settings


@pytest.mark.parametrize(
    ("version", "sets", "words"),
    [
        ("2.6.1", {"attn_implementation": "flash_attention_2"}, "--use_flash_attn true"),
        ("2.6.1", {"attn_implementation": "sdpa"}, "--use_flash_attn false"),
        ("2.6.1", {"precision": "fp16"}, "--dtype fp16"),
        ("2.6.1", {"tensor_parallel": "2"}, ""),
        ("3.4.0", {"attn_implementation": "flash_attention_2"}, "--attn_impl flash_attn"),
        ("3.7.0", {"attn_implementation": "flash_attention_2"}, "--attn_impl flash_attention_2"),
    ],
)
def test_settings_are_written_in_the_names_of_a_release(version: str, sets: dict[str, str], words: str) -> None:
    command = OLD_COMMAND if version.startswith("2") else "swift sft --model x"
    assert rewrite_command("", version, sets, command).removeprefix(command).strip() == words


@pytest.mark.parametrize(
    ("name", "release"),
    [("padding_free", "3.5.0"), ("packing", "2.0.5"), ("sequence_parallel_size", "2.0.5"), ("attn_impl", "3.0.0")],
)
def test_a_name_is_known_from_the_release_that_has_it(name: str, release: str) -> None:
    assert load_table("ms_swift")["names"][name][0][0] == release


@pytest.mark.parametrize(
    ("before", "since", "more", "word"),
    [
        ("3.4.1", "3.5.0", " --packing true --attn_impl sdpa", "flash implementation"),
        ("3.6.4", "3.7.0", " --packing true --attn_impl flash_attn --lazy_tokenize true", "lazy_tokenize"),
    ],
)
def test_what_a_release_refuses_its_predecessor_takes(before: str, since: str, more: str, word: str) -> None:
    assert find_problem(read_command_job(more, before), "refuses", word) is None
    assert find_problem(read_command_job(more, since), "refuses", word)


def test_transformers_names_of_flash_pack_since_3_7() -> None:
    more = " --packing true --attn_impl flash_attention_2"
    problem = find_problem(read_command_job(more, "3.6.4"), "refuses", "flash implementation")
    assert problem is not None
    assert find_problem(read_command_job(more, "3.7.0"), "refuses") is None


@pytest.mark.parametrize(
    ("before", "since", "more", "word"),
    [
        ("3.5.3", "3.6.0", "--rlhf_type kto --padding_free true --attn_impl flash_attn", "kto with padding_free"),
        ("3.7.3", "3.8.0", "--rlhf_type kto --packing true --attn_impl flash_attn", "kto with packing"),
        ("3.6.4", "3.7.0", "--rlhf_type kto --sequence_parallel_size 2", "sequence_parallel_size 2"),
        ("3.5.2", "3.5.3", "--rlhf_type grpo --use_liger_kernel true --sequence_parallel_size 2", "Liger"),
    ],
)
def test_kinds_of_learning_are_refused_since_a_release(before: str, since: str, more: str, word: str) -> None:
    command = f"swift rlhf --model x {more}"
    assert find_problem(read_command_job("", before, command), "refuses", word) is None
    assert find_problem(read_command_job("", since, command), "refuses", word)


def test_sequence_parallelism_was_xtuners_before_3_4_1() -> None:
    more = " --sequence_parallel_size 3"
    assert read_command_job(more, "3.4.0", num_heads=Known(28)).scheme == "xtuner"
    assert find_problem(read_command_job(more, "3.4.0", num_heads=Known(28)), "refuses") is None
    assert find_problem(read_command_job(more, "3.4.1", num_heads=Known(28)), "refuses", "does not divide 28 heads")


def test_one_row_may_be_padded_on_the_left_before_4_3_1() -> None:
    more = " --sequence_parallel_size 2 --padding_side left --per_device_train_batch_size {}"
    assert find_problem(read_command_job(more.format(1), "3.8.3"), "refuses", "padding_side") is None
    assert find_problem(read_command_job(more.format(2), "3.8.3"), "refuses", "padding_side")
    assert find_problem(read_command_job(more.format(1), "4.3.0"), "refuses", "padding_side") is None
    assert find_problem(read_command_job(more.format(1), "4.3.1"), "refuses", "padding_side")


def test_unknown_names_that_the_launch_lets_pass_are_left_alone() -> None:
    assert read_command_job(" --no_such_thing 1", "3.4.0").unknown_settings
    assert not read_command_job(" --no_such_thing 1 --ignore_args_error true", "3.4.0").unknown_settings


def read_megatron_job(text: str, version: str = "3.7.0") -> Job:
    return FRAMEWORK.read(parse_launch(text, "shell"), version, snapshots.h200())


def test_sizes_of_megatron_are_read() -> None:
    job = read_megatron_job(
        "NPROC_PER_NODE=8 megatron sft --load x --tensor_model_parallel_size 2 --context_parallel_size 2 "
        "--micro_batch_size 2 --max_length 8192 --packing true --attention_backend flash\n"
    )
    plan = job.plan
    assert (job.trainer, job.world_size, job.tensor_parallel, job.scheme) == ("megatron", Known(8), 2, "megatron")
    assert (plan.attn_implementation, plan.packing, plan.precision) == ("transformer_engine", "cu_seqlens", "bf16")
    assert (plan.ring_size, plan.batch, plan.max_length) == (2, 2, 8192)
    assert not job.problems and not job.unknown_settings


def test_megatron_is_never_taken_for_transformers_attention() -> None:
    """Its packing is not one of sdpa's: no rule about transformers' implementations has anything to say of it."""
    for version in ("3.3.0", "3.5.0", "4.6.0"):
        plan = read_megatron_job("megatron pt --load x --packing true\n", version).plan
        assert plan.attn_implementation == "transformer_engine"
    assert read_megatron_job("megatron pt --load x\n", "3.6.4").plan.packing == "padding"
    assert read_megatron_job("megatron pt --load x --padding_free false\n", "3.7.0").plan.packing == "padding"


@pytest.mark.parametrize(("stages", "is_refused"), [(2, False), (3, True)])
def test_stages_of_megatron_divide_its_processes(stages: int, is_refused: bool) -> None:
    sizes = f"--tensor_model_parallel_size 2 --pipeline_model_parallel_size {stages}"
    problem = find_problem(read_megatron_job(f"NPROC_PER_NODE=8 megatron sft --load x {sizes}\n"), "refuses")
    assert (problem is not None) == is_refused


def test_megatron_over_nodes_takes_the_gpus_of_each() -> None:
    job = read_megatron_job("NNODES=2 NPROC_PER_NODE=8 megatron sft --load x\n")
    assert (job.nodes, job.gpus) == (2, Known(16))


@pytest.mark.parametrize(("version", "is_proven"), [("3.7.0", True), ("3.7.0.dev0", False), ("3.8.0.dev0", True)])
def test_a_name_that_went_when_a_development_tree_was_cut_proves_nothing(version: str, is_proven: bool) -> None:
    launch = parse_launch("swift rlhf --rlhf_type grpo --model x --num_infer_workers 2", "command")
    job = FRAMEWORK.read(launch, version, snapshots.h200())
    settled = proof.settle_names(job, launch, FRAMEWORK.own_programs, ChosenRelease(version, is_known=True))
    assert [bool(unknown.proof) for unknown in settled.unknown_settings] == [is_proven]
