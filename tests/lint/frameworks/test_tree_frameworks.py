"""Launches of frameworks that are read as written, and of none other: torchtitan, prime-rl, AReaL."""

from __future__ import annotations

import pkgutil
import re
from pathlib import Path

import pytest

from attncheck.core.facts import Absent, Known
from attncheck.core.job import Job
from attncheck.lint import frameworks
from tests import snapshots
from tests.lint.framework_launches import parse_launch


def find_framework(text: str) -> frameworks.Framework | None:
    launch = parse_launch(text, "command")
    return next((framework for framework in frameworks.load() if framework.trainer(launch)), None)


def read(text: str) -> Job:
    framework = find_framework(text)
    assert framework is not None
    return framework.read(parse_launch(text, "command"), framework.newest, snapshots.h200())


@pytest.mark.parametrize(
    ("text", "name", "trainer"),
    [
        ("torchrun --nproc_per_node 8 -m torchtitan.train --job.config_file a.toml", "torchtitan", "pretrain"),
        ("torchrun torchtitan/train.py --training.steps 10", "torchtitan", "pretrain"),
        ("uv run rl @ rl.toml", "prime-rl", "rl"),
        ("uv run sft @ sft.toml --model.cp 2", "prime-rl", "sft"),
        ("torchrun src/prime_rl/trainer/rl/train.py @ a.toml", "prime-rl", "rl"),
        ("python3 -m areal.launcher.local gsm8k_sft.py --config a.yaml", "areal", "sft"),
        ("python -m areal.launcher.ray examples/math/gsm8k_rl.py --config a.yaml", "areal", "grpo"),
        ("python3 -m areal.launcher.local eval.py --config a.yaml", "", ""),
        ("torchrun -m torchtitan.experiments.generate", "", ""),
        ("uv run orchestrator @ orch.toml", "", ""),
        ("sft train.yaml", "", ""),
    ],
)
def test_which_launches_are_theirs(text: str, name: str, trainer: str) -> None:
    framework = find_framework(text)
    assert (framework.name if framework else "") == name
    assert not framework or framework.trainer(parse_launch(text, "command")) == trainer


def test_what_is_written_is_read() -> None:
    titan = read(
        "torchrun --nproc_per_node 8 -m torchtitan.train --training.seq_len 4096 --training.local-batch-size=2 "
        "--parallelism.context_parallel_degree 2"
    )
    assert (titan.plan.max_length, titan.plan.batch, titan.plan.ring_size, titan.scheme) == (4096, 2, 2, "torch")
    assert titan.world_size == Known(8) and not titan.unknown_settings and not titan.problems
    assert (titan.plan.gradient_checkpointing, titan.plan.compile, titan.plan.accumulation) == (True, False, 1)
    other = read(
        "torchrun --nproc_per_node 8 -m torchtitan.train --activation_checkpoint.mode none --compile.enable "
        "--training.local_batch_size 2 --training.global_batch_size 64 --parallelism.tensor_parallel_degree 2"
    )
    assert (other.plan.gradient_checkpointing, other.plan.compile, other.plan.accumulation) == (False, True, 8)
    prime = read("uv run rl @ rl.toml --model.name Qwen/Qwen3-4B --model.attn flash_attention_3")
    assert (prime.model, prime.plan.attn_implementation) == ("Qwen/Qwen3-4B", "flash_attention_3")
    assert prime.reinforcement and isinstance(prime.gpus, Absent)
    areal = read(
        "python3 -m areal.launcher.local t_rl.py --config a.yaml actor.path=m actor.dtype=float16 cluster.n_nodes=2 "
        "cluster.n_gpus_per_node=8"
    )
    assert (areal.model, areal.plan.precision, areal.world_size) == ("m", "fp16", Known(16))


def test_what_frameworks_call_later_is_there() -> None:
    folder = Path(frameworks.__file__).parent
    texts = [path.read_text("utf-8") for path in folder.rglob("__init__.py")]
    names = {name for text in texts for name in re.findall(r'defer\("([\w.:]+)"', text)}
    assert {"lint.frameworks.trl.rehearsal:cut", "lint.frameworks.slime.plan:format_plan"} <= names
    for name in names:
        assert callable(pkgutil.resolve_name(f"attncheck.{name}")), name
