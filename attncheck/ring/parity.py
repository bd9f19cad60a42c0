"""Parity and determinism over ranks: every scheme of context parallelism, on a ring of n processes.

The ring that was asked for gets the whole suite; the smaller powers of two get the problem that is the same at every
size, so that the report can say how the error grows. Under a launcher outside there is the one ring that it started.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from attncheck.core import codec
from attncheck.core.cases import Case
from attncheck.core.errors import BadUsage, Unanswered
from attncheck.core.findings import Finding, Problem
from attncheck.core.report import Report, merge
from attncheck.core.results.error_growth import BOUND, describe_growth, error_growths
from attncheck.core.results.ring import RingSection
from attncheck.core.results.verdicts import BackendState, MeasuredOn, Run
from attncheck.core.snapshot import Snapshot
from attncheck.doctor import engine
from attncheck.measure import discovery, parity
from attncheck.ring import suites
from attncheck.ring.communication_check import cannot_communicate, check_communication
from attncheck.ring.group import Ring, job, measured_on, only_rank_0_speaks, schemes
from attncheck.workers.execution import ExecutionTarget, Progress
from attncheck.workers.launcher_env import read_rank_env
from attncheck.workers.pool import Event
from attncheck.workers.ranks import RankJob, RankRunner


def chosen_cases(request: parity.Request, snapshot: Snapshot, ring: Ring) -> dict[int, tuple[Case, ...]]:
    """Return the cases to run at each ring size. Raises `BadUsage` where none is left."""
    model = discovery.readable_model(snapshot)
    found: dict[int, tuple[Case, ...]] = {}
    for size in _sizes(ring, request):
        cases: list[Case] = []
        for seed in range(request.seed, request.seed + request.repeat):
            if size != ring.size:
                cases += suites.growth(size, seed)
            elif model is None:
                cases += suites.suite(request.suite, size, seed)
            else:
                for dtype in request.dtypes or (None,):
                    cases += suites.for_model(model, size, request.longest, seed, dtype)
        found[size] = tuple(case for case in cases if parity.wanted(case, request))
    if not any(found.values()):
        raise BadUsage("no case is left by --case and --dtype; names are listed by -v")
    return found


def _sizes(ring: Ring, request: parity.Request) -> tuple[int, ...]:
    smaller = [1 << power for power in range(10) if 1 << power < ring.size]
    return (ring.size,) if read_rank_env(os.environ) is not None or request.cases else (*smaller, ring.size)


def run(
    snapshot: Snapshot, request: parity.Request, ring: Ring, bench: ExecutionTarget, say: Callable[[str], None]
) -> Report:
    """Return the report of parity over ranks. Raises `Unanswered` where nothing can be measured."""
    began = time.monotonic()
    by_size = chosen_cases(request, snapshot, ring)
    say("looking for backends")
    states, chosen = schemes(bench, request.backends)
    checked = check_communication("parity", snapshot, ring, bench, say)
    if cannot_communicate(checked):
        return checked
    by_name = {case.name: case for cases in by_size.values() for case in cases}
    jobs = [_parity_job(ring, bench, size, cases, chosen) for size, cases in by_size.items() if cases]
    progress = Progress(say, sum(len(job.items) for job in jobs))
    runs: list[Run] = []

    def tell(event: Event) -> None:
        progress.on_event(event)
        if event.kind != "started":
            runs.append(parity.run_of(event, by_name[event.item]))

    ranks = RankRunner(bench.python, read_rank_env(os.environ))
    until = None if request.budget is None else began + request.budget
    left = [item for job in jobs for item in ranks.run(job, tell, until)]
    only_rank_0_speaks(ranks)
    if not runs:
        raise Unanswered("nothing was measured: --budget ended before the first case")
    name = "model" if discovery.readable_model(snapshot) is not None else request.suite
    on = measured_on(ranks, ring, bench, request.seed, began, name, len(left))
    measured = report(snapshot, tuple(states), parity.in_order(runs, chosen, tuple(by_name.values())), on)
    return merge("parity", snapshot, (measured, checked))


def _parity_job(
    ring: Ring, bench: ExecutionTarget, size: int, cases: tuple[Case, ...], chosen: Sequence[BackendState]
) -> RankJob:
    items = [(state.name, case.name) for state in chosen for case in cases]
    return job(ring, bench, size, items, {"task": "attncheck.ring.worker.tasks:parity", "cases": codec.plain(cases)})


def report(snapshot: Snapshot, states: tuple[BackendState, ...], runs: tuple[Run, ...], on: MeasuredOn) -> Report:
    """Return the report on measured runs: pure judging, as parity's, and how errors grow with the ring."""
    growths = error_growths(runs)
    findings = tuple(_grows(growth.backend, describe_growth(growth)) for growth in growths if growth.beyond > BOUND)
    judged = parity.report(snapshot, states, runs, on)
    return judged.with_section(RingSection(on, growth=growths), findings=(*judged.findings, *findings))


def _grows(backend: str, words: str) -> Finding:
    return engine.make_finding_by_code(
        "ATN605", Problem(f"the error of {backend} grows with the ring", (words,), (), backend)
    )
