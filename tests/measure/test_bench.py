"""`attncheck bench` as a user meets it, and its judging: planted backends, noise, a model's layers, wrong arguments."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from attncheck.core import codec
from attncheck.core.cases import Case, with_name
from attncheck.core.report import Report
from attncheck.core.results.bench import BenchSection
from attncheck.core.results.ring_timings import Clocks
from attncheck.core.results.timings import RATES_ITEM, DeviceRates, Recommendation, Timing
from attncheck.core.verdicts import BackendState, MeasuredOn, Run
from attncheck.measure import bench, discovery
from attncheck.measure.bench_shapes import Request
from attncheck.measure.recommendation import find_candidates, recommend_backends
from attncheck.report.formats import markdown, text
from attncheck.report.schema import make_report_schema
from attncheck.report.sections import bench as timings
from attncheck.workers.execution import ExecutionTarget
from attncheck.workers.pool import Event, Job
from tests.conftest import Run as Command
from tests.conftest import all_processes_gone
from tests.plugins import write_backend
from tests.snapshots import laptop

CASE = with_name(Case("bench", (8192,), (8192,), num_heads=32, num_kv_heads=8, head_dim=128, v_head_dim=128))
FLASH = Timing(
    "flash_attention_2", CASE, "forward_backward", "default", "ok", answer="pass", median_ms=6.14, p10_ms=6.1,
    p90_ms=6.2, interval_ms=0.02, calls=60, stable=True, host_ms=0.4, peak_memory_bytes=1 << 29, repeats=32,
    varied=("dq",), deterministic_switch="deterministic=True", reference_ms=(1.4, 1.41),
    clocks=Clocks(1700, 1980, 690, 61),
)  # fmt: skip
STRICT = replace(FLASH, mode="deterministic", median_ms=8.92, varied=(), peak_memory_bytes=1 << 30)
CUDNN = replace(
    FLASH, backend="sdpa_cudnn", median_ms=3.93, deterministic_switch="torch.use_deterministic_algorithms(True)"
)
FLEX = replace(FLASH, backend="flex_attention", median_ms=6.2, varied=(), deterministic_switch="")
MEASURED = (FLASH, STRICT, CUDNN, FLEX)


def recommend_by_requirement(*timings: Timing) -> dict[str, Recommendation]:
    return {
        recommendation.wanted: recommendation
        for recommendation in recommend_backends(timings, discovery.job_setting)
        if recommendation.passes == "forward_backward"
    }


def test_the_fastest_right_one_and_the_fastest_deterministic_one() -> None:
    recommendations = recommend_by_requirement(*MEASURED)
    assert recommendations["correct"].choice == "sdpa_cudnn"
    assert "1.56 × as fast as flash_attention_2" in recommendations["correct"].reason
    assert "CUDNN_ATTENTION" in recommendations["correct"].setting
    assert recommendations["deterministic"].choice == "flex_attention"
    assert recommendations["deterministic"].cost == pytest.approx(6.2 / 3.93)


def test_a_switched_mode_is_recommended_with_its_switch_and_what_it_costs() -> None:
    recommendation = recommend_by_requirement(FLASH, STRICT, CUDNN)["deterministic"]
    assert (recommendation.choice, recommendation.mode) == ("flash_attention_2", "deterministic")
    assert recommendation.setting == 'attn_implementation="flash_attention_2"\ndeterministic=True'
    assert recommendation.cost == pytest.approx(8.92 / 3.93)
    assert "2.27 × the time of the fastest correct one, 1024 MiB" in timings.describe_recommendation(recommendation)


@pytest.mark.parametrize("answer", ["fail", "warn", "lost", "skipped", "refused"])
def test_what_parity_did_not_pass_is_never_recommended(answer: Any) -> None:
    recommendations = recommend_by_requirement(
        replace(CUDNN, answer=answer, varied=(), deterministic_switch=""), FLASH, FLEX
    )
    assert "sdpa_cudnn" not in json.dumps(
        [recommendations["correct"].choice, recommendations["correct"].tied, recommendations["correct"].reason]
    )
    assert recommendations["deterministic"].choice == "flex_attention"


def test_what_is_right_in_one_case_of_a_model_only_is_not_recommended() -> None:
    window = replace(CASE, window_size=(100, 0), name="window")
    layers = [replace(timing, layers=5) for timing in MEASURED]
    windows = [replace(t, case=window, median_ms=1.0) for t in MEASURED if t.backend != "sdpa_cudnn"]
    recommendations = recommend_by_requirement(
        *layers, *windows, replace(CUDNN, case=window, outcome="refused", answer="refused")
    )
    assert recommendations["correct"].choice in ("", "flash_attention_2")
    assert recommendations["correct"].ms == pytest.approx(5 * 6.14 + 1.0)


def test_bits_that_hold_by_chance_do_not_make_a_backend_deterministic() -> None:
    lucky = replace(CUDNN, varied=())  # eight calls alike, and its backward needs a switch that it does not have
    assert recommend_by_requirement(lucky, FLASH, STRICT)["deterministic"].choice == "flash_attention_2"
    broken = replace(STRICT, varied=("dk",))
    assert (
        recommend_by_requirement(FLASH, broken)["deterministic"].reason == "no backend is correct and reproducible here"
    )


@pytest.mark.parametrize(
    ("other", "tied"),
    [
        (replace(FLEX, median_ms=6.15), True),  # within its interval
        (replace(FLEX, median_ms=6.5), False),
        (replace(FLEX, median_ms=6.5, interval_ms=0.6), True),  # loosely known
        (replace(FLEX, median_ms=6.3, stable=False), True),  # never settled
        (replace(FLEX, median_ms=6.5, reference_ms=(1.4, 1.54)), True),  # the device had slowed down
        (replace(FLEX, median_ms=9.0, reference_ms=(1.4, 1.54)), False),
    ],
)
def test_no_choice_where_noise_exceeds_the_difference(other: Timing, tied: bool) -> None:
    recommendation = recommend_by_requirement(FLASH, replace(FLASH, backend="sdpa_flash", median_ms=30.0), other)[
        "correct"
    ]
    assert (recommendation.choice == "") == tied
    if tied:
        assert recommendation.tied == ("flash_attention_2", "flex_attention")
        assert (
            "no choice, within the noise of each other: flash_attention_2 6.14 ms"
            in timings.describe_recommendation(recommendation)
        )


def test_one_backend_in_two_modes_is_no_tie() -> None:
    assert recommend_by_requirement(FLASH, replace(STRICT, median_ms=6.15))["correct"].choice == "flash_attention_2"


def test_nothing_to_choose_from() -> None:
    assert (
        recommend_by_requirement(replace(FLASH, outcome="died", answer="lost"))["correct"].reason
        == "no backend is correct here"
    )
    assert find_candidates([], "correct") == []


def make_report(*timings: Timing) -> Any:
    states = tuple(BackendState(name, "", "") for name in dict.fromkeys(timing.backend for timing in timings))
    runs = tuple(Run(t.backend, t.case, t.outcome, t.reason) for t in timings)
    rates = DeviceRates("bfloat16", 8192, 1.4, 785.0, 4100.0, 60 << 20)
    return bench.make_report(
        laptop(), states, runs, timings, rates, MeasuredOn("cuda", "NVIDIA H200", "2.11.0", seconds=91.0)
    )


def get_section(report: Report) -> BenchSection:
    section = report.section(BenchSection)
    assert section is not None
    return section


def test_rates_are_arithmetic_over_what_was_measured() -> None:
    timing = get_section(make_report(*MEASURED)).timings[2]
    assert timing.tflops == pytest.approx(3.5 * 2 * 8192 * 8193 * 32 * 128 / 3.93e9, rel=1e-3)
    assert timing.matmul_share == pytest.approx(timing.tflops / 785.0, rel=1e-3)


@pytest.mark.parametrize("width", [40, 60, 80, 110])
def test_the_table_fits_the_terminal(width: int) -> None:
    bench_report = make_report(
        *MEASURED, replace(CUDNN, backend="sdpa_math", outcome="died", reason="SIGSEGV", answer="lost")
    )
    shown = text.format_blocks(timings.blocks(bench_report, get_section(bench_report)), False, width)
    columns = [line for line in shown if len(line.head) > 2]
    lines = ["".join(text for text, _ in line.head) for line in columns]
    assert len(lines) == 4
    assert max(map(len, lines)) <= max(width, 49)  # name, time and parity are always told
    assert all("pass" in line for line in lines)


def test_the_text_says_what_matters() -> None:
    rendered = text.render(make_report(replace(FLASH, host_ms=6.0), STRICT, CUDNN, replace(FLEX, stable=False)), True)
    assert "NVIDIA H200 · torch 2.11.0 · 91 s" in rendered
    assert "8192³ matrix product in bf16 785 TFLOP/s · copy 4100 GB/s" in rendered
    assert "clocks 1700–1980 MHz · up to 690 W and 61 °C · not throttled" in rendered
    assert "\nbatch 1, seqlen 8192, heads 32/8, head_dim 128, bf16, causal\n" in rendered
    assert "did not settle in the time allowed: flex_attention" in rendered
    assert "limited by kernel launches" in rendered
    assert "fastest correct backend, forward + backward: sdpa_cudnn, 3.930 ms" in rendered


def make_cpu_report(*timings: Timing) -> Report:
    states = tuple(BackendState(name, "", "") for name in dict.fromkeys(timing.backend for timing in timings))
    runs = tuple(Run(t.backend, t.case, t.outcome, t.reason) for t in timings)
    return bench.make_report(laptop(), states, runs, timings, DeviceRates(), MeasuredOn("cpu", "CPU", "2.13.0+cpu"))


def test_a_cpu_gives_an_order_and_no_recommendation() -> None:
    report = make_cpu_report(*MEASURED)
    for item in get_section(report).recommendations:
        assert item.order_only and item.setting == ""
        assert timings.describe_recommendation(item).startswith(f"fastest {item.wanted} backend on this CPU, ")
    for name, rendered in (("text", text.render(report, False)), ("markdown", markdown.render(report, False))):
        assert "no recommendation: a CPU was timed" in rendered, name
        assert "attn_implementation=" not in rendered and "Recommended" not in rendered, name
    measured_on_gpu = text.render(make_report(*MEASURED), False)
    assert "no recommendation" not in measured_on_gpu and "on this CPU" not in measured_on_gpu
    assert "attn_implementation=" in measured_on_gpu


def test_the_sign_of_the_interval_means_nothing_else() -> None:
    tied = make_report(FLASH, replace(FLEX, median_ms=6.15))
    rendered = text.render(tied, False)
    assert "± half the 95 % interval of the median" in rendered
    (line,) = (line for line in rendered.splitlines() if line.startswith("Fastest correct backend"))
    assert "flash_attention_2 6.14 ms (off by up to 1.0 %)" in line and "±" not in line


def test_more_than_the_device_can_do_is_called_noise() -> None:
    def render(share: float) -> str:
        section = get_section(make_report(*MEASURED))
        timed = tuple(replace(timing, matmul_share=share) for timing in section.timings)
        return text.render(Report("bench", laptop(), sections={"bench": replace(section, timings=timed)}), False)

    assert ">100 %" in render(1.819) and "181.9" not in render(1.819)
    assert ">100 % of matmul is not a real efficiency: noise" in render(1.819)
    assert "100.0 %" in render(1.0004) and ">100 %" not in render(1.0004)
    assert "not a real efficiency" not in render(0.5)


def test_throttling_is_said() -> None:
    throttled = replace(FLASH, clocks=Clocks(1200, 1980, 700, 84, ("power cap", "heat")))
    assert "clocks 1200–1980 MHz · up to 700 W and 84 °C · throttled by power cap, heat" in text.render(
        make_report(throttled, STRICT), False
    )


def test_markdown_is_a_table_that_survives_odd_texts() -> None:
    awkward = replace(CUDNN, backend="sdpa_math", outcome="raised", reason="a|b\n`c`", answer="fail")
    lines = markdown.render(make_report(*MEASURED, awkward), False).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len({line.replace("\\|", "").count("|") for line in table}) == 1
    assert any("| sdpa_cudnn | 3.930 | 0.5 % |" in line for line in table)
    assert "Fastest correct backend, forward + backward: sdpa_cudnn" in "\n".join(lines)
    assert any(line.startswith("### ATN604 error") for line in lines)


# The command itself.

SMALL_RUN = ("bench", "--device", "cpu", "--seqlen", "128")


def run_json(attncheck: Command, *arguments: str, code: int = 0, **options: Any) -> dict[str, Any]:
    done = attncheck(*arguments, "--format", "json", timeout=400, **options)
    assert done.returncode == code, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def recommendations_by_passes(report: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(entry["passes"], entry["wanted"]): entry for entry in report["bench"]["recommendations"]}


@pytest.mark.nightly
def test_backends_are_timed_here_on_the_shape_that_flags_make(attncheck: Command, marker: str) -> None:
    pytest.importorskip("torch")
    arguments = (
        *("bench", "--device", "cpu", "--packed", "64,32", "--heads", "6", "--kv-heads", "3", "--head-dim", "32"),
        *("--dtype", "fp16", "--full", "--window", "9"),
        *("--backend", "eager", "--backend", "sdpa_math", "--backend", "sdpa_cudnn"),
    )
    report = run_json(attncheck, *arguments)
    pytest.importorskip("jsonschema").validate(report, make_report_schema())
    assert report["command"] == "bench"
    assert report["findings"] == []
    timed = [timing for timing in report["bench"]["timings"] if timing["outcome"] == "ok"]
    assert {(t["backend"], t["passes"]) for t in timed} == {
        (name, passes) for name in ("eager", "sdpa_math") for passes in ("forward", "forward_backward")
    }
    for timing in timed:
        assert timing["answer"] == "pass"
        assert 0 < timing["p10_ms"] <= timing["median_ms"] <= timing["p90_ms"]
        assert timing["calls"] >= 10
        assert len(timing["reference_ms"]) == 2
        assert timing["tflops"] > 0
        case = timing["case"]
        assert (case["layout"], case["seqlens_q"], case["num_heads"], case["num_kv_heads"]) == (
            "packed",
            [64, 32],
            6,
            3,
        )
        assert (case["head_dim"], case["v_head_dim"], case["dtype"], case["causal"]) == (32, 32, "float16", False)
        assert case["window_size"] == [8, 8]
        assert case["backward"] == (timing["passes"] == "forward_backward")
    assert {t["outcome"] for t in report["bench"]["timings"] if t["backend"] == "sdpa_cudnn"} == {"refused"}
    assert report["bench"]["rates"]["matmul_tflops"] > 0
    assert len(report["bench"]["recommendations"]) == 4


@pytest.mark.nightly
def test_rows_come_while_the_next_is_timed(tmp_path: Path, marker: str) -> None:
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "attncheck", "bench", "--device", "cpu", "--seqlen", "32", "--passes", "forward"]
    command += ["--backend", "eager", "--backend", "sdpa_math", "--backend", "sdpa_cudnn"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert process.stdout is not None and process.stderr is not None
    first = process.stderr.readline()
    assert process.poll() is None and not select.select([process.stdout], [], [], 0)[0], "the table comes at the end"
    stdout, rest = process.communicate(timeout=200)
    lines = [first, *rest.splitlines()]
    assert len(lines) == 2, "a refusal is no row"
    for line, name in zip(lines, ("eager", "sdpa_math")):
        assert re.match(rf"\d of 4 · {name} · forward · [\d.]+ ms ± [\d.]+ %( !)? · parity pass", line), line
    assert [line.split()[0] for line in stdout.splitlines() if "  pass" in line] and "of 4 ·" not in stdout


HASTY = """
def run(inputs, deterministic):
    from attncheck.attention.backend import Outputs
    if not inputs.case.backward:
        return Outputs(inputs.q)
    return Outputs(inputs.q, None, inputs.q, inputs.k, inputs.v)
"""


MORTAL = """
calls = 0
def run(inputs, deterministic):
    global calls
    calls += 1
    if calls > 20:
        {end}
    return right(inputs, deterministic)
"""


def test_what_is_wrong_dies_or_raises_is_never_recommended_and_costs_nobody_else(
    attncheck: Command, tmp_path: Path, marker: str
) -> None:
    """Planted: one that is fast and wrong, one that dies while it is timed, one that raises."""
    pytest.importorskip("torch")
    write_backend(tmp_path / "site", "hasty", HASTY)
    write_backend(tmp_path / "site", "mortal", MORTAL.format(end="os.abort()"))
    environment = write_backend(tmp_path / "site", "tires", MORTAL.format(end='raise ValueError("tired")'))
    names = ("hasty", "mortal", "tires", "sdpa_math")
    backends = (option for name in names for option in ("--backend", name))
    report = run_json(attncheck, *SMALL_RUN, "--passes", "forward", *backends, code=1, env=environment)
    by_name = {timing["backend"]: timing for timing in report["bench"]["timings"]}
    assert {name: timing["outcome"] for name, timing in by_name.items()} == {
        "hasty": "ok",
        "mortal": "died",
        "tires": "raised",
        "sdpa_math": "ok",
    }
    assert by_name["hasty"]["median_ms"] < by_name["sdpa_math"]["median_ms"] and by_name["hasty"]["answer"] == "fail"
    assert by_name["tires"]["reason"] == "while it was timed: ValueError: tired"
    assert {recommendation["choice"] for recommendation in report["bench"]["recommendations"]} == {"sdpa_math"}
    findings = {finding["subject"]: finding for finding in report["findings"]}
    codes = {name: finding["code"] for name, finding in findings.items()}
    assert codes == {"hasty": "ATN601", "mortal": "ATN604", "tires": "ATN604"}
    assert "SIGABRT" in json.dumps(findings["mortal"])
    assert "hasty" not in json.dumps(report["bench"]["recommendations"])
    assert not any(fix["kind"] in ("command", "advice") for fix in findings["hasty"]["fixes"])


@pytest.mark.nightly
def test_the_fastest_right_one_that_varies_is_never_the_deterministic_one(
    attncheck: Command, tmp_path: Path, marker: str
) -> None:
    pytest.importorskip("torch")
    source = """
    from attncheck.attention.backends import eager
    calls = 0
    def run(inputs, deterministic):
        global calls
        calls += 1
        answer = eager.run(inputs, deterministic)
        if answer.dv is not None and calls % 3 == 0:
            answer.dv[0, 3, 0, 5] *= 1.01
        return answer
    MORE = {'noise': 'eager'}
    """
    arguments = (*SMALL_RUN, "--passes", "forward+backward", "--backend", "loose", "--backend", "sdpa_math")
    report = run_json(attncheck, *arguments, env=write_backend(tmp_path / "site", "loose", source))
    varying = next(timing for timing in report["bench"]["timings"] if timing["backend"] == "loose")
    assert (varying["answer"], varying["varied"]) == ("pass", ["dv"])
    deterministic = recommendations_by_passes(report)["forward_backward", "deterministic"]  # whichever is the faster
    assert deterministic["choice"] == "sdpa_math"
    assert "loose" not in json.dumps(deterministic)


@pytest.mark.nightly
def test_a_jittery_backend_is_not_told_apart_from_a_steady_one(attncheck: Command, tmp_path: Path, marker: str) -> None:
    pytest.importorskip("torch")
    folder = tmp_path / "site"
    jitter = """
    import itertools
    calls = itertools.count()
    def run(inputs, deterministic):
        time.sleep(0.024 if next(calls) % 2 else 0.004)  # half and half: the median may be anywhere between
        return right(inputs, deterministic)
    """
    steady = """
    def run(inputs, deterministic):
        time.sleep(0.014)
        return right(inputs, deterministic)
    """
    write_backend(folder, "jittery", jitter)
    environment = write_backend(folder, "steady", steady)
    arguments = (*SMALL_RUN, "--passes", "forward", "--backend", "jittery", "--backend", "steady")
    report = run_json(attncheck, *arguments, env=environment)
    jittery = next(timing for timing in report["bench"]["timings"] if timing["backend"] == "jittery")
    assert not jittery["stable"]
    for recommendation in report["bench"]["recommendations"]:
        assert recommendation["choice"] == ""
        assert set(recommendation["tied"]) == {"jittery", "steady"}


@pytest.mark.nightly
def test_a_model_is_timed_layer_by_layer(attncheck: Command, tmp_path: Path, marker: str) -> None:
    pytest.importorskip("torch")
    config = {
        "model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "num_attention_heads": 4, "hidden_size": 128,
        "num_key_value_heads": 2, "head_dim": 32, "num_hidden_layers": 6, "max_position_embeddings": 96,
        "sliding_window": 32, "torch_dtype": "float32", "attn_logit_softcapping": 50.0,
        "layer_types": ["sliding_attention"] * 4 + ["full_attention"] * 2,
    }  # fmt: skip
    (tmp_path / "gemma").mkdir()
    (tmp_path / "gemma" / "config.json").write_text(json.dumps(config))
    arguments = (
        "bench",
        "gemma",
        "--device",
        "cpu",
        "--passes",
        "forward",
        "--backend",
        "eager",
        "--backend",
        "sdpa_math",
    )
    report = run_json(attncheck, *arguments)
    eager = {tuple(t["case"]["window_size"]): t for t in report["bench"]["timings"] if t["backend"] == "eager"}
    assert {window: timing["layers"] for window, timing in eager.items()} == {(-1, -1): 2, (31, 0): 4}
    assert all(t["case"]["seqlens_q"] == [96] and t["case"]["dtype"] == "float32" for t in eager.values())
    best = recommendations_by_passes(report)["forward", "correct"]
    assert best["choice"] == "eager", "SDPA drops the soft-cap"
    assert best["ms"] == pytest.approx(sum(t["layers"] * t["median_ms"] for t in eager.values()), rel=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--heads", "0"), "'--heads'"),
        (("--heads", "6", "--kv-heads", "4"), "6 heads cannot share 4 kv heads evenly"),
        (("--dtype", "int8"), "--dtype 'int8' is not one of bf16, fp16, fp32"),
        (("--passes", "backward"), "--passes 'backward' is not one of forward, forward+backward, both"),
        (("--packed", "3,x"), "--packed '3,x' is not a list of lengths"),
        (("--packed", "64", "--seqlen", "9"), "remove --seqlen and --batch"),
        (("--picture", "a.png"), "--picture no longer exists: --output html=FILE writes"),
        (("--backend", "flash"), "--backend 'flash' is not one of"),
        (("--format", "pdf"), "--format 'pdf' is not one of github, html, json, junit, markdown"),
    ],
)
def test_wrong_words_are_told_before_anything_is_timed(
    attncheck: Command, arguments: tuple[str, ...], message: str
) -> None:
    done = attncheck("bench", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("ring", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_ctrl_c_keeps_the_rows_that_were_shown(ring: bool, tmp_path: Path, marker: str) -> None:
    pytest.importorskip("torch")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    arguments = ["bench", "--device", "cpu", "--seqlen", "64", "--format", "json", "--output", "junit=tests.xml"]
    if ring:
        if importlib.util.find_spec("ring_flash_attn") is None:
            pytest.skip("ring-flash-attn is not installed here")
        arguments += ["--ring-size", "2", "--emulate"]
    command = [sys.executable, "-m", "attncheck", *arguments]
    environment = {**os.environ, "TMPDIR": str(scratch)}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True, cwd=tmp_path
    )
    assert process.stderr is not None
    shown = [process.stderr.readline()]  # as soon as it is there
    assert process.poll() is None, "the first row is not the last thing that is done"
    process.send_signal(signal.SIGINT)
    stdout, rest = process.communicate(timeout=60)
    assert process.returncode == 130, rest
    *more_rows, last = rest.splitlines()
    assert last == "attncheck: interrupted; nothing is left running; these are the results so far"
    # A signal that comes while Python is writing a line lets it write the line again.
    shown = list(dict.fromkeys([shown[0].rstrip("\n"), *more_rows]))
    assert all(re.match(r"\d+ of \d+ · ", row) for row in shown), shown
    report = json.loads(stdout)
    pytest.importorskip("jsonschema").validate(report, make_report_schema())
    section = report["ring" if ring else "bench"]
    kept = [timing["backend"] for timing in section["timings"] if timing["outcome"] == "ok"]
    assert [row.split(" · ")[1].split()[0] for row in shown] == [name for name in kept if name != "flash_attn_full"]
    assert section["measured_on"]["interrupted"] and section["measured_on"]["not_reached"] > 0
    assert report["exit_code"] == 130
    assert "interrupted before its end" in (tmp_path / "tests.xml").read_text()
    assert all_processes_gone(marker)
    assert not list(scratch.glob("attncheck-*"))


# Backends of one package share a worker.

STATES = [
    BackendState(name, name, package, "1")
    for name, package in (
        ("eager", "torch"), ("flex_attention", "torch"), ("sdpa_math", "torch"), ("flash_attention_2", "flash-attn"),
        ("flash_attention_2_varlen", "flash-attn"), ("flash_attention_3", "flash-attn-3"),
    )
]  # fmt: skip
LAYERS = {CASE: 1}


def make_jobs() -> tuple[Job, ...]:
    return bench.make_jobs(STATES, LAYERS, ExecutionTarget(sys.executable, "cuda", seconds=60.0))


def test_backends_of_one_package_share_a_worker() -> None:
    jobs = {job.name: job for job in make_jobs()}
    assert list(jobs) == ["torch", "flex_attention", "flash-attn", "flash-attn-3"]
    backends_by_job = {name: [item.split()[0] for item in job.items] for name, job in jobs.items()}
    assert backends_by_job["torch"] == ["plain", "eager", "sdpa_math"], "the device's rates come first"
    assert backends_by_job["flash-attn"] == ["flash_attention_2"] * 2 + ["flash_attention_2_varlen"] * 2
    assert (jobs["torch"].seconds, jobs["flex_attention"].seconds) == (120.0, 240.0), "compiling takes its time"
    assert all(job.spins for job in jobs.values())


def test_a_backend_of_a_plugin_shares_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(inputs: Any, deterministic: bool) -> Any:
        """Do what nobody knows."""

    run.__module__ = "planted_plugin"
    known = discovery.get_backend
    monkeypatch.setattr(
        discovery, "get_backend", lambda name: replace(known("eager"), run=run) if name == "planted" else known(name)
    )
    states = [*STATES[:1], BackendState("planted", "", "torch", "1")]
    jobs = bench.make_jobs(states, LAYERS, ExecutionTarget(sys.executable, "cpu"))
    assert [job.name for job in jobs] == ["torch", "planted"]


class RecordedPool:
    """Replaces the pool: a shared worker is lost three times over its first backend; alone each one answers."""

    runs: ClassVar[list[list[str]]] = []

    def __init__(self, python: str, slots: int) -> None:
        assert slots in (1, 2)
        self.device: dict[str, Any] = {}

    def run(self, jobs: Sequence[Job], on_event: Callable[[Event], None]) -> None:
        self.runs.append([job.name for job in jobs])
        for job in jobs:
            is_first = len(self.runs) == 1
            for index, item in enumerate(job.items):
                if is_first and job.name == "flash-attn":
                    kind: Any = "given_up" if index else "died"
                    on_event(Event(job.name, item, kind, reason="given up after 3 lost workers: SIGSEGV"))
                    continue
                on_event(Event(job.name, item, "started"))
                on_event(Event(job.name, item, "answer", make_answer(item)))


def make_answer(item: str) -> Any:
    if item == RATES_ITEM:
        return codec.to_plain(DeviceRates("bfloat16", 8192, 1.4, 785.0))
    backend = item.split()[0]
    timing = replace(STRICT if item.endswith("@deterministic") else FLASH, backend=backend)
    return {"run": codec.to_plain(Run(backend, CASE, "ok")), "timing": codec.to_plain(timing)}


def test_what_is_lost_with_another_backend_is_timed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "Pool", RecordedPool)
    monkeypatch.setattr(RecordedPool, "runs", [])
    monkeypatch.setattr(discovery, "list_backends", lambda target: STATES)
    monkeypatch.setattr(bench, "choose_cases", lambda *args: LAYERS)
    shown: list[str] = []
    report = bench.run(
        laptop(), Request(), ExecutionTarget(sys.executable, "cuda"), lambda text: None,
        lambda timing, progress: shown.append(f"{progress.done}/{progress.total} {timing.backend} {timing.mode}"),
    )  # fmt: skip
    assert RecordedPool.runs == [
        ["torch", "flex_attention", "flash-attn", "flash-attn-3"], ["flash_attention_2", "flash_attention_2_varlen"],
    ]  # fmt: skip
    outcomes = [(t.backend, t.mode, t.outcome) for t in get_section(report).timings]
    expected = [item.replace("@", " ").split() for job in make_jobs() for item in job.items if item != RATES_ITEM]
    assert len(outcomes) == len(set(outcomes)) == len(expected) == len(shown)
    assert {(backend, mode) for backend, mode, _ in outcomes} == {(backend, mode) for backend, _, mode in expected}
    assert [outcome for outcome in outcomes if outcome[2] != "ok"] == [("flash_attention_2", "default", "died")]
    assert shown[-1].startswith("10/10 ") and get_section(report).rates.matmul_tflops == 785.0


@pytest.mark.parametrize(
    ("kind", "seconds", "calls"), [("cuda", 0.001, 32), ("cuda", 0.067, 15), ("cuda", 9.0, 8), ("cpu", 0.001, 8)]
)
def test_fewer_calls_are_compared_where_each_is_long(kind: str, seconds: float, calls: int) -> None:
    pytest.importorskip("torch")
    from attncheck.measure.worker.bench_session import choose_compared_calls

    assert choose_compared_calls(seconds, kind) == calls


def test_the_next_worker_gets_ready_beside_a_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "count_cores", lambda: 16)
    assert bench.choose_slots(ExecutionTarget(sys.executable, "cuda")) == 2
    assert bench.choose_slots(ExecutionTarget(sys.executable, "cpu")) == 1, "it would take the cores that are timed"
    monkeypatch.setattr(bench, "count_cores", lambda: 2)
    assert bench.choose_slots(ExecutionTarget(sys.executable, "cuda")) == 1
