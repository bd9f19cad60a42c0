"""Times every backend on one device, forward and backward, and recommends the fastest correct one.

Backends run one after another with nothing else on the device. Those of one package share a worker, because importing
torch and opening the device take as long as timing a backend. A plugin's backend, and one that compiles, has its own
worker. On a GPU the next worker imports torch meanwhile. The worker measures parity of the same case first. A matrix
product is timed before and after each backend, so that a drift of the device's clocks is not mistaken for a difference
between backends.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from attncheck.core import codec
from attncheck.core.cases import Case
from attncheck.core.io.errors import Unanswered
from attncheck.core.lists import group_values
from attncheck.core.report import Finding, InterruptedRun, Problem, Report
from attncheck.core.results.bench import BenchSection
from attncheck.core.results.timings import (
    PASSES_TITLES,
    RATES_ITEM,
    DeviceRates,
    PublishedShare,
    TimedMode,
    Timing,
    passes_of,
)
from attncheck.core.snapshot import Snapshot
from attncheck.core.verdicts import BackendState, MeasuredOn, Run, judge_run
from attncheck.doctor import engine
from attncheck.measure import discovery, parity, published
from attncheck.measure.bench_shapes import Request, choose_cases
from attncheck.measure.flops import compute_tflops, count_flops
from attncheck.measure.recommendation import recommend_backends
from attncheck.workers import execution
from attncheck.workers.execution import ExecutionTarget, Progress
from attncheck.workers.pool import Event, Job, Pool
from attncheck.workers.processors import count_cores

DEADLINE_FACTOR = 2.0  # times a case's deadline: an item measures parity, repeats and times
COMPILE_DEADLINE_FACTOR = 4.0  # the same for a backend that compiles
MIN_CORES_TO_PREPARE = 4  # one core imports torch, another launches kernels


def run(
    snapshot: Snapshot,
    request: Request,
    target: ExecutionTarget,
    report_progress: Callable[[str], None],
    on_timing: Callable[[Timing, Progress], None] | None = None,
) -> Report:
    """Return the report on every installed backend; `on_timing` gets each timing as soon as it is measured.

    Raises `Unanswered` if no backend is installed.
    """
    began = time.monotonic()
    layers_by_case = choose_cases(snapshot, request, target.uses_gpu)
    report_progress("looking for backends")
    states = discovery.list_backends(target)
    chosen_states = discovery.choose_backends(states, request.backends)
    pool = Pool(target.python, choose_slots(target))
    jobs = make_jobs(chosen_states, layers_by_case, target)
    measured = _Measured(
        layers_by_case, Progress(report_progress, sum(len(job.items) for job in jobs)), jobs, on_timing
    )

    def report_timings(interrupted: bool = False) -> Report:
        not_reached = measured.count_unreached() if interrupted else 0
        measured_on = execution.make_measured_on(pool, request.seed, began, "", not_reached, interrupted)
        return make_report(
            snapshot,
            tuple(states),
            tuple(measured.runs),
            tuple(measured.timings),
            measured.rates,
            measured_on,
            request.min_of_published,
        )

    try:
        pool.run(jobs, measured.on_event)
        if measured.put_aside:
            pool.run(tuple(_split_by_backend(jobs, measured.put_aside)), measured.add)
    except KeyboardInterrupt:
        if not measured.runs:
            raise
        raise InterruptedRun(report_timings(interrupted=True)) from None
    if not measured.runs:
        raise Unanswered("no backend could be timed")
    return report_timings()


def choose_slots(target: ExecutionTarget) -> int:
    """Return the number of concurrent workers: one measures, and on a GPU the next one prepares."""
    return 2 if target.uses_gpu and count_cores() >= MIN_CORES_TO_PREPARE else 1


def make_jobs(
    states: Sequence[BackendState], layers_by_case: dict[Case, int], target: ExecutionTarget
) -> tuple[Job, ...]:
    """Return the work of each worker: the device's rates first, then every backend in each case and mode.

    The deterministic switch is tried in the cases with a backward.
    """
    members_by_worker = group_values((_name_worker(state), state.name) for state in states)
    jobs: list[Job] = []
    for worker, members in members_by_worker.items():
        items = [item for name in members for item in _list_items(name, layers_by_case)]
        compiles = any(discovery.get_backend(name).compiles for name in members)
        seconds = target.seconds * (COMPILE_DEADLINE_FACTOR if compiles else DEADLINE_FACTOR)
        if not jobs:
            items.insert(0, RATES_ITEM)
        jobs.append(Job(worker, _make_message(layers_by_case, target), tuple(items), seconds, spins=True))
    return tuple(jobs)


def _name_worker(state: BackendState) -> str:
    """Return the name of the worker that times a backend: one per package for built-in backends that do not compile."""
    backend = discovery.get_backend(state.name)
    is_own = backend.run.__module__.startswith("attncheck.")
    return state.package if is_own and not backend.compiles else state.name


def _list_items(backend: str, layers_by_case: dict[Case, int]) -> list[str]:
    has_switch = discovery.get_backend(backend).deterministic_switch != ""
    items = []
    for case in layers_by_case:
        items.append(f"{backend} {case.name}@default")
        if has_switch and case.backward:
            items.append(f"{backend} {case.name}@deterministic")
    return items


def _make_message(layers_by_case: dict[Case, int], target: ExecutionTarget) -> dict[str, Any]:
    return {
        "task": "attncheck.measure.worker.bench_tasks:bench",
        "device": target.device,
        "threads": target.threads_per_worker(1, spare=1),  # a thread that waits for its core delays all others
        "seconds": target.seconds,
        "dtype": next(iter(layers_by_case)).dtype,
        "cases": codec.to_plain(tuple(layers_by_case)),
    }


def _split_by_backend(jobs: Iterable[Job], chosen: Sequence[str]) -> Iterator[Job]:
    """Yield the work on some of the jobs' items, one worker per backend."""
    for job in jobs:
        for backend in _backends_of(job):
            if items := tuple(item for item in job.items if item in chosen and _backend_of(item) == backend):
                yield replace(job, name=backend, items=items)


def _backends_of(job: Job) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_backend_of(item) for item in job.items if item != RATES_ITEM))


def _backend_of(item: str) -> str:
    return item.partition(" ")[0]


@dataclass
class _Measured:
    """The measurements so far, and those that another backend of the same worker prevented."""

    layers_by_case: dict[Case, int]
    progress: Progress
    jobs: Sequence[Job]
    on_timing: Callable[[Timing, Progress], None] | None
    runs: list[Run] = field(default_factory=list)
    timings: list[Timing] = field(default_factory=list)
    rates: DeviceRates = DeviceRates()
    put_aside: list[str] = field(default_factory=list)
    starts: Counter[str] = field(default_factory=Counter)

    def on_event(self, event: Event) -> None:
        """Add the result of a shared worker's event; items lost together with another backend are set aside."""
        self.starts[event.item] += event.kind == "started"
        if event.item != RATES_ITEM and self._is_lost_with_another(event):
            self.put_aside.append(event.item)
        else:
            self.add(event)

    def _is_lost_with_another(self, event: Event) -> bool:
        """Return whether an item was lost, or had one of two attempts, because of other backends in its worker."""
        is_shared = any(job.name == event.job and len(_backends_of(job)) > 1 for job in self.jobs)
        return is_shared and (event.kind == "given_up" or (event.kind == "out_of_time" and self.starts[event.item] < 2))

    def add(self, event: Event) -> None:
        """Add the run and timing, or the rates, of an event."""
        self.progress.on_event(event)
        if event.kind == "started":
            return
        if event.item == RATES_ITEM:
            self.rates = codec.read(DeviceRates, event.answer) if event.kind == "answer" else self.rates
            return
        parity_run, timing = _read_run_and_timing(event, self.layers_by_case)
        self.runs.append(parity_run)
        self.timings.append(timing)
        if self.on_timing is not None:
            self.on_timing(timing, self.progress)

    def count_unreached(self) -> int:
        """Return how many cases have no result yet."""
        return sum(item != RATES_ITEM for job in self.jobs for item in job.items) - len(self.runs)


def _read_run_and_timing(event: Event, layers_by_case: dict[Case, int]) -> tuple[Run, Timing]:
    """Return the parity run and the timing in an event, or the reason why there are none."""
    backend, _, case_and_mode = event.item.partition(" ")
    name, _, mode = case_and_mode.partition("@")
    case = next(case for case in layers_by_case if case.name == name)
    if event.kind == "answer":
        run = codec.read(Run, event.answer["run"])
        return run, replace(codec.read(Timing, event.answer["timing"]), layers=layers_by_case[case])
    outcome = execution.unmeasured_outcome(event)
    run = Run(backend, replace(case, name=case_and_mode) if mode == "deterministic" else case, outcome, event.reason)
    verdict = judge_run(run)
    timed_mode: TimedMode = "deterministic" if mode == "deterministic" else "default"
    return run, Timing(
        backend, case, passes_of(case), timed_mode, outcome, event.reason, verdict.answer, verdict.reason
    )


def make_report(
    snapshot: Snapshot,
    states: tuple[BackendState, ...],
    runs: tuple[Run, ...],
    timings: tuple[Timing, ...],
    rates: DeviceRates,
    measured_on: MeasuredOn,
    min_of_published: float = 0.0,
) -> Report:
    """Return the report on measured timings from these alone, so that recorded ones can be judged again.

    Raises `Unanswered` if a share of the best published speed is required, but none is published for the device or
    shape.
    """
    timings_with_rates = tuple(_with_rates(timing, rates) for timing in timings)
    parity_report = parity.make_report(snapshot, states, runs, measured_on)
    findings = tuple(  # without parity's script, which is written for its own suites' cases
        replace(finding, fixes=tuple(fix for fix in finding.fixes if fix.kind != "advice"))
        for finding in parity_report.findings
    )
    recommendations = recommend_backends(
        timings_with_rates, discovery.job_setting, order_only=measured_on.device == "cpu"
    )
    section = BenchSection(
        measured_on,
        states,
        parity_report.verdicts,
        runs,
        rates,
        timings_with_rates,
        recommendations,
        published.shares_of(timings_with_rates, measured_on.name),
    )
    if min_of_published and not section.published:
        raise Unanswered(f"no speed is published for this shape on {measured_on.name or measured_on.device}")
    findings += tuple(_make_slow_finding(item) for item in section.published if item.share < min_of_published)
    return Report("bench", snapshot, findings, sections={"bench": section})


def _make_slow_finding(item: PublishedShare) -> Finding:
    message = f"{item.backend} reaches {item.share:.0%} of the best published speed, {PASSES_TITLES[item.passes]}"
    return engine.make_finding_by_code("ATN807", Problem(message, (item.description,), (), item.backend))


def _with_rates(timing: Timing, rates: DeviceRates) -> Timing:
    tflops_reached = compute_tflops(count_flops(timing.case), timing.median_ms)
    matmul_share = tflops_reached / rates.matmul_tflops if rates.matmul_tflops else 0.0
    return replace(timing, tflops=round(tflops_reached, 4), matmul_share=round(matmul_share, 5))
