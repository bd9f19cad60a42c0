"""Megatron-LM's command line, after NVIDIA/Megatron-LM examples/gpt3/train_gpt3_175b_distributed.sh and forks of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from attncheck.core.facts import Known
from attncheck.core.job import Job
from attncheck.core.launch import Launch
from attncheck.core.results.lint import launches_of
from attncheck.lint import frameworks, run
from attncheck.lint.context import Request
from attncheck.lint.frameworks import megatron
from attncheck.lint.inputs import make_file_reader
from attncheck.lint.sources import read_source
from attncheck.report.sections.lint import describe_job
from tests import snapshots
from tests.lint.framework_launches import apply_edits, find_problem, parse_launch
from tests.lint.launches import read_model
from tests.lint.programs.trees import write_tree

COMMAND = (
    "torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --num-layers 32 --num-attention-heads 32 --seq-length 8192 "
    "--group-query-attention --num-query-groups 8 --micro-batch-size 1 --global-batch-size 64 --bf16 "
)
SIZES = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --context-parallel-size 2 "


def parse_command(more: str = "", before: str = "") -> Launch:
    return parse_launch(before + COMMAND + more + "\n", "shell")


def test_options_with_underscores_are_a_forks() -> None:
    text = "torchrun pretrain_gpt.py --num_layers 2 --seq_length 8 --micro_batch_size 3 --bf16 --use_flash_attn x\n"
    job = megatron.FRAMEWORK.read(parse_launch(text, "shell"), "0.15.0", snapshots.h200())
    assert (job.trainer, job.plan.attn_implementation, job.plan.batch) == ("pretrain", "megatron_local", 3)
    assert (job.plan.precision, job.plan.max_length) == ("bf16", 8)


def read_command(more: str = "", before: str = "", version: str = "0.15.0") -> Job:
    return megatron.FRAMEWORK.read(parse_command(more, before), version, snapshots.h200())


def test_what_it_trains_is_read() -> None:
    job = read_command(SIZES + "--deterministic-mode --recompute-activations")
    plan = job.plan
    assert (job.trainer, job.world_size, job.nodes, job.tensor_parallel) == ("pretrain", Known(16), 2, 2)
    assert (plan.attn_implementation, plan.precision, plan.max_length) == ("transformer_engine", "bf16", 8192)
    assert (plan.batch, plan.accumulation, plan.ring_size, job.scheme) == (1, 64 // 2, 2, "megatron")
    assert plan.deterministic and plan.gradient_checkpointing and not plan.packed
    assert "padded" not in describe_job(job)
    assert not job.unknown_settings


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("torchrun pretrain_gpt.py --num-layers 2", "megatron"),
        ("python /opt/Megatron-LM/pretrain_mamba.py --micro-batch-size 4", "megatron"),
        ("torchrun train_qwen.py --micro-batch-size 1 --train-iters 10 --tensor-model-parallel-size 2", "megatron"),
        ("torchrun pretrain_gpt.py --sft --seq-length 4096", "megatron"),
        ("megatron sft --tensor_model_parallel_size 2 --model x", "ms-swift"),
        ("python train.py --per_device_train_batch_size 1 --output_dir x", "transformers"),
        ("torchrun swift/cli/_megatron/sft.py --num_layers 2 --micro_batch_size 1 --seq_length 9", "ms-swift"),
        ("python -m verl.trainer.main_ppo --config-name ppo_megatron_trainer actor_rollout_ref.model.path=x", "verl"),
        ("torchrun tools/run_text_generation_server.py --num-layers 2 --seq-length 2 --micro-batch-size 1", ""),
        ("python tools/checkpoint/convert.py --target-tensor-parallel-size 2", ""),
        ("python train.py --num-layers 2 --seq-length 128", ""),
    ],
)
def test_it_is_told_from_other_programs(text: str, name: str) -> None:
    launch = parse_launch(text, "command")
    assert next((framework.name for framework in frameworks.load() if framework.trainer(launch)), "") == name


# before, options, release, word of the message; and options with which it is silent
FAULTS = [
    ("", "--pipeline-model-parallel-size 3 ", "0.15.0", "1 x 3 x 1 does not divide 16", SIZES),
    ("", "--tensor-model-parallel-size 5 ", "0.15.0", "--num-attention-heads 32", SIZES),
    ("", "--tensor-model-parallel-size 12 --num-attention-heads 24 ", "0.15.0", "--num-query-groups 8", SIZES),
    ("", SIZES + "--seq-length 8190 ", "0.15.0", "--seq-length 8190", SIZES),
    ("", SIZES + "--transformer-impl local ", "0.15.0", "only Transformer Engine", "--transformer-impl local"),
    (
        "",
        "--reset-attention-mask ",
        "0.15.0",
        "attend to each other",
        "--reset-attention-mask --transformer-impl local",
    ),
    ("", "--deterministic-mode --use-flash-attn ", "0.15.0", "--use-flash-attn with", "--use-flash-attn"),
    ("", "--deterministic-mode --cross-entropy-loss-fusion ", "0.9.0", "--cross-entropy-loss-fusion with", "--bf16"),
    ("", "--deterministic-mode ", "0.15.0", "the launch does not set NCCL_ALGO", "--bf16"),
]


@pytest.mark.parametrize(("before", "more", "version", "word", "healthy"), FAULTS)
def test_what_it_cannot_serve_is_said(before: str, more: str, version: str, word: str, healthy: str) -> None:
    messages = [problem.message for problem in read_command(more, before, version).problems]
    assert any(word in message for message in messages), messages
    assert not any(word in problem.message for problem in read_command(healthy, before, version).problems)


@pytest.mark.parametrize(
    ("before", "more", "versions"),
    [
        ("export NVTE_FLASH_ATTN=0\n", "", ("0.10.0", "0.11.0")),
        ("export NVTE_FUSED_ATTN=1\n", "--attention-backend flash", ("0.10.0", "0.11.0")),
        ("export CUDA_DEVICE_MAX_CONNECTIONS=8\n", SIZES, ("0.11.0", "0.12.0")),
        ("", SIZES + "--seq-length 8190", ("0.7.0", "0.8.0")),
        ("export NCCL_ALGO=Tree NVTE_ALLOW_NONDETERMINISTIC_ALGO=0 CUBLAS_WORKSPACE_CONFIG=:4096:8\n",
         "--deterministic-mode", ("0.18.0", "0.19.0")),
    ],
)  # fmt: skip
def test_each_demand_has_the_release_that_made_it(before: str, more: str, versions: tuple[str, str]) -> None:
    assert not read_command(more, before, versions[0]).problems
    assert find_problem(read_command(more, before, versions[1]), "refuses")


@pytest.mark.parametrize(
    ("before", "more"),
    [
        ("export NVTE_FLASH_ATTN=1 NVTE_FUSED_ATTN=0 NVTE_UNFUSED_ATTN=0\n", "--attention-backend flash"),
        ("export NVTE_FUSED_ATTN=1\n", "--attention-backend $BACKEND"),
        ("export NVTE_FLASH_ATTN=0\n", "$MORE"),
        ("export NVTE_FLASH_ATTN=$FLASH\n", ""),
        ("export NVTE_FLASH_ATTN=0\n", "--use-legacy-models"),
        ("export CUDA_DEVICE_MAX_CONNECTIONS=8\n", "--use-torch-fsdp2 " + SIZES),
        ("export CUDA_DEVICE_MAX_CONNECTIONS=8\n", ""),
        ("export NCCL_ALGO=Ring NVTE_ALLOW_NONDETERMINISTIC_ALGO=0 CUBLAS_WORKSPACE_CONFIG=:4096:8\n",
         "--deterministic-mode"),
        ("", "--tensor-model-parallel-size $TP --pipeline-model-parallel-size 4"),
    ],
)  # fmt: skip
def test_healthy_or_unknown_neighbours_are_silent(before: str, more: str) -> None:
    assert read_command(more, before).problems == ()


@pytest.mark.parametrize(
    ("options", "implementation", "is_ignored"),
    [
        ("", "megatron_local", False),  # of a fork from before Transformer Engine
        ("parser.add_argument('--transformer-impl', default='local')", "megatron_local", False),
        ("parser.add_argument('--transformer-impl', default='transformer_engine')", "transformer_engine", True),
        ("parser.add_argument('--transformer-impl', default=DEFAULT)", "transformer_engine", True),
    ],
)
def test_the_default_of_the_tree_s_own_parser_decides(
    tmp_path: Path, options: str, implementation: str, is_ignored: bool
) -> None:
    names = ("num-layers", "num-attention-heads", "seq-length", "micro-batch-size")
    lines = ["parser = argparse.ArgumentParser()", *(f"parser.add_argument('--{name}', type=int)" for name in names)]
    lines += ["parser.add_argument('--reset-attention-mask', action='store_true')", options, "parser.parse_args()"]
    training = "import argparse\n\ndef pretrain():\n" + "".join(f"    {line}\n" for line in lines)
    command = "torchrun pretrain_gpt.py --num-layers 2 --num-attention-heads 2 --seq-length 8 --micro-batch-size 1 "
    files = {"pretrain_gpt.py": "from megatron.training import pretrain\n\npretrain()\n", ".git/HEAD": ""}
    files |= {"megatron/__init__.py": "", "megatron/training.py": training}
    write_tree(tmp_path, files | {"run.sh": f"{command} --reset-attention-mask\n"})
    source = read_source(str(tmp_path / "run.sh"))
    report = run.run(snapshots.h200(), Request((source,)), read_model, make_file_reader((source,)))
    (launch,) = launches_of(report)
    assert launch.job.plan.attn_implementation == implementation
    assert any("under Transformer Engine" in finding.message for finding in report.findings) is is_ignored


def test_the_length_that_is_offered_is_taken() -> None:
    problem = find_problem(read_command(SIZES + "--seq-length 8190"), "refuses", "--seq-length 8190")
    assert problem is not None and problem.sets == {"max_length": "8188"}
    assert not read_command(SIZES + "--seq-length 8188").problems


def test_the_newer_mode_sets_its_variables_itself() -> None:
    assert not read_command("--deterministic-mode", "", "0.19.0").problems


def test_settings_are_written_where_they_stand_and_no_other() -> None:
    launch = parse_command(SIZES)
    job = megatron.FRAMEWORK.read(launch, "0.15.0", snapshots.h200())
    assert (
        "--context-parallel-size 4"
        in apply_edits(launch, megatron.FRAMEWORK.write(launch, job, {"ring_size": "4"}))["run.sh"]
    )
    assert megatron.FRAMEWORK.write(launch, job, {"attn_implementation": "sdpa", "ring_size": "1"}) == ()


@pytest.mark.parametrize(
    ("more", "count"),
    [
        ("--use-flash-attn", 1),
        ("--attention-backend flash", 1),
        ("--attention-backend unfused", 0),
        ("--use-flash-attn --fp16", 0),
        ("--use-flash-attn --transformer-impl local", 0),  # not Transformer Engine
        ("--use-flash-attn $MORE", 0),  # which may have --bf16
        ("", 0),
    ],
)
def test_flash_attention_in_float32_is_none_of_transformer_engine(more: str, count: int) -> None:
    launch = parse_launch((COMMAND + more).replace("--bf16", "") + "\n", "shell")
    job = megatron.FRAMEWORK.read(launch, "0.15.0", snapshots.h200())
    found = [problem for problem in job.problems if "float32" in problem.message]
    assert len(found) == count and all(problem.consequence == "ignores" for problem in found)
    assert ("precision" in job.unknown) is ("$MORE" in more)
