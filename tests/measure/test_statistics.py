"""Timing: what is counted, how sure a median is, and a clock that neither a cold start nor a second call deceives."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest

from attncheck.core.cases import Case, iter_segments, visible_bounds
from attncheck.core.results.timings import Timing
from attncheck.measure.flops import count_flops, count_visible_pairs
from attncheck.measure.statistics import half_width, median_interval, quantile

PLAIN = Case("bench", (64,), (64,))
CASES = [
    PLAIN,
    replace(PLAIN, causal=False),
    replace(PLAIN, window_size=(7, 0)),
    replace(PLAIN, causal=False, window_size=(7, 3)),
    replace(PLAIN, seqlens_q=(9,), seqlens_k=(40,)),
    replace(PLAIN, seqlens_q=(40,), seqlens_k=(9,)),
    replace(PLAIN, seqlens_q=(9,), seqlens_k=(40,), alignment="top_left"),
    replace(PLAIN, seqlens_q=(5, 0, 17), seqlens_k=(5, 0, 17), layout="packed"),
    replace(PLAIN, seqlens_q=(5, 64), seqlens_k=(9, 64), layout="left_padded", window_size=(3, 0)),
]


@pytest.mark.parametrize("case", CASES)
def test_visible_pairs_are_those_of_the_mask(case: Case) -> None:
    visible_pairs = 0
    for s in iter_segments(case):
        q, k = s.q_stop - s.q_start, s.k_stop - s.k_start
        low, high = visible_bounds(case, q, k)
        visible_pairs += sum(low <= j - i <= high for i in range(q) for j in range(k))
    assert count_visible_pairs(case) == visible_pairs


def test_operations_are_those_of_flash_attentions_own_benchmark() -> None:
    case = Case("bench", (8192,), (8192,), num_heads=32, num_kv_heads=8, head_dim=128, v_head_dim=128)
    theirs = 4 * 8192**2 * 32 * 128 // 2  # which takes half of the square for a causal mask
    assert count_flops(replace(case, backward=False)) == pytest.approx(theirs, rel=2e-4)
    assert count_flops(case) == pytest.approx(3.5 * theirs, rel=2e-4)
    narrow = replace(case, head_dim=192, v_head_dim=128, causal=False, backward=False)
    assert count_flops(narrow) == 8192**2 * 32 * 2 * (192 + 128)


@pytest.mark.parametrize(("count", "low"), [(1, 0), (5, 0), (6, 0), (10, 1), (20, 5), (50, 17), (100, 39)])
def test_the_interval_of_the_median_is_the_tables(count: int, low: int) -> None:
    """The ranks of Le Boudec's table A.1: 10 → 2 and 9, 20 → 6 and 15, 50 → 18 and 33, 100 → 40 and 61."""
    assert median_interval(range(count)) == (low, count - 1 - low)


@pytest.mark.parametrize("count", [6, 11, 40, 1200])
def test_the_interval_holds_the_true_median_as_often_as_it_says(count: int) -> None:
    chance = random.Random(3)
    tries = 600
    hits = 0
    for _ in range(tries):
        low, high = median_interval([chance.expovariate(1.0) for _ in range(count)])
        hits += low <= 0.6931 <= high
    assert hits / tries > 0.93


def test_quantiles_and_the_half_width() -> None:
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([0.0, 10.0], 0.1) == pytest.approx(1.0)
    assert half_width([1.0] * 10) == 0.0
    assert half_width([1.0] * 5 + [3.0] * 5) == 1.0


def test_what_counts_as_reproducible() -> None:
    plain = Timing("b", PLAIN, "forward_backward", "default", "ok", repeats=8)
    assert plain.reproducible
    assert not replace(plain, varied=("dq",)).reproducible
    assert not replace(plain, deterministic_switch="deterministic=True").reproducible, (
        "eight calls prove less than the switch"
    )
    assert replace(plain, deterministic_switch="deterministic=True", mode="deterministic").reproducible
    assert replace(plain, deterministic_switch="deterministic=True", passes="forward").reproducible
    assert not replace(plain, outcome="raised").reproducible


def test_the_clock_leaves_the_cold_start_out() -> None:
    pytest.importorskip("torch")
    from attncheck.measure.worker.clock import Budget, time_calls

    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1
        time.sleep(0.1 if calls <= 2 else 0.004)

    call_times = time_calls(call, "cpu", Budget(3.0, 3.0))
    assert call_times.settled
    assert 4.0 <= call_times.median_ms < 8.0
    assert max(call_times.times_ms) < 90.0
    assert call_times.is_precise == (half_width(call_times.times_ms) <= 0.01 * call_times.median_ms)


def test_the_clock_stops_in_time_and_says_that_it_knows_too_little() -> None:
    pytest.importorskip("torch")
    from attncheck.measure.worker.clock import Budget, time_calls

    chance = random.Random(1)
    began = time.monotonic()
    call_times = time_calls(lambda: time.sleep(chance.choice((0.002, 0.02))), "cpu", Budget(0.5, 1.0))
    assert time.monotonic() - began < 30
    assert not call_times.is_precise
    assert half_width(call_times.times_ms) > 0.1 * call_times.median_ms


def test_no_more_calls_are_made_than_the_interval_needs() -> None:
    pytest.importorskip("torch")
    from attncheck.measure.worker.clock import Budget, time_calls

    call_times = time_calls(lambda: time.sleep(0.02), "cpu", Budget(2.0, 30.0))
    assert call_times.is_precise
    assert len(call_times.times_ms) <= 60


def count_operators(backend: str, case: Case) -> dict[str, int]:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    from attncheck.attention import backends
    from attncheck.attention.inputs import make_inputs
    from attncheck.measure.worker.training_calls import training_step_calls

    counts: dict[str, int] = {}

    class Listener(TorchDispatchMode):
        def __torch_dispatch__(self, func: object, types: object, args: object = (), kwargs: object = None) -> object:
            counts[str(func)] = counts.get(str(func), 0) + 1
            return func(*args, **(kwargs or {}))  # type: ignore[operator, misc, arg-type]

    run = backends.load()[0][backend].run
    inputs = make_inputs(case, "cpu")
    with training_step_calls():
        first = run(inputs, False)
        with Listener():
            second = run(inputs, False)
    assert first.lse is second.lse is None
    assert torch.equal(first.out, second.out)
    assert torch.equal(run(inputs, False).out, second.out)
    return counts


def test_a_timed_call_makes_no_second_forward_for_the_lse() -> None:
    pytest.importorskip("torch")
    counts = count_operators("sdpa_flash", replace(PLAIN, backward=False))
    assert sum(count for name, count in counts.items() if "flash_attention_for_cpu" in name) == 1
    assert not any("equal" in name for name in counts)


@pytest.mark.parametrize("backend", ["eager", "sdpa_math", "sdpa_flash"])
def test_a_timed_call_makes_no_mask(backend: str) -> None:
    pytest.importorskip("torch")
    counts = count_operators(backend, replace(PLAIN, window_size=(7, 0)))
    assert not any("arange" in name for name in counts)


def test_the_device_does_plain_work() -> None:
    pytest.importorskip("torch")
    from attncheck.measure.worker.device_rates import measure_rates

    device_rates = measure_rates("cpu", "float32")
    assert device_rates.matmul_tflops == pytest.approx(2 * device_rates.matmul_size**3 / device_rates.matmul_ms / 1e9)
    assert device_rates.matmul_tflops > 0.001
    assert device_rates.copy_gb_per_s > 0.1
