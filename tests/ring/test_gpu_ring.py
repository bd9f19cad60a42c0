"""Context parallelism over real GPUs: flash-attn's own kernels, NCCL, and the faults that must be seen there too."""

from __future__ import annotations

import os

import pytest

from attncheck.core.verdicts import FAIL_FACTOR, judge_run
from attncheck.ring import suites
from tests.ring.genuine_ring import FAULTS, write_plugins
from tests.ring.test_planted_ring import SCHEMES, budget_ratios, fitting_cases, make_cases, measure_runs

torch = pytest.importorskip("torch")
GPUS = torch.cuda.device_count()
pytestmark = [pytest.mark.gpu, pytest.mark.multigpu]
if GPUS < 2 and not os.environ.get("ATTNCHECK_REQUIRE_GPU"):
    pytestmark.append(pytest.mark.skip(reason="needs two GPUs"))
CUDA = {"device": "cuda", "emulate": ""}
RANKS = 4 if GPUS >= 4 else 2


def test_every_scheme_is_right_with_the_real_kernels() -> None:
    cases = suites.make_suite("standard", RANKS)
    schemes = [scheme for group in SCHEMES.values() for scheme in group]
    runs = measure_runs([(scheme, case.name) for scheme in schemes for case in cases], cases, RANKS, **CUDA)
    assert len(runs) == len(schemes) * len(cases)
    for run in runs:
        verdict = judge_run(run)
        if verdict.answer == "warn":  # the ring returns dq with bfloat16's precision
            assert run.case.dtype == "float16" and "dq has z_rms" in verdict.reason, verdict
        else:
            assert verdict.answer in ("pass", "refused"), (run.backend, run.case.name, verdict)
    kernels = {name for run in runs for name in run.kernels}
    assert any("flash_fwd" in name for name in kernels), kernels


def test_every_planted_fault_is_seen_on_gpus(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", write_plugins(tmp_path / "faults")["PYTHONPATH"])  # type: ignore[operator]
    cases = make_cases(RANKS)
    faults = {name: fault for name, fault in FAULTS.items() if fault.ranks <= RANKS}
    items = [(name, case) for name, fault in faults.items() for case in fitting_cases(fault.scheme, cases, name)]
    runs = measure_runs(items, cases, RANKS, **CUDA)
    for name, fault in faults.items():
        fault_runs = [run for run in runs if run.backend == name]
        assert all(run.outcome == "ok" for run in fault_runs), [run.reason for run in fault_runs]
        worst = {
            tensor: max(budget_ratios(run)[tensor] for run in fault_runs) for tensor in budget_ratios(fault_runs[0])
        }
        forward = max(worst["out"], worst["lse"])
        worst_broken = forward if fault.breaks == "forward" else max(worst["dq"], worst["dk"], worst["dv"])
        assert worst_broken > FAIL_FACTOR, (name, worst)
        assert fault.breaks == "forward" or forward <= 1.0, (name, worst)
