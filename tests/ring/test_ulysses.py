"""Ulysses over real gloo ranks: right as it is, and the faults of its family are seen in the tensors they spoil."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from attncheck.attention.backend import Device
from attncheck.attention.backends import ulysses_flash_attn, ulysses_sdpa
from attncheck.attention.calls import ulysses_heads
from attncheck.core.cases import Case, with_name
from attncheck.core.verdicts import FAIL_FACTOR, Run, budget_ratio, judge_run
from tests.plugins import write_plugin
from tests.ring.on_ranks import measure_items

pytest.importorskip("torch")
RANKS = 4
CPU = Device("cpu", torch=(99, 0), ranks=RANKS, emulated=True)
H200 = Device("cuda", "H200", (9, 0), (99, 0), ranks=RANKS)
SCHEMES = ("ulysses_sdpa", "ulysses_flash_attn")

HEAD = """
from dataclasses import replace
from unittest import mock
from attncheck.attention.backends import ulysses_sdpa
from attncheck.attention.calls import ulysses as genuine

def run(inputs, deterministic):
    with mock.patch.object({holder}, "{name}", {kind}(spoilt)):
        return ulysses_sdpa.BACKEND.run(inputs, deterministic)

"""
TAIL = """
BACKEND = replace(ulysses_sdpa.BACKEND, name="{name}", run=run)
"""
# What is spoilt, how, and the tensors that must show it; the others must stay right.
FAULTS: dict[str, tuple[str, str, str, set[str]]] = {
    "head_order": (
        "genuine._HeadsToTokens",
        "forward",
        "def spoilt(ctx, x, group):\n"
        "    ctx.group = group\n"
        "    return genuine.scatter_tokens(x, group).roll(x.shape[2], 2)",
        {"out"},
    ),
    "seq_order": (
        "genuine._TokensToHeads",
        "forward",
        "def spoilt(ctx, x, group):\n"
        "    ctx.group = group\n"
        "    return genuine.scatter_heads(x, group).roll(x.shape[1], 1)",
        {"out", "dq", "dk", "dv"},
    ),
    "bwd_seq_order": (
        "genuine._HeadsToTokens",
        "backward",
        "def spoilt(ctx, gradient):\n"
        "    return genuine.scatter_heads(gradient, ctx.group).roll(gradient.shape[1], 1), None",
        {"dq", "dk", "dv"},
    ),
    "bwd_head_order": (
        "genuine._TokensToHeads",
        "backward",
        "def spoilt(ctx, gradient):\n"
        "    return genuine.scatter_tokens(gradient, ctx.group).roll(gradient.shape[2], 2), None",
        {"dq", "dk", "dv"},
    ),
    "kv_repeated_in_turns": (
        "genuine",
        "_repeat_kv_heads",
        "def spoilt(x, times):\n    return x.repeat(1, 1, max(times, 1), 1)",
        {"out", "dq", "dk", "dv"},
    ),
    "repeats_gradient_lost": (
        "genuine",
        "_repeat_kv_heads",
        "def spoilt(x, times):\n"
        "    import torch\n"
        "    return torch.stack((x, *[x.detach()] * (times - 1)), 3).flatten(2, 3) if times > 1 else x",
        {"dk", "dv"},
    ),
}


def make_cases() -> tuple[Case, ...]:
    """Return a dense row, whose kv heads are repeated, a packed one, one with a kv head for each rank, and a window."""
    dense = Case("dense", (256,), (256,), num_kv_heads=2, context_parallel_size=RANKS)
    seqlens = (1, 100, 155)
    packed = replace(dense, family="packed", seqlens_q=seqlens, seqlens_k=seqlens, layout="packed")
    batch = replace(dense, seqlens_q=(256, 256), seqlens_k=(256, 256), num_heads=8, num_kv_heads=4, dtype="float16")
    return tuple(map(with_name, (dense, packed, batch, replace(dense, window_size=(40, 0)))))


def write_faults(folder: Path) -> str:
    """Write every fault as a plugin, and return the folder."""
    for name, (holder, function, source, _) in FAULTS.items():
        kind = "staticmethod" if "To" in holder else ""
        head = HEAD.format(holder=holder, name=function, kind=kind)
        write_plugin(folder, name, head + source + TAIL.format(name=name))
    return str(folder)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Run]:
    """Return all runs, of one group of ranks."""
    right = [(scheme, case.name) for scheme in SCHEMES for case in make_cases()]
    wrong = [(name, make_cases()[0].name) for name in FAULTS]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", write_faults(tmp_path_factory.mktemp("faults")))
        return measure_items(RANKS, right + wrong, make_cases())


@pytest.mark.parametrize("case", make_cases(), ids=lambda case: case.name)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_is_right_passes(scheme: str, case: Case, runs: dict[tuple[str, str], Run]) -> None:
    run = runs[scheme, case.name]
    assert judge_run(run).answer == "pass", judge_run(run)
    assert run.class_factor == 1.0 and {score.tensor for score in run.scores} == {"out", "dq", "dk", "dv"}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_seen_where_it_is(name: str, runs: dict[tuple[str, str], Run]) -> None:
    run = runs[name, make_cases()[0].name]
    assert run.outcome == "ok", run.reason
    wrong = {score.tensor for score in run.scores if budget_ratio(run.case, score) > FAIL_FACTOR}
    right = {score.tensor for score in run.scores if budget_ratio(run.case, score) <= 1.0}
    expected = FAULTS[name][3]
    assert expected <= wrong, run.scores
    if "out" not in expected or expected == {"out"}:
        assert right == {"out", "dq", "dk", "dv"} - expected


def test_what_it_refuses() -> None:
    plain = Case("dense", (256,), (256,), num_heads=12, num_kv_heads=4, context_parallel_size=RANKS)
    for changed, message in (
        ({"num_heads": 6, "num_kv_heads": 6}, "6 heads are not divisible by 4 ranks"),
        ({"num_heads": 12, "num_kv_heads": 3}, "3 kv heads are not divisible by 4 ranks, nor 4 ranks by them"),
        ({"seqlens_q": (255,), "seqlens_k": (255,)}, "not divisible by 4"),
        ({"operands": "kvpacked"}, "separate q, k and v"),
        ({"heads_k_stride": 1}, "no heads_k_stride"),
        ({"layout": "left_padded", "seqlens_q": (256, 8), "seqlens_k": (256, 8)}, "without padding"),
        ({"sinks": True}, "sinks"),
        ({"alibi": True}, "ALiBi"),
        ({"seqlens_k": (512,)}, "must be equal"),
    ):
        for module in (ulysses_sdpa, ulysses_flash_attn):
            assert message in module.refuse(replace(plain, **changed), CPU)
    for module in (ulysses_sdpa, ulysses_flash_attn):
        assert not module.refuse(plain, CPU) and not module.refuse(plain, H200)
        assert "--ring-size" in module.refuse(plain, replace(CPU, ranks=0))
    assert not ulysses_flash_attn.refuse(replace(plain, softcap=20.0), H200)
    assert "soft-cap" in ulysses_sdpa.refuse(replace(plain, softcap=20.0), H200)
    assert "16-bit" in ulysses_flash_attn.refuse(replace(plain, dtype="float32"), CPU)
    assert "CUDA only" in ulysses_flash_attn.refuse(plain, replace(CPU, emulated=False))


def test_a_mask_moves_cuda_to_another_kernel() -> None:
    packed = Case("packed", (100, 156), (100, 156), layout="packed", context_parallel_size=RANKS)
    assert ulysses_heads.sdpa_backend(packed, "cuda") == "EFFICIENT_ATTENTION" and not ulysses_sdpa.refuse(packed, H200)
    assert ulysses_heads.sdpa_backend(packed, "cpu") == "FLASH_ATTENTION"
