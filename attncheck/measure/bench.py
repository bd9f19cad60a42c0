"""Times every backend on one device, forward and backward, and recommends the fastest that is right.

Backends run one after another, each in a worker of its own, with nothing beside them; parity of the very case is
measured in the same worker first. The device's plain work, a product of matrices, is timed before and after each, so
that a drift of its clocks is not taken for a difference between backends.
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
from attncheck.core.report import Report
from attncheck.core.results.bench import BenchSection
from attncheck.core.results.timings import DeviceRates, TimedMode, Timing, passes_of
from attncheck.core.results.verdicts import BackendState, MeasuredOn, Run, judge
from attncheck.core.snapshot import Snapshot
from attncheck.measure import discovery, parity
from attncheck.measure.bench_shapes import Request, cases
from attncheck.measure.flops import flops, tflops
from attncheck.measure.recommendation import recommend
from attncheck.workers import execution
from attncheck.workers.execution import ExecutionTarget, Progress
from attncheck.workers.pool import Event, Job, Pool

PLAIN_WORK = "plain work"
FACTOR = 2.0  # of a case's deadline: an item measures parity, repeats and times
COMPILES = 4.0


def run(snapshot: Snapshot, request: Request, bench: ExecutionTarget, say: Callable[[str], None]) -> Report:
    """Return the report on every backend that is here. Raises `Unanswered` where none is."""
    began = time.monotonic()
    layers = cases(snapshot, request, bench.uses_gpu)
    say("looking for backends")
    states = discovery.list_backends(bench)
    chosen = discovery.choose_backends(states, request.backends)
    pool = Pool(bench.python, 1)  # nothing else runs while one is timed
    jobs = [_rates_job(layers, bench), *(_job(state, layers, bench) for state in chosen)]
    progress = Progress(say, sum(len(job.items) for job in jobs))
    rates = DeviceRates()
    runs: list[Run] = []
    timings: list[Timing] = []

    def tell(event: Event) -> None:
        nonlocal rates
        progress.on_event(event)
        if event.kind == "started":
            return
        if event.item == PLAIN_WORK:
            rates = codec.read(DeviceRates, event.answer) if event.kind == "answer" else rates
            return
        found, timing = _pair(event, layers)
        runs.append(found)
        timings.append(timing)

    pool.run(jobs, tell)
    if not runs:
        raise Unanswered("no backend could be timed")
    on = execution.make_measured_on(pool, request.seed, began)
    return report(snapshot, tuple(states), tuple(runs), tuple(timings), rates, on)


def _rates_job(layers: dict[Case, int], bench: ExecutionTarget) -> Job:
    return Job("device", _message("", layers, bench), (PLAIN_WORK,), bench.seconds * FACTOR)


def _job(state: BackendState, layers: dict[Case, int], bench: ExecutionTarget) -> Job:
    """Return the work on one backend: every case as it is, and those with a backward made reproducible."""
    switched = discovery.get_backend(state.name).deterministic_switch != ""
    items = []
    for case in layers:
        items.append(f"{case.name}@default")
        if switched and case.backward:
            items.append(f"{case.name}@deterministic")
    factor = COMPILES if discovery.get_backend(state.name).compiles else FACTOR
    return Job(state.name, _message(state.name, layers, bench), tuple(items), bench.seconds * factor)


def _message(backend: str, layers: dict[Case, int], bench: ExecutionTarget) -> dict[str, Any]:
    return {
        "task": "attncheck.measure.worker.bench_tasks:bench",
        "backend": backend,
        "device": bench.device,
        "threads": max(1, bench.threads_per_worker(1) - 1),  # a thread that waits for its core holds up all others
        "seconds": bench.seconds,
        "dtype": next(iter(layers)).dtype,
        "cases": codec.plain(tuple(layers)),
    }


def _pair(event: Event, layers: dict[Case, int]) -> tuple[Run, Timing]:
    """Return what an event answers: parity's run and the timing, or why there are none."""
    name, _, mode = event.item.partition("@")
    case = next(case for case in layers if case.name == name)
    if event.kind == "answer":
        run = codec.read(Run, event.answer["run"])
        return run, replace(codec.read(Timing, event.answer["timing"]), layers=layers[case])
    lost = execution.unmeasured_outcome(event)
    run = Run(event.job, replace(case, name=event.item) if mode == "deterministic" else case, lost, event.reason)
    verdict = judge(run)
    strict: TimedMode = "deterministic" if mode == "deterministic" else "default"
    return run, Timing(event.job, case, passes_of(case), strict, lost, event.reason, verdict.answer, verdict.reason)


def report(
    snapshot: Snapshot,
    states: tuple[BackendState, ...],
    runs: tuple[Run, ...],
    timings: tuple[Timing, ...],
    rates: DeviceRates,
    on: MeasuredOn,
) -> Report:
    """Return the report on measured timings: pure judging, so that recorded ones can be judged again."""
    rated = tuple(_with_rates(timing, rates) for timing in timings)
    judged = parity.report(snapshot, states, runs, on)
    findings = tuple(_without_script(finding) for finding in judged.findings)
    advice = recommend(rated, discovery.job_setting)
    section = BenchSection(on, states, judged.verdicts, runs, rates, rated, advice)
    return Report("bench", snapshot, findings, sections={"bench": section})


def _with_rates(timing: Timing, rates: DeviceRates) -> Timing:
    reached = tflops(flops(timing.case), timing.median_ms)
    share = reached / rates.matmul_tflops if rates.matmul_tflops else 0.0
    return replace(timing, tflops=round(reached, 4), matmul_share=round(share, 5))


def _without_script(finding: Finding) -> Finding:
    """Return a finding of parity without the script that reproduces it, which is written for its own suites' cases."""
    return replace(finding, fixes=tuple(fix for fix in finding.fixes if fix.kind != "command"))
