"""slime's loss of synthetic rollouts: the right one gives no finding, and a fault in the launch's tree is named.

The tree has the interface of slime v0.3.1: its options, its loss, and the functions of Megatron that the loss calls.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from attncheck.core.rehearsal import Normalisation, Objective, PolicyGradient
from attncheck.core.results.smoke import judge_result
from tests.rehearsal.staging import ForkServer, judge, list_failures, make_materials

SCRIPT = Path(__file__).parent / "scripts" / "slime.py"
OPTIONS = """
from sglang.srt.server_args import ServerArgs

def get_slime_extra_args_provider(add_custom_arguments=None):
    def add(parser):
        for name, kind, default in (
            ("--hf-checkpoint", str, None), ("--actor-num-gpus-per-node", int, 8), ("--micro-batch-size", int, 1),
            ("--global-batch-size", int, None), ("--lr", float, 1e-6), ("--loss-type", str, "policy_loss"),
            ("--eps-clip", float, 0.2), ("--eps-clip-high", float, None), ("--rollout-temperature", float, 1.0),
            ("--entropy-coef", float, 0.0),
        ):
            parser.add_argument(name, type=kind, default=default)
        parser.add_argument("--calculate-per-token-loss", action="store_true")
        ServerArgs.add_cli_args(parser)
        return parser
    return add
"""
LOSS = """
import os
import torch
from megatron.core import mpu
from megatron.core.fusions.fused_cross_entropy import fused_vocab_parallel_cross_entropy

FAULT = os.environ.get("PLANTED_FAULT", "")

def get_log_probs_and_entropy(logits, *, args, unconcat_tokens, total_lengths, response_lengths, with_entropy=False):
    assert logits.dtype == torch.float32 and mpu.get_context_parallel_world_size() == 1
    rows = (logits[0] / args.rollout_temperature).split(total_lengths)
    values = []
    for row, tokens, count in zip(rows, unconcat_tokens, response_lengths):
        loss = fused_vocab_parallel_cross_entropy(row[-count - 1 : -1, None], tokens[-count:, None], None)
        values.append(-loss[:, 0])
    return torch.empty(0), {"log_probs": values}

def loss_function(args, batch, num_microbatches, step_global_batch_size, logits):
    names = ("unconcat_tokens", "total_lengths", "response_lengths")
    now = get_log_probs_and_entropy(logits, args=args, **{name: batch[name] for name in names})[1]["log_probs"]
    if args.loss_type == "policy_loss":
        ratios = [(own - old).exp() for own, old in zip(now, batch["log_probs"])]
        clipped = [ratio.clamp(1 - args.eps_clip, 1 + args.eps_clip_high) for ratio in ratios]
        advantages = [1.0 if FAULT == "advantages_ignored" else own for own in batch["advantages"]]
        parts = [torch.max(-a * x, -a * y) for a, x, y in zip(advantages, ratios, clipped)]
    else:
        parts = [-own for own in now]
    tokens = sum(len(part) for part in parts)
    if args.calculate_per_token_loss != (FAULT == "other_mean"):
        return sum(part.sum() for part in parts), tokens, {}
    scale = num_microbatches / step_global_batch_size * mpu.get_data_parallel_world_size(with_context_parallel=True)
    return sum(part.mean() for part in parts) * (1.0 if FAULT == "not_scaled" else scale), 1, {}
"""
CASES: dict[str, tuple[str, int, Normalisation, PolicyGradient | None]] = {
    "grpo": ("", 2, "document_tokens", PolicyGradient()),
    "grpo over tokens": (
        "--calculate-per-token-loss --rollout-temperature 0.8",
        2,
        "step_tokens",
        PolicyGradient(temperature=0.8),
    ),
    "sft": ("--loss-type sft_loss --calculate-per-token-loss", 1, "step_tokens", None),
}
FAULTS = {
    "advantages_ignored": r"advantages are ignored: every response has the same weight",
    "not_scaled": r"times the documented loss",
    "other_mean": r"the mean over all target tokens|times the documented loss",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_materials(tmp_path_factory.mktemp("materials"))
    package = folder / "slime"
    for name, text in {"utils/arguments.py": OPTIONS, "backends/megatron_utils/loss.py": LOSS}.items():
        (package / name).parent.mkdir(parents=True)
        (package / name).write_text(text)
    (package / "backends" / "megatron_utils" / "__init__.py").write_text("raise ImportError('patches Megatron')\n")
    return folder


def rehearse(server: ForkServer, folder: Path, watch: Path, case: str, fault: str = "") -> dict[str, str]:
    """Compute the loss of a step, and return the failures of what is judged of it."""
    options, ranks, mean, policy = CASES[case]
    watch.mkdir()
    environ = {
        "PLANTED_FAULT": fault,
        "SLIME_TREE": str(folder),
        "ATTNCHECK_DOCUMENTS": str(folder / "documents.json"),
        "ATTNCHECK_STEPS": "1",
        "ATTNCHECK_WATCH": str(watch),
        "RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
    }
    argv = [str(SCRIPT), "--hf-checkpoint", str(folder / "model"), "--micro-batch-size", "2", "--lr", "5e-3"]
    argv += ["--global-batch-size", str(6 * ranks), "--num-layers", "36", "--entropy-coef", "0.1", *options.split()]
    ended = server.run(argv, environ, watch, ranks)
    assert set(ended["statuses"]) == {0}, ended
    results = judge(folder, watch, Objective("assistant", (mean,), "the test", policy), checks=("loss", "gradients"))
    assert {judge_result(result) for result in results.values()} <= {"pass", "fail"}, results
    return list_failures(results)


def mark(names: Iterable[str], quick: str) -> list[Any]:
    """Return the names, all but one of them for nightly runs."""
    return [name if name == quick else pytest.param(name, marks=pytest.mark.nightly) for name in names]


@pytest.mark.parametrize("case", mark(CASES, "grpo over tokens"))
def test_slimes_own_loss_passes(case: str, server: ForkServer, folder: Path, tmp_path: Path) -> None:
    assert rehearse(server, folder, tmp_path / "watch", case) == {}


@pytest.mark.parametrize("fault", mark(FAULTS, "not_scaled"))
def test_a_fault_of_the_trees_loss_is_named(fault: str, server: ForkServer, folder: Path, tmp_path: Path) -> None:
    failures = rehearse(server, folder, tmp_path / "watch", "grpo", fault)
    assert set(failures) == {"ATN433"} and re.search(FAULTS[fault], failures["ATN433"]), failures
