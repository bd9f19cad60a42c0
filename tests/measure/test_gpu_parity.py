"""On a machine with a GPU: healthy backends pass, planted faults do not, and what determinism says is so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from attncheck.measure.suites import make_suite
from tests.measure.planted.faults import FAULTS
from tests.measure.planted.hunt import hunt

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", autouse=True)
def gpu() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        if os.environ.get("ATTNCHECK_REQUIRE_GPU") == "1":
            pytest.fail("ATTNCHECK_REQUIRE_GPU=1, and there is no GPU")
        pytest.skip("no GPU here")


def run_json(*arguments: str, code: int = 0) -> dict[str, Any]:
    command = [sys.executable, "-m", "attncheck", *arguments, "--format", "json", "--fail-on", "never"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == code, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


TRACE = """\
import sys, torch
from attncheck.attention.kernel_trace import trace_kernels
names = trace_kernels(lambda: torch.ones(8, device="cuda").add_(1), "cuda")[1]
print(any("elementwise" in name for name in names), "torch._inductor" in sys.modules)
"""


def test_kernels_are_traced_without_a_compiler() -> None:
    """torch.profiler.profile would import it, for seconds, in each worker."""
    done = subprocess.run([sys.executable, "-c", TRACE], capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["True", "False"], done.stderr


# Known faults (docs/found-bugs.md): cuDNN 9.19, SDPA's EFFICIENT_ATTENTION of torch 2.11, flash-attn 2.8.3,
# flash-attn 3 (0251105a). Later ones may be right.
KNOWN = (
    ("sdpa_cudnn", "fail", "NaN or infinite in dq"),
    ("sdpa_cudnn", "fail", "changes with other documents"),
    ("sdpa_cudnn", "warn", "queries share each draw"),
    ("sdpa_efficient", "fail", "NaN or infinite in out"),  # one head that is viewed as all keys, with a mask:
    ("sdpa_efficient", "fail", "out has z_row"),  # it reads memory that nobody wrote,
    ("sdpa_efficient", "fail", "an illegal memory access"),  # or that is not its own
    ("flash_attention_2_varlen", "fail", "is invalid for input of size"),
    ("flash_attention_3_varlen", "warn", "by NaN, but not by finite values"),
)


def is_known(verdict: dict[str, Any]) -> bool:
    key, reason = (verdict["backend"], verdict["answer"]), verdict["reason"]
    return any(key == (backend, answer) and text in reason for backend, answer, text in KNOWN)


def test_every_healthy_backend_passes_the_standard_suite() -> None:
    report = run_json("parity", "--device", "cuda", "--seed", "11")
    wrong = [v for v in report["parity"]["verdicts"] if v["answer"] in ("fail", "warn", "lost", "skipped")]
    unknown = [v for v in wrong if not is_known(v)]
    assert not unknown, unknown[:5]
    assert report["parity"]["measured_on"]["device"] == "cuda"
    passed = {v["backend"] for v in report["parity"]["verdicts"] if v["answer"] == "pass"}
    assert {"eager", "sdpa_math", "sdpa_flash", "sdpa_efficient", "sdpa_cudnn", "flex_attention"} <= passed


def test_flash_attn_is_itself() -> None:
    pytest.importorskip("flash_attn")
    report = run_json("parity", "--suite", "quick", "--backend", "flash_attention_2_varlen", "--device", "cuda")
    kernels = {name for run in report["parity"]["runs"] for name in run["kernels"]}
    assert any("flash" in name and "pytorch_flash" not in name for name in kernels)
    assert not any(run["foreign_kernels"] for run in report["parity"]["runs"])


def test_the_suites_catch_every_planted_fault_on_the_device(capsys: pytest.CaptureFixture[str]) -> None:
    near = [f for f in FAULTS if not f.long and f.family != "determinism"]
    caught, missed = hunt(near, [case for case in make_suite("standard") if case.seqlen_q <= 2048], "cuda")
    far = [f for f in FAULTS if f.long]
    long_cases = [case for case in make_suite("full") if case.family == "long" and case.seqlen_q < 40000]
    caught_far, missed_far = hunt(far, long_cases, "cuda")
    with capsys.disabled():
        print(f"\ncaught {len(caught) + len(caught_far)} of {len(near) + len(far)} planted faults on the device")
        for fault in caught_far:
            print(fault.format_row())
    assert not missed + missed_far, [fault.name for fault in missed + missed_far]


def test_determinism_tells_what_varies_and_what_holds() -> None:
    report = run_json("determinism", "--device", "cuda", "--backend", "sdpa_flash", "--backend", "sdpa_math")
    by_mode = {(r["backend"], r["mode"], r["case"]["layout"]): r for r in report["determinism"]["repeats"]}
    default_counts = {d["tensor"]: d["distinct"] for d in by_mode["sdpa_flash", "default", "dense"]["differences"]}
    assert default_counts["out"] == default_counts["dk"] == default_counts["dv"] == 1
    assert default_counts["dq"] > 1, "FLASH adds dq up atomically"
    strict = by_mode["sdpa_flash", "deterministic", "dense"]["differences"]
    assert [d["distinct"] for d in strict] == [1, 1, 1, 1]
    assert all(d["distinct"] == 1 for d in by_mode["sdpa_math", "default", "dense"]["differences"])


def test_a_case_that_is_too_large_is_skipped_with_the_numbers() -> None:
    case = ("--case", "s131072-h8kv2")
    report = run_json("parity", "--suite", "full", "--backend", "eager", *case, "--device", "cuda", code=3)
    assert [run["outcome"] for run in report["parity"]["runs"]] == ["skipped"]
    assert "GiB" in report["parity"]["runs"][0]["reason"]
