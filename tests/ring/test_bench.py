"""`attncheck bench --ring-size`: what is timed, what is concluded from it, and the command as a user meets it."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from attncheck.core.facts import Known
from attncheck.core.io.errors import BadUsage
from attncheck.core.report import Report
from attncheck.core.results.ring import RingSection
from attncheck.core.results.ring_timings import LOCAL_FLASH, LOCAL_FLASH_FULL, Clocks, RingRates, RingTiming, Stopwatch
from attncheck.core.verdicts import Answer, MeasuredOn, Verdict
from attncheck.measure.worker import gpu_clocks
from attncheck.report.formats import text
from attncheck.report.schema import make_report_schema
from attncheck.ring import bench
from tests import snapshots
from tests.conftest import Run, without_progress

WORKLOAD = bench.Workload(8192, 32, 8, 128)
RATES = RingRates(700.0, 4300.0, 360.0)
ITERATIONS = {  # eight H200, forward and forward + backward
    LOCAL_FLASH: (618.3, 162.3),
    LOCAL_FLASH_FULL: (312.0, 82.0),
    "ring_flash_attn": (41.0, 10.82),
    "zigzag_ring_flash_attn": (67.7, 18.81),
    "stripe_flash_attn": (60.06, 17.70),
}


def make_timing(backend: str, passes: str, iterations: float, **fields: Any) -> RingTiming:
    watch = Stopwatch(1e3 / iterations, 0.0, 0.0, 0.005, 100, 3, 1.01, silent_ms=0.97e3 / iterations)
    return RingTiming(backend, "batch", passes, 8, 8192, stopwatch=watch, iterations_per_s=iterations, **fields)  # type: ignore[arg-type]


def make_timings(**answers: Answer) -> tuple[RingTiming, ...]:
    """Return the timings of eight H200, completed; every scheme is right unless `answers` say otherwise."""
    timings = [
        make_timing(backend, passes, speed)
        for backend, speeds in ITERATIONS.items()
        for passes, speed in zip(("forward", "forward_backward"), speeds)
    ]
    verdicts = [
        Verdict("parity", name, "case", "bench", answers.get(name, "pass"), "") for name in ITERATIONS if "_" in name
    ]
    return bench.complete_timings(timings, RATES, WORKLOAD, verdicts)


def get_timing(timings: tuple[RingTiming, ...], backend: str, passes: str = "forward_backward") -> RingTiming:
    return next(t for t in timings if t.backend == backend and t.passes == passes)


def test_efficiency_is_that_of_the_readme() -> None:
    timings = make_timings()
    assert get_timing(timings, "zigzag_ring_flash_attn").efficiency == pytest.approx(0.927, abs=0.001)
    assert get_timing(timings, "ring_flash_attn", "forward").efficiency == pytest.approx(0.530, abs=0.001)
    assert get_timing(timings, LOCAL_FLASH).efficiency == 0.0
    zigzag = get_timing(timings, "zigzag_ring_flash_attn")
    assert 0.95 < zigzag.achievable < 1.0 and zigzag.reached == pytest.approx(
        zigzag.efficiency / zigzag.achievable, abs=1e-3
    )
    assert get_timing(timings, "ring_flash_attn").limited_by == "uneven causal work"
    assert 0.0 <= zigzag.overlapped <= 1.0


def test_the_fastest_correct_scheme_is_told_and_a_wrong_one_never() -> None:
    assert bench.draw_conclusions(make_timings())[0].startswith(
        "batch: zigzag_ring_flash_attn is the fastest correct scheme"
    )
    for answer in ("fail", "warn", "lost"):
        lines = bench.draw_conclusions(make_timings(zigzag_ring_flash_attn=answer))
        assert lines[0].startswith("batch: stripe_flash_attn is the fastest correct scheme")
    all_wrong = make_timings(zigzag_ring_flash_attn="fail", stripe_flash_attn="fail", ring_flash_attn="lost")
    assert bench.draw_conclusions(all_wrong) == ()


def test_noise_forbids_a_conclusion() -> None:
    noisy = tuple(replace(t, stopwatch=replace(t.stopwatch, interval=0.08)) for t in make_timings())
    line = bench.draw_conclusions(noisy)[0]
    assert "zigzag_ring_flash_attn and stripe_flash_attn are within the noise of each other" in line


def test_a_gate_opens_and_closes() -> None:
    assert not list(bench.iter_inefficiency_findings(make_timings(), 0.0))
    assert not list(bench.iter_inefficiency_findings(make_timings(), 0.9))
    closed = list(bench.iter_inefficiency_findings(make_timings(), 0.95))
    assert [finding.code for finding in closed] == ["ATN806"]
    assert "reaches 92.7 %, below --min-efficiency 95 %" in closed[0].message
    wrong = list(bench.iter_inefficiency_findings(make_timings(zigzag_ring_flash_attn="fail"), 0.9))
    assert wrong and "parity: fail" in " ".join(wrong[0].evidence)


def test_what_is_timed() -> None:
    items = bench.choose_items(WORKLOAD, uses_gpu=True)
    assert len(items) == len(set(items)) == 30
    assert items[0][0] == LOCAL_FLASH, "the local call first"
    strides = bench.choose_items(replace(WORKLOAD, sweep="heads-k-stride"), uses_gpu=True)
    assert {item[4] for item in strides if item[0] == bench.LLAMA3} == {1, 2, 4, 8}
    lengths = bench.choose_items(replace(WORKLOAD, sweep="seqlen"), uses_gpu=True)
    assert {item[3] for item in lengths} == set(bench.SWEEP_SEQLENS[True])
    only = bench.choose_items(replace(WORKLOAD, backends=("stripe_flash_attn",)), uses_gpu=True)
    assert {item[0] for item in only} == {LOCAL_FLASH, LOCAL_FLASH_FULL, "stripe_flash_attn"}


def test_the_shape_is_named_or_the_models_or_the_usual() -> None:
    snapshot = snapshots.h200()
    usual = bench.choose_workload(snapshot, uses_gpu=True)
    assert (usual.seqlen, usual.num_heads, usual.num_kv_heads, usual.head_dim) == (8192, 32, 8, 128)
    model = snapshots.with_model(snapshot, num_heads=Known(28), num_kv_heads=Known(4), head_dim=Known(128))
    assert bench.choose_workload(model, uses_gpu=True).num_heads == 28
    assert bench.choose_workload(model, uses_gpu=True).heads_k_stride == 4
    named = bench.choose_workload(model, True, bench.Request(seqlen=4096, num_heads=16))
    assert (named.seqlen, named.num_heads, named.num_kv_heads) == (4096, 16, 16)
    for refused in (
        bench.Request(num_heads=6, num_kv_heads=4),
        bench.Request(seqlen=4098),
        bench.Request(dtype="float32"),
    ):
        with pytest.raises(BadUsage):
            bench.choose_workload(snapshot, True, refused)


def test_clocks_tell_what_held_the_gpu_back() -> None:
    rows: list[tuple[float, ...]] = [
        (1980.0, 500.4, 50.0, 0.0),
        (1500.0, 699.0, 61.0, float(0x4)),
        (1980.0, 300.0, 55.0, float(0x1)),
    ]
    assert gpu_clocks.summarize_clocks(rows).throttled == ("power cap",)
    assert gpu_clocks.summarize_clocks(rows).sm_mhz_low == 1500 and gpu_clocks.summarize_clocks(rows).power_w == 699
    assert gpu_clocks.summarize_clocks([]) == Clocks()


def test_a_local_call_too_short_is_launch_bound_and_has_no_bound() -> None:
    short = [replace(t, achievable=0.0, stopwatch=replace(t.stopwatch, ms=t.stopwatch.ms / 50)) for t in make_timings()]
    verdicts = [Verdict("parity", name, "case", "bench", "pass", "") for name in ITERATIONS]
    zigzag = get_timing(bench.complete_timings(short, RATES, WORKLOAD, verdicts), "zigzag_ring_flash_attn", "forward")
    assert zigzag.achievable == 0.0 and zigzag.limited_by.startswith("launches")
    assert get_timing(tuple(short), LOCAL_FLASH, "forward").launch_bound


def test_from_where_on_communication_hides() -> None:
    line = bench.describe_break_even(make_timings(), RATES, WORKLOAD)
    assert line == ("communication is hidden by compute from about 472 tokens per rank (forward), 504 (backward)",)
    assert bench.describe_break_even(make_timings(), RingRates(), WORKLOAD) == ()


SMALL_RUN = ("bench", "--ring-size", "2", "--device", "cpu", "--seqlen", "64", "--backend", "zigzag_ring_flash_attn")
SMALL_SHAPE = ("--heads", "2", "--kv-heads", "1", "--head-dim", "32", "--no-communication")


@pytest.fixture(scope="module")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """Return one real run, reported as JSON: two gloo ranks, the genuine schedule, emulated kernels."""
    if importlib.util.find_spec("ring_flash_attn") is None:
        pytest.skip("ring-flash-attn is not installed")
    command = [sys.executable, "-m", "attncheck", *SMALL_RUN, *SMALL_SHAPE, "--format", "json"]
    folder = tmp_path_factory.mktemp("bench")
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def document(small_run: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return the report of that run."""
    report: dict[str, Any] = json.loads(small_run.stdout)
    return report


def test_a_ring_is_timed_for_real(document: dict[str, Any]) -> None:
    pytest.importorskip("jsonschema").validate(document, make_report_schema())
    assert document["command"] == "bench" and document["ring"]["measured_on"]["emulated"]
    timed = {(t["backend"], t["passes"]): t for t in document["ring"]["timings"] if t["table"] == "batch"}
    for passes in ("forward", "forward_backward"):
        local, ring = timed[LOCAL_FLASH, passes], timed["zigzag_ring_flash_attn", passes]
        assert 0 < local["stopwatch"]["ms"] < ring["stopwatch"]["ms"]
        share = 2 * local["stopwatch"]["ms"] / ring["stopwatch"]["ms"]
        assert ring["efficiency"] == pytest.approx(share, abs=1e-3)
        assert ring["correct"] == "pass" and ring["stopwatch"]["calls"] >= 3
        assert ring["achievable"] == 0.0, "plain torch has no roofline"
    assert document["ring"]["rates"]["copy_gb_per_s"] > 0 and document["ring"]["rates"]["link_gb_per_s"] > 0


def test_rows_of_a_ring_come_one_by_one(small_run: subprocess.CompletedProcess[str], document: dict[str, Any]) -> None:
    rows = without_progress(small_run.stderr).splitlines()
    shown = [t for t in document["ring"]["timings"] if t["backend"] != LOCAL_FLASH_FULL]
    assert len(rows) == len(shown) > 3
    for row, timing in zip(rows, shown):
        assert re.match(rf"\d+ of \d+ · {timing['backend']} · batch API, forward.* · 64 tokens a rank · ", row)
        assert f" · {timing['iterations_per_s']:.4g} iter/s ± " in row


def test_an_emulated_ring_recommends_nothing(document: dict[str, Any]) -> None:
    (conclusion,) = document["ring"]["conclusions"]
    assert conclusion.startswith("no scheme is recommended: plain torch replaces flash-attn's kernels")


def test_a_least_efficiency_is_not_asked_of_an_emulated_ring(attncheck: Run) -> None:
    done = attncheck(*SMALL_RUN, "--min-efficiency", "0.5")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("attncheck: min-efficiency applies to GPUs only: ")
    assert len(done.stderr.splitlines()) == 1


def test_more_than_n_devices_can_do_is_called_noise() -> None:
    possible = tuple(replace(t, reached=min(t.reached, 1.0)) for t in make_timings())
    timings = tuple(
        replace(t, efficiency=1.819, reached=1.4) if t.backend.startswith("zigzag") else t for t in possible
    )
    section = RingSection(MeasuredOn("cuda", "NVIDIA H200", "2.11.0", ring_size=8), timings=timings)
    section = replace(section, conclusions=bench.draw_conclusions(timings))
    rendered = text.render(Report("bench", snapshots.laptop(), sections={"ring": section}), False)
    assert "181.9" not in rendered and "140" not in rendered
    assert ">100 % is not a real efficiency: noise, ranks that share" in rendered
    assert "fastest correct scheme, at >100 % of flash / n (noise or overlap, not an efficiency)" in rendered
    assert "± half the 95 % interval of the median" in rendered
    usual = replace(section, timings=possible, conclusions=())
    assert ">100 %" not in text.render(Report("bench", snapshots.laptop(), sections={"ring": usual}), False)


def test_wrong_words_are_one_line(attncheck: Run) -> None:
    for arguments, message in (
        (("--seqlen", "65"), "must be at least 32 and divisible by 4"),
        (("--window", "100"), "--window cannot be used with --ring-size"),
        (("--sweep", "everything"), "--sweep"),
        (("--dtype", "fp32"), "ring-flash-attn supports only bf16 and fp16"),
        (("--heads", "6", "--kv-heads", "4"), "6 heads cannot be divided evenly among 4 kv heads"),
        (("--min-efficiency", "2"), "'--min-efficiency'"),
        (("--backend", "sdpa_math"), "on one device"),
    ):
        done = attncheck(*SMALL_RUN[:5], *arguments)
        assert done.returncode == 2, (arguments, done.stderr)
        assert message in done.stderr and "Traceback" not in done.stderr
    done = attncheck("bench", "--device", "cpu", "--min-efficiency", "0.5")
    assert done.returncode == 2 and "--min-efficiency is for --ring-size" in done.stderr
