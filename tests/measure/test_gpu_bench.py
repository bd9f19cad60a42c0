"""On a machine with a GPU: times agree with the wall clock, rates with what is possible, the choice with parity."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

import pytest

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", autouse=True)
def gpu() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        if os.environ.get("ATTNCHECK_REQUIRE_GPU") == "1":
            pytest.fail("ATTNCHECK_REQUIRE_GPU=1, and there is no GPU")
        pytest.skip("no GPU here")


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    command = [sys.executable, "-m", "attncheck", "bench", "--device", "cuda", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def successful_timings(report: dict[str, Any]) -> list[dict[str, Any]]:
    return [timing for timing in report["bench"]["timings"] if timing["outcome"] == "ok"]


def test_every_backend_that_takes_the_shape_is_timed(report: dict[str, Any]) -> None:
    names = {(timing["backend"], timing["passes"]) for timing in successful_timings(report)}
    for backend in ("sdpa_flash", "sdpa_efficient", "sdpa_cudnn", "flex_attention"):
        assert {(backend, "forward"), (backend, "forward_backward")} <= names
    for timing in report["bench"]["timings"]:  # the score matrices of eager and MATH may not fit
        large = timing["backend"] in ("eager", "sdpa_math")
        assert timing["outcome"] in ("ok", "refused") or (large and timing["outcome"] == "skipped")


def test_times_hang_together(report: dict[str, Any]) -> None:
    medians = {(t["backend"], t["passes"], t["mode"]): t["median_ms"] for t in successful_timings(report)}
    for (backend, passes, mode), ms in medians.items():
        if passes == "forward_backward":
            assert ms > medians[backend, "forward", "default"], (backend, mode)
    for timing in successful_timings(report):
        assert timing["p10_ms"] <= timing["median_ms"] <= timing["p90_ms"]
        assert timing["interval_ms"] <= 0.01 * timing["median_ms"] or not timing["stable"]
        assert timing["peak_memory_bytes"] > 0
        assert not timing["flushed"], "8192 tokens do not fit into the L2 cache"
    settled = [timing["stable"] for timing in successful_timings(report)]
    assert sum(settled) >= 0.8 * len(settled)


def test_no_backend_is_faster_than_the_device(report: dict[str, Any]) -> None:
    rates = report["bench"]["rates"]
    assert rates["matmul_size"] == 8192
    assert rates["l2_bytes"] > 1 << 20
    for timing in successful_timings(report):
        assert 0 < timing["tflops"] < rates["matmul_tflops"], timing["backend"]
        assert timing["matmul_share"] == pytest.approx(timing["tflops"] / rates["matmul_tflops"], abs=1e-4)


def test_the_choice_is_right_and_nothing_right_is_faster(report: dict[str, Any]) -> None:
    for recommendation in report["bench"]["recommendations"]:
        candidates = [
            t for t in successful_timings(report) if t["passes"] == recommendation["passes"] and t["answer"] == "pass"
        ]
        if recommendation["wanted"] == "deterministic":
            candidates = [t for t in candidates if not t["varied"]]
        assert recommendation["choice"] or len(recommendation["tied"]) > 1
        names = (recommendation["choice"],) if recommendation["choice"] else recommendation["tied"]
        assert all(any(t["backend"] == name for t in candidates) for name in names)
        if recommendation["choice"] and recommendation["wanted"] == "correct":
            assert recommendation["ms"] == min(t["median_ms"] for t in candidates)


def test_sdpa_flash_varies_and_holds_when_switched(report: dict[str, Any]) -> None:
    flash = {
        t["mode"]: t for t in successful_timings(report) if t["backend"] == "sdpa_flash" and t["passes"] != "forward"
    }
    assert flash["default"]["varied"] == ["dq"], "FLASH adds dq up atomically"
    assert flash["deterministic"]["varied"] == []


def test_the_clocks_were_watched(report: dict[str, Any]) -> None:
    clocks = [timing["clocks"] for timing in successful_timings(report)]
    assert any(sample["sm_mhz_high"] > 0 for sample in clocks), "nvidia-smi tells nothing here"


def test_events_agree_with_the_wall_clock() -> None:
    import torch

    from attncheck.measure.worker.clock import BUDGETS, time_calls

    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    result = time_calls(lambda: torch.matmul(a, a), "cuda", BUDGETS["cuda"])
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(200):
        torch.matmul(a, a)
    torch.cuda.synchronize()
    wall = 1e3 * (time.perf_counter() - began) / 200
    assert result.median_ms == pytest.approx(wall, rel=0.1)
    assert result.host_ms < result.median_ms


def test_a_small_case_is_timed_with_an_empty_cache() -> None:
    import torch

    from attncheck.measure.worker.clock import BUDGETS, l2_bytes, time_calls

    x = torch.randn(1 << 22, device="cuda")  # 16 MiB
    cold = time_calls(lambda: x.sum(), "cuda", BUDGETS["cuda"], working_set=1 << 24)
    warm = time_calls(lambda: x.sum(), "cuda", BUDGETS["cuda"])
    if l2_bytes() > 1 << 25:
        assert cold.flushed
        assert not warm.flushed
    # The two times are not compared: emptying the cache also gives the host time to launch ahead.


def test_launching_is_told_from_computing() -> None:
    import torch

    from attncheck.measure.worker.clock import BUDGETS, time_calls

    x = torch.randn(16, device="cuda")

    def call() -> None:
        time.sleep(0.002)
        x.add_(0.0)

    slow_host = time_calls(call, "cuda", BUDGETS["cuda"])
    assert slow_host.host_ms > 0.9 * slow_host.median_ms
