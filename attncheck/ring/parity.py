"""Parity across ranks: runs every context-parallel scheme on a ring of n processes.

The requested ring gets the whole suite. The smaller powers of two get one problem that is the same at every size, so
that the report can show how the error grows. Under an external launcher only the ring that it started is measured.
"""

import os
import time
from collections.abc import Callable, Sequence

from attncheck.core import codec
from attncheck.core.cases import Case
from attncheck.core.io.errors import BadUsage, Unanswered
from attncheck.core.report import (
    BackendState,
    Finding,
    Fix,
    InterruptedRun,
    MeasuredOn,
    Problem,
    Report,
    Run,
    merge_reports,
)
from attncheck.core.results.error_growth import MAX_SLOPE, describe_growth, error_growths
from attncheck.core.results.ring import RingSection
from attncheck.core.snapshot import Snapshot
from attncheck.doctor import engine
from attncheck.measure import discovery, parity
from attncheck.ring import suites
from attncheck.ring.communication_check import cannot_communicate, check_communication
from attncheck.ring.group import Ring, choose_schemes, make_job, make_measured_on, raise_if_follower
from attncheck.workers.execution import ExecutionTarget, Progress
from attncheck.workers.launcher_env import read_rank_env
from attncheck.workers.pool import Event
from attncheck.workers.ranks import RankJob, RankRunner


def choose_cases(request: parity.Request, snapshot: Snapshot, ring: Ring) -> dict[int, tuple[Case, ...]]:
    """Return the cases for each ring size. Raises `BadUsage` if none is left."""
    model = discovery.requested_model(snapshot)
    cases_by_size: dict[int, tuple[Case, ...]] = {}
    for size in _choose_ring_sizes(ring, request):
        cases: list[Case] = []
        for seed in range(request.seed, request.seed + request.repeat):
            if size != ring.size:
                cases += suites.make_growth_cases(size, seed)
            elif model is None:
                cases += suites.make_suite(request.suite, size, seed)
            else:
                for dtype in request.dtypes or (None,):
                    cases += suites.make_model_cases(model, size, request.max_seqlen, seed, dtype)
        cases_by_size[size] = parity.select_cases(cases, request)
    if not any(cases_by_size.values()):
        if request.only:
            raise BadUsage(parity.NOTHING_LEFT_OF_FAILURES)
        raise BadUsage("--case and --dtype exclude every case; --list prints the names")
    return cases_by_size


def _choose_ring_sizes(ring: Ring, request: parity.Request) -> tuple[int, ...]:
    smaller = [1 << power for power in range(10) if 1 << power < ring.size]
    return (ring.size,) if read_rank_env(os.environ) is not None or request.cases else (*smaller, ring.size)


def run(
    snapshot: Snapshot,
    request: parity.Request,
    ring: Ring,
    target: ExecutionTarget,
    report_progress: Callable[[str], None],
) -> Report:
    """Return the report of parity across ranks. Raises `Unanswered` if nothing can be measured."""
    began = time.monotonic()
    cases_by_size = choose_cases(request, snapshot, ring)
    report_progress("looking for backends")
    states, chosen_states = choose_schemes(target, request.backends)
    communication_report = check_communication("parity", snapshot, ring, target, report_progress)
    if cannot_communicate(communication_report):
        return communication_report
    by_name = {case.name: case for cases in cases_by_size.values() for case in cases}
    jobs = [
        _make_job(ring, target, size, cases, chosen_states, request) for size, cases in cases_by_size.items() if cases
    ]
    if not any(job.items for job in jobs):
        raise BadUsage(parity.NOTHING_LEFT_OF_FAILURES)
    progress = Progress(report_progress, sum(len(job.items) for job in jobs))
    runs: list[Run] = []

    def on_event(event: Event) -> None:
        progress.on_event(event)
        if event.kind != "started":
            runs.append(parity.read_run(event, by_name[event.item]))

    runner = RankRunner(target.python, read_rank_env(os.environ))
    until = None if request.budget is None else began + request.budget
    suite_name = "model" if discovery.requested_model(snapshot) is not None else request.suite

    def report_runs(not_reached: int, interrupted: bool = False) -> Report:
        measured_on = make_measured_on(runner, ring, target, request.seed, began, suite_name, not_reached, interrupted)
        sorted_runs = parity.sort_runs(runs, chosen_states, tuple(by_name.values()))
        report = make_report(snapshot, tuple(states), sorted_runs, measured_on)
        return merge_reports("parity", snapshot, (report, communication_report))

    try:
        not_reached = [item for job in jobs for item in runner.run(job, on_event, until)]
    except KeyboardInterrupt:
        if not runs:
            raise
        raise InterruptedRun(report_runs(progress.total - len(runs), interrupted=True)) from None
    raise_if_follower(runner)
    if not runs:
        raise Unanswered("nothing was measured: --budget ended before the first case")
    return report_runs(len(not_reached))


def _make_job(
    ring: Ring,
    target: ExecutionTarget,
    size: int,
    cases: tuple[Case, ...],
    states: Sequence[BackendState],
    request: parity.Request,
) -> RankJob:
    pairs = [(state.name, case.name) for state in states for case in cases]
    items = [pair for pair in pairs if parity.is_requested(*pair, request)]
    return make_job(
        ring, target, size, items, {"task": "attncheck.ring.worker.tasks:parity", "cases": codec.to_plain(cases)}
    )


def make_report(
    snapshot: Snapshot, states: tuple[BackendState, ...], runs: tuple[Run, ...], measured_on: MeasuredOn
) -> Report:
    """Return the report on measured runs, as parity's, with the growth of errors with the ring; it measures nothing."""
    growths = error_growths(runs)
    parity_report = parity.make_report(snapshot, states, runs, measured_on)
    # The error growth of a wrong scheme says nothing about the scheme.
    wrong_backends = {finding.subject for finding in parity_report.findings if finding.code == "ATN601"}
    findings = tuple(
        make_growth_finding(growth.backend, describe_growth(growth))
        for growth in growths
        if growth.beyond > MAX_SLOPE and growth.backend not in wrong_backends
    )
    return parity_report.with_section(
        RingSection(measured_on, growth=growths), findings=(*parity_report.findings, *findings)
    )


GATHER_INSTEAD = Fix(
    "use the scheme that gathers keys and values once, without merging",
    "edit",
    "llama3_flash_attn_varlen_func  # instead of the ring's; OpenRLHF, and axolotl's ring_attn_func: varlen_llama3",
)


def make_growth_finding(backend: str, evidence: str) -> Finding:
    """Return the finding about an error that grows with the number of ranks; it names a scheme without merging."""
    return engine.make_finding_by_code(
        "ATN605", Problem(f"the error of {backend} grows with the ring", (evidence,), (GATHER_INSTEAD,), backend)
    )
