"""Times every backend on one device, forward and backward, and recommends the fastest that is right.

Backends run one after another, each in a worker of its own, with nothing beside them; parity of the same case is
measured in the same worker first. A product of matrices is timed before and after each, so that a drift of the device's
clocks is not taken for a difference between backends.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from attncheck.core import codec
from attncheck.core.cases import Case
from attncheck.core.errors import Unanswered
from attncheck.core.findings import Finding
from attncheck.core.report import InterruptedRun, Report
from attncheck.core.results.bench import BenchSection
from attncheck.core.results.timings import DeviceRates, TimedMode, Timing, passes_of
from attncheck.core.snapshot import Snapshot
from attncheck.core.verdicts import BackendState, MeasuredOn, Run, judge_run
from attncheck.measure import discovery, parity
from attncheck.measure.bench_shapes import Request, choose_cases
from attncheck.measure.flops import compute_tflops, count_flops
from attncheck.measure.recommendation import recommend_backends
from attncheck.workers import execution
from attncheck.workers.execution import ExecutionTarget, Progress
from attncheck.workers.pool import Event, Job, Pool

RATES_ITEM = "plain work"  # the item that measures the device's rates
DEADLINE_FACTOR = 2.0  # of a case's deadline: an item measures parity, repeats and times
COMPILE_DEADLINE_FACTOR = 4.0  # of a backend that compiles


def run(
    snapshot: Snapshot,
    request: Request,
    target: ExecutionTarget,
    report_progress: Callable[[str], None],
    on_timing: Callable[[Timing, Progress], None] | None = None,
) -> Report:
    """Return the report on every backend that is installed; `on_timing` gets each timing as soon as it is there.

    Raises `Unanswered` where no backend is installed.
    """
    began = time.monotonic()
    layers_by_case = choose_cases(snapshot, request, target.uses_gpu)
    report_progress("looking for backends")
    states = discovery.list_backends(target)
    chosen_states = discovery.choose_backends(states, request.backends)
    pool = Pool(target.python, 1)  # nothing else runs while one is timed
    jobs = [
        _make_rates_job(layers_by_case, target),
        *(_make_job(state, layers_by_case, target) for state in chosen_states),
    ]
    progress = Progress(report_progress, sum(len(job.items) for job in jobs))
    rates = DeviceRates()
    runs: list[Run] = []
    timings: list[Timing] = []

    def on_event(event: Event) -> None:
        nonlocal rates
        progress.on_event(event)
        if event.kind == "started":
            return
        if event.item == RATES_ITEM:
            rates = codec.read(DeviceRates, event.answer) if event.kind == "answer" else rates
            return
        parity_run, timing = _read_run_and_timing(event, layers_by_case)
        runs.append(parity_run)
        timings.append(timing)
        if on_timing is not None:
            on_timing(timing, progress)

    def report_timings(not_reached: int = 0, interrupted: bool = False) -> Report:
        measured_on = execution.make_measured_on(pool, request.seed, began, "", not_reached, interrupted)
        return make_report(snapshot, tuple(states), tuple(runs), tuple(timings), rates, measured_on)

    try:
        pool.run(jobs, on_event)
    except KeyboardInterrupt:
        if not runs:
            raise
        not_reached = sum(len(job.items) for job in jobs if job.name != "device") - len(runs)
        raise InterruptedRun(report_timings(not_reached, interrupted=True)) from None
    if not runs:
        raise Unanswered("no backend could be timed")
    return report_timings()


def _make_rates_job(layers_by_case: dict[Case, int], target: ExecutionTarget) -> Job:
    message = _make_message("", layers_by_case, target)
    return Job("device", message, (RATES_ITEM,), target.seconds * DEADLINE_FACTOR, spins=True)


def _make_job(state: BackendState, layers_by_case: dict[Case, int], target: ExecutionTarget) -> Job:
    """Return the work on one backend: every case as it is, and those with a backward with determinism switched on."""
    has_switch = discovery.get_backend(state.name).deterministic_switch != ""
    items = []
    for case in layers_by_case:
        items.append(f"{case.name}@default")
        if has_switch and case.backward:
            items.append(f"{case.name}@deterministic")
    factor = COMPILE_DEADLINE_FACTOR if discovery.get_backend(state.name).compiles else DEADLINE_FACTOR
    return Job(
        state.name, _make_message(state.name, layers_by_case, target), tuple(items), target.seconds * factor, spins=True
    )


def _make_message(backend: str, layers_by_case: dict[Case, int], target: ExecutionTarget) -> dict[str, Any]:
    return {
        "task": "attncheck.measure.worker.bench_tasks:bench",
        "backend": backend,
        "device": target.device,
        "threads": target.threads_per_worker(1, spare=1),  # a thread that waits for its core holds up all others
        "seconds": target.seconds,
        "dtype": next(iter(layers_by_case)).dtype,
        "cases": codec.to_plain(tuple(layers_by_case)),
    }


def _read_run_and_timing(event: Event, layers_by_case: dict[Case, int]) -> tuple[Run, Timing]:
    """Return parity's run and the timing that an event answers, or why there are none."""
    name, _, mode = event.item.partition("@")
    case = next(case for case in layers_by_case if case.name == name)
    if event.kind == "answer":
        run = codec.read(Run, event.answer["run"])
        return run, replace(codec.read(Timing, event.answer["timing"]), layers=layers_by_case[case])
    outcome = execution.unmeasured_outcome(event)
    run = Run(event.job, replace(case, name=event.item) if mode == "deterministic" else case, outcome, event.reason)
    verdict = judge_run(run)
    timed_mode: TimedMode = "deterministic" if mode == "deterministic" else "default"
    return run, Timing(
        event.job, case, passes_of(case), timed_mode, outcome, event.reason, verdict.answer, verdict.reason
    )


def make_report(
    snapshot: Snapshot,
    states: tuple[BackendState, ...],
    runs: tuple[Run, ...],
    timings: tuple[Timing, ...],
    rates: DeviceRates,
    measured_on: MeasuredOn,
) -> Report:
    """Return the report on measured timings: pure judging, so that recorded ones can be judged again."""
    timings_with_rates = tuple(_with_rates(timing, rates) for timing in timings)
    parity_report = parity.make_report(snapshot, states, runs, measured_on)
    findings = tuple(_without_script(finding) for finding in parity_report.findings)
    recommendations = recommend_backends(
        timings_with_rates, discovery.job_setting, order_only=measured_on.device == "cpu"
    )
    section = BenchSection(
        measured_on, states, parity_report.verdicts, runs, rates, timings_with_rates, recommendations
    )
    return Report("bench", snapshot, findings, sections={"bench": section})


def _with_rates(timing: Timing, rates: DeviceRates) -> Timing:
    tflops_reached = compute_tflops(count_flops(timing.case), timing.median_ms)
    matmul_share = tflops_reached / rates.matmul_tflops if rates.matmul_tflops else 0.0
    return replace(timing, tflops=round(tflops_reached, 4), matmul_share=round(matmul_share, 5))


def _without_script(finding: Finding) -> Finding:
    """Return a finding of parity without the script that reproduces it, which is written for its own suites' cases."""
    return replace(finding, fixes=tuple(fix for fix in finding.fixes if fix.kind != "advice"))
