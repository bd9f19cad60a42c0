"""USP by the genuine yunchang over real gloo ranks: right as it is, wrong with faults of its own kinds."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import chain

import pytest

from attncheck.attention.backend import Device
from attncheck.attention.backends import yunchang_usp
from attncheck.core.cases import Case, with_name
from attncheck.core.sharding import explain_indivisible, shard_ranges, usp_degrees
from attncheck.core.verdicts import FAIL_FACTOR, Run, budget_ratio, judge_run
from tests.plugins import write_plugin
from tests.ring.on_ranks import measure_items, run_items
from tests.wheels import fetch_wheel

pytest.importorskip("torch")
RANKS = 4  # two Ulysses groups of two, and rings of two across them
CPU = Device("cpu", torch=(99, 0), ranks=RANKS, emulated=True)
TENSORS = {"out", "dq", "dk", "dv"}
PLUGIN = """
from dataclasses import replace
from unittest import mock
from attncheck.attention.backends import yunchang_usp

def run(inputs, deterministic):
    import torch
    import yunchang.comm.all_to_all as exchange
    import yunchang.ring.zigzag_ring_flash_attn as ring
    original = {holder}.{name}
    {source}
    with mock.patch.object({holder}, "{name}", spoilt):
        return yunchang_usp.BACKEND.run(inputs, deterministic)

BACKEND = replace(yunchang_usp.BACKEND, name="{plugin}", run=run)
"""
# What is spoilt, how, and the tensors that must show it.
FAULTS: dict[str, tuple[str, str, str, set[str]]] = {
    "heads_in_turn": (
        "exchange",
        "all_to_all_4D",
        "spoilt = lambda x, *a, **k: original(x, *a, **k).roll(1, 2)",
        {"out"},
    ),
    "ring_forgets_a_step": (
        "ring",
        "update_out_and_lse",
        "spoilt = lambda out, lse, *a, **k: original(out, lse, *a, **k) if out is None else (out, lse)",
        {"out"},
    ),
    "backward_of_another_scale": (
        "ring",
        "zigzag_ring_flash_attn_backward",
        "spoilt = lambda *a, **k: tuple(2 * x for x in original(*a, **k))",
        {"dq", "dk", "dv"},
    ),
}


def make_cases() -> tuple[Case, ...]:
    """Return a row with GQA, one of another size in float16, one with softcap, and one whose ranks form a ring only."""
    dense = Case("dense", (256,), (256,), num_kv_heads=2, context_parallel_size=RANKS)
    batch = replace(dense, seqlens_q=(256, 256), seqlens_k=(256, 256), num_heads=8, num_kv_heads=4, dtype="float16")
    capped = replace(dense, softcap=20.0)
    single = replace(dense, num_kv_heads=1)
    return tuple(map(with_name, (dense, batch, capped, single)))


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a folder with the genuine package."""
    folder = tmp_path_factory.mktemp("packages")
    fetch_wheel("yunchang", "0.6.4").archive.extractall(folder)
    return str(folder)


@pytest.fixture(scope="module")
def runs(packages: str, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Run]:
    """Return all runs, of one group of ranks."""
    plugins = tmp_path_factory.mktemp("faults")
    for plugin, (holder, name, source, _) in FAULTS.items():
        write_plugin(plugins, plugin, PLUGIN.format(holder=holder, name=name, source=source, plugin=plugin))
    items = [("yunchang_usp", case.name) for case in make_cases()] + [(name, make_cases()[0].name) for name in FAULTS]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join((packages, str(plugins))))
        return measure_items(RANKS, items, make_cases())


@pytest.mark.parametrize("case", make_cases(), ids=lambda case: case.name)
def test_what_is_right_passes(case: Case, runs: dict[tuple[str, str], Run]) -> None:
    run = runs["yunchang_usp", case.name]
    assert judge_run(run).answer == "pass", judge_run(run)
    assert {score.tensor for score in run.scores} == TENSORS


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_seen_where_it_is(name: str, runs: dict[tuple[str, str], Run]) -> None:
    run = runs[name, make_cases()[0].name]
    assert run.outcome == "ok", run.reason
    wrong = {score.tensor for score in run.scores if budget_ratio(run.case, score) > FAIL_FACTOR}
    assert FAULTS[name][3] <= wrong, run.scores
    if "out" not in FAULTS[name][3]:
        assert "out" not in wrong


@pytest.mark.parametrize(
    ("ranks", "kv_heads", "degrees"), [(2, 4, (1, 2)), (4, 4, (2, 2)), (4, 1, (1, 4)), (8, 8, (4, 2)), (6, 2, (2, 3))]
)
def test_every_token_is_on_one_rank(ranks: int, kv_heads: int, degrees: tuple[int, int]) -> None:
    case = Case("row", (48 * ranks,), (48 * ranks,), num_heads=8, num_kv_heads=kv_heads, context_parallel_size=ranks)
    assert usp_degrees(case) == degrees and not explain_indivisible("usp", case)
    tokens = [list(chain(*shard_ranges("usp", case, rank))) for rank in range(ranks)]
    assert {len(part) for part in tokens} == {48} and sorted(chain(*tokens)) == list(range(48 * ranks))


@pytest.mark.nightly
def test_schemes_of_other_packages_are_timed_beside_the_ring(packages: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", packages)
    shape = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 32, "dtype": "bfloat16"}
    items = [
        ("yunchang_usp", "batch@forward_backward@64@0"),
        ("ulysses_flash_attn", "varlen@forward@64@0"),
        ("torch_context_parallel", "batch@forward@64@0"),
    ]
    events = run_items(
        2, items, task="attncheck.ring.worker.bench:bench", cases=[], shape=shape, seqlen=64, packings=[[64], [24, 40]]
    )
    usp, ulysses, torch_ring = (event.answer for event in events)
    assert usp["ms"] > 0 and ulysses["calls"] % 2 == 0, "whole cycles of packings"
    assert "CPU" in torch_ring, "refused in words, and the group goes on"


def test_what_it_refuses() -> None:
    plain = make_cases()[0]
    assert not yunchang_usp.refuse(plain, CPU)
    for changed, word in (
        ({"causal": False}, "causal"),
        ({"operands": "kvpacked"}, "separate"),
        ({"sinks": True}, "sinks"),
        ({"seqlens_q": (252,), "seqlens_k": (252,)}, "divisible"),
        ({"dropout": 0.1}, "dropout"),
    ):
        assert word in yunchang_usp.refuse(replace(plain, **changed), CPU)
    assert "--ring-size" in yunchang_usp.refuse(plain, replace(CPU, ranks=0))
