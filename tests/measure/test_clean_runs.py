"""No false alarm: correct implementations over shapes, seeds, distributions and dtypes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from attncheck.attention.backend import Backend, Device, Installed, Outputs, refusal
from attncheck.attention.backends import eager, sdpa_flash, sdpa_math
from attncheck.attention.inputs import Inputs, make_inputs
from attncheck.attention.reference.oracle import compute_reference
from attncheck.attention.reference.score import score_outputs
from attncheck.core.cases import Case
from attncheck.core.verdicts import Run, Verdict, judge_run
from attncheck.measure.suites import make_suite
from tests.measure.planted import emulated, ring

CPU = Device("cpu", torch=(99, 0))


def make_backend(run: Callable[[Inputs, bool], Outputs], name: str) -> Backend:
    return Backend(name, "", "", Installed, lambda case, device: "", run, lambda case: (), takes_mask=True)


CORRECT = (
    (eager.BACKEND, 1.0),
    (sdpa_math.BACKEND, 1.0),
    (sdpa_flash.BACKEND, 1.0),
    (make_backend(emulated.run_blocks_of_64, "blocks of 64"), 1.0),
    (make_backend(emulated.run_blocks_of_128, "blocks of 128"), 1.0),
    (make_backend(emulated.run_split_kv, "split-KV"), 1.0),
    (make_backend(emulated.run_sequential_merge, "sequential merge"), 1.0),
    (make_backend(emulated.run_reversed_blocks, "reversed blocks"), 1.0),
    (make_backend(emulated.run_float64_inside, "float64 inside"), 1.0),
    (make_backend(ring.run_ring, "ring of 4"), 1.25),
)


def iter_verdicts(cases: list[Case]) -> Iterator[Verdict]:
    for case in cases:
        inputs = make_inputs(case, "cpu")
        for backend, factor in CORRECT:
            # This ring rounds each block's gradients before they are added, which shows where they cancel.
            if refusal(backend, case, CPU) or (backend.name.startswith("ring") and case.values == "cancelling"):
                continue
            exact = compute_reference(inputs, backend.noise, backend.rounded_bias, backend.roundings(case, CPU))
            tensor_scores = tuple(score_outputs(backend.run(inputs, False), exact, judge_lse=backend.noise == "fused"))
            yield judge_run(Run(backend.name, case, "ok", scores=tensor_scores, class_factor=factor))


def short_cases(seed: int) -> list[Case]:
    return [c for c in make_suite("standard", seed) if not c.probe and c.seqlen_q <= 650]


def split_verdicts(verdicts: list[Verdict], capsys: pytest.CaptureFixture[str]) -> tuple[list[Verdict], list[Verdict]]:
    wrong = [verdict for verdict in verdicts if verdict.answer == "fail"]
    warned = [verdict for verdict in verdicts if verdict.answer == "warn"]
    with capsys.disabled():
        worst = max(verdict.budget_ratio for verdict in verdicts)
        print(f"\n{len(verdicts)} clean runs: {len(wrong)} fail, {len(warned)} warn, worst {worst:.2f} of the budget")
        for verdict in warned:
            print(f"  {verdict.backend} {verdict.case}: {verdict.reason}")
    return wrong, warned


def test_two_hundred_clean_runs_raise_no_alarm(capsys: pytest.CaptureFixture[str]) -> None:
    wrong, warned = split_verdicts(list(iter_verdicts(short_cases(0)[::12])), capsys)
    assert not wrong
    assert not warned


@pytest.mark.nightly
def test_thousands_of_clean_runs_raise_hardly_any(capsys: pytest.CaptureFixture[str]) -> None:
    verdicts = list(iter_verdicts([case for seed in (1, 2, 3) for case in short_cases(seed)]))
    wrong, warned = split_verdicts(verdicts, capsys)
    assert len(verdicts) >= 3000
    assert not wrong
    assert len(warned) < len(verdicts) / 1000
