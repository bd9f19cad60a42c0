"""slime's launches, after THUDM/slime scripts/run-qwen3-4B.sh, and what its parser refuses."""

from __future__ import annotations

import pytest

from attncheck.core.facts import Absent, Known
from attncheck.core.job import Job
from attncheck.core.launch import Launch
from attncheck.lint import frameworks
from attncheck.lint.frameworks import slime
from tests import snapshots
from tests.lint.framework_launches import parse_launch

COMMAND = (
    "ray job submit --address=http://127.0.0.1:8265 -- python3 train.py --actor-num-nodes 2 "
    "--actor-num-gpus-per-node 8 "
    "--hf-checkpoint /root/Qwen3-4B --num-rollout 3000 --rollout-batch-size 32 --n-samples-per-prompt 8 "
    "--global-batch-size 256 --advantage-estimator grpo --tensor-model-parallel-size 2 --context-parallel-size 2 "
    "--attention-backend flash "
)
DYNAMIC = "--use-dynamic-batch-size --max-tokens-per-gpu 9216 "


def parse_command(more: str = "", before: str = "") -> Launch:
    return parse_launch(before + COMMAND + more + "\n", "shell")


def read_command(more: str = "", version: str = "0.3.1") -> Job:
    return slime.FRAMEWORK.read(parse_command(more), version, snapshots.h200())


def find_name(text: str) -> str:
    launch = parse_launch(text, "command")
    return next((framework.name for framework in frameworks.load() if framework.trainer(launch)), "")


def test_what_it_trains_is_read() -> None:
    job = read_command(DYNAMIC + "--colocate --recompute-granularity full")
    plan = job.plan
    assert (job.trainer, job.model, job.world_size, job.gpus) == ("grpo", "/root/Qwen3-4B", Known(16), Known(16))
    assert (plan.attn_implementation, plan.precision, plan.packing) == ("transformer_engine", "bf16", "cu_seqlens")
    assert (plan.ring_size, job.scheme, job.tensor_parallel, plan.max_length) == (2, "megatron", 2, 9216)
    assert plan.gradient_checkpointing and job.reinforcement and not job.problems and not job.unknown_settings


def test_other_ways_to_train_are_read() -> None:
    assert read_command("--loss-type sft_loss").trainer == "sft"
    assert read_command("--fp16").plan.precision == "fp16"
    assert isinstance(read_command("--rollout-num-gpus 8").gpus, Absent)
    assert read_command("--qkv-format bshd", "0.2.2").plan.packing == "padding"
    fsdp = read_command("--train-backend fsdp --attn-implementation sdpa", "0.2.2")
    assert (fsdp.plan.attn_implementation, fsdp.plan.packing, fsdp.plan.ring_size) == ("sdpa", "position_ids", 1)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("python3 train_async.py --actor-num-nodes 1 --rollout-batch-size 32 --num-layers 28 --micro-batch-size 1 "
         "--tensor-model-parallel-size 2", "slime"),
        ("python train_multi_lora_async.py --hf-checkpoint m --prompt-data d", "slime"),
        ("torchrun pretrain_gpt.py --num-layers 2 --micro-batch-size 1", "megatron"),
        ("python train.py --num-rollout 3", ""),
        ("python -m openrlhf.cli.train_ppo_ray --pretrain m --rollout_batch_size 128", "openrlhf"),
    ],
)  # fmt: skip
def test_it_is_told_from_other_programs(text: str, name: str) -> None:
    assert find_name(text) == name


@pytest.mark.parametrize(
    ("more", "version", "words"),
    [
        ("--use-dynamic-batch-size", "0.3.1", "without --max-tokens-per-gpu"),
        (DYNAMIC + "--micro-batch-size 2", "0.3.1", "has no effect"),
        ("--kl-coef 0.1 --kl-loss-coef 0.01", "0.1.0", "above 0"),
        ("--advantage-estimator reinforce_plus_plus", "0.3.1", "--normalize-advantages"),
        ("--num-steps-per-rollout 2", "0.3.1", "is not 32 prompts x 8 samples / 2 steps = 128"),
        ("--global-batch-size 255", "0.3.1", "is not divisible by 4"),
        ("--use-rollout-logprobs --use-tis", "0.2.0", "--use-tis"),
        ("--eval-interval 20", "0.3.1", "--eval-prompt-data"),
        ("--save-interval 20", "0.3.1", "--save"),
        ("--allgather-cp", "0.3.0", "sparse attention"),
        ("--qkv-format bshd " + DYNAMIC, "0.2.3", "bshd"),
        ("--tensor-model-parallel-size 3 --num-attention-heads 32", "0.3.1", "not a multiple"),
        ("--transformer-impl local", "0.3.1", "Megatron's own attention"),
    ],
)
def test_what_it_refuses(more: str, version: str, words: str) -> None:
    assert [problem for problem in read_command(more, version).problems if words in problem.message]


@pytest.mark.parametrize(
    ("more", "version"),
    [
        (DYNAMIC, "0.3.1"),
        (DYNAMIC + "--micro-batch-size 1", "0.3.1"),  # the default
        ("--micro-batch-size 1", "0.3.1"),
        ("--kl-coef 0.0 --kl-loss-coef 0.01", "0.3.1"),
        ("--advantage-estimator reinforce_plus_plus --normalize-advantages", "0.3.1"),
        ("--num-steps-per-rollout 1", "0.3.1"),
        ("--use-rollout-logprobs --use-tis", "0.1.0"),
        ("--save-interval 20 --save /out --eval-interval 5 --eval-prompt-data aime x.jsonl", "0.3.1"),
        ("--allgather-cp", "0.2.4"),
        ("--allgather-cp --hf-checkpoint /root/GLM-5", "0.3.1"),
        ("--qkv-format bshd --micro-batch-size 1", "0.2.3"),
        ("--global-batch-size $SIZE", "0.3.1"),
    ],
)
def test_what_it_takes(more: str, version: str) -> None:
    assert read_command(more, version).problems == ()


def test_a_launch_without_an_end_is_refused() -> None:
    launch = parse_launch("python3 train.py --actor-num-nodes 1 --hf-checkpoint m --rollout-batch-size 8\n", "shell")
    [problem] = slime.FRAMEWORK.read(launch, "0.3.1", snapshots.h200()).problems
    assert "--num-rollout" in problem.message
