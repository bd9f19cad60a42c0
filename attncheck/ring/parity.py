"""Parity and determinism over ranks: every scheme of context parallelism, on a ring of n processes.

The ring that was asked for gets the whole suite; the smaller powers of two get the problem that is the same at every
size, so that the report can say how the error grows. Under a launcher outside there is the one ring that it started.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from attncheck.core import codec
from attncheck.core.cases import Case
from attncheck.core.errors import BadUsage, Following, Unanswered
from attncheck.core.findings import Finding, Problem, Report
from attncheck.core.results.error_growth import BOUND, growths, told
from attncheck.core.results.verdicts import BackendState, MeasuredOn, Repeats, Run
from attncheck.core.snapshot import Snapshot
from attncheck.doctor import engine
from attncheck.measure import determinism, parity
from attncheck.ring import communication, communication_findings, suites
from attncheck.workers import execution
from attncheck.workers.execution import Bench, Progress
from attncheck.workers.launcher_env import place
from attncheck.workers.pool import Event, cores
from attncheck.workers.ranks import RENDEZVOUS_SECONDS, Ranks, RanksJob

EMULATED = "2.8"  # the generation of flash-attn that stands in where there is none


@dataclass(frozen=True)
class Ring:
    """The ring that was asked for; flash-attn's kernels are emulated where there is no GPU, unless `emulate` says."""

    size: int
    emulate: bool | None = None
    rendezvous: float = RENDEZVOUS_SECONDS
    communication: bool = True  # checked first
    extra_path: str = ""  # a folder of packages that ranks find before the environment's

    def emulated(self, bench: Bench) -> bool:
        """Say whether plain torch stands in for flash-attn's kernels."""
        return not bench.gpu if self.emulate is None else self.emulate


def job(ring: Ring, bench: Bench, size: int, items: Sequence[tuple[str, str]], message: dict[str, object]) -> RanksJob:
    """Return the work of `size` ranks on `items`, (backend, name)."""
    whole = {
        "device": bench.device,
        "threads": 1 if bench.gpu else max(1, cores() // size),  # one, as torchrun leaves a training rank
        "emulate": EMULATED if ring.emulated(bench) else "",
        **message,
    }
    return RanksJob(size, whole, tuple(items), bench.seconds, ring.rendezvous, ring.extra_path)


def schemes(bench: Bench, names: Sequence[str]) -> tuple[list[BackendState], list[BackendState]]:
    """Return every backend's state, and the context-parallel ones to measure. Raises `Unanswered` where none is."""
    states = execution.census(bench)
    chosen = execution.choose(states, names, ranks=True)
    if not chosen:
        missing = "; ".join(dict.fromkeys(s.missing for s in states if s.missing and s.over_ranks))
        raise Unanswered(f"no context-parallel backend can be measured here: {missing}")
    return states, chosen


def chosen_cases(request: parity.Request, snapshot: Snapshot, ring: Ring) -> dict[int, tuple[Case, ...]]:
    """Return the cases to run at each ring size. Raises `BadUsage` where none is left."""
    model = execution.model_of(snapshot)
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
    return (ring.size,) if place(os.environ) is not None or request.cases else (*smaller, ring.size)


def run(snapshot: Snapshot, request: parity.Request, ring: Ring, bench: Bench, say: Callable[[str], None]) -> Report:
    """Return the report of parity over ranks. Raises `Unanswered` where nothing can be measured."""
    began = time.monotonic()
    by_size = chosen_cases(request, snapshot, ring)
    say("looking for backends")
    states, chosen = schemes(bench, request.backends)
    talk = talked(snapshot, ring, bench, say)
    if silent(talk):
        return talk
    by_name = {case.name: case for cases in by_size.values() for case in cases}
    jobs = [_parity_job(ring, bench, size, cases, chosen) for size, cases in by_size.items() if cases]
    progress = Progress(say, sum(len(job.items) for job in jobs))
    runs: list[Run] = []

    def tell(event: Event) -> None:
        progress.hear(event)
        if event.kind != "started":
            runs.append(parity.run_of(event, by_name[event.item]))

    ranks = Ranks(bench.python, place(os.environ))
    until = None if request.budget is None else began + request.budget
    left = [item for job in jobs for item in ranks.run(job, tell, until)]
    only_rank_0_speaks(ranks)
    if not runs:
        raise Unanswered("nothing was measured: --budget ended before the first case")
    name = "model" if execution.model_of(snapshot) is not None else request.suite
    on = measured_on(ranks, ring, bench, request.seed, began, name, len(left))
    found = report(snapshot, tuple(states), parity.in_order(runs, chosen, tuple(by_name.values())), on)
    return engine.added(replace(found, communication=talk.communication), talk.findings)


def talked(snapshot: Snapshot, ring: Ring, bench: Bench, say: Callable[[str], None]) -> Report:
    """Return what the check of communication says, which comes before anything is computed over ranks."""
    asked = Report(snapshot, (), (), (), asked="communication")
    if not ring.communication or ring.size == 1:
        return asked
    found = communication.run(ring.size, bench, snapshot, say, rendezvous=ring.rendezvous)
    return replace(asked, findings=communication_findings.findings(found), communication=found)


def doctored(
    report: Report, ring: Ring, bench: Bench, select: Sequence[str], ignore: Sequence[str], say: Callable[[str], None]
) -> Report:
    """Return doctor's report with what ranks find when they talk to each other."""
    talk = talked(report.snapshot, ring, bench, say)
    if place(os.environ) is not None and not talk.communication.exchanges:
        raise Following("")
    return engine.added(replace(report, communication=talk.communication), talk.findings, select, ignore)


def silent(talk: Report) -> bool:
    """Say whether ranks cannot talk, so that whatever they compute together would mean nothing."""
    return any(finding.code in ("ATN520", "ATN521") for finding in talk.findings)


def _parity_job(
    ring: Ring, bench: Bench, size: int, cases: tuple[Case, ...], chosen: Sequence[BackendState]
) -> RanksJob:
    items = [(state.name, case.name) for state in chosen for case in cases]
    return job(ring, bench, size, items, {"task": "parity", "cases": codec.plain(cases)})


def only_rank_0_speaks(ranks: Ranks) -> None:
    """Raise `Following` on every rank but the first of a launcher outside: rank 0 reports for all."""
    if ranks.follows:
        raise Following("")


def measured_on(
    ranks: Ranks, ring: Ring, bench: Bench, seed: int, began: float, suite: str = "", not_reached: int = 0
) -> MeasuredOn:
    """Return what was measured on, with the ring; `began` is a time.monotonic() value."""
    kind, name, torch = (str(ranks.device.get(key, "")) for key in ("kind", "name", "torch"))
    on = MeasuredOn(kind, name, torch, suite, seed, round(time.monotonic() - began, 3), not_reached)
    names = tuple(str(name) for name in ranks.device.get("put_back", ()))
    return replace(on, ring_size=ring.size, emulated=ring.emulated(bench), put_back=names)


def report(snapshot: Snapshot, states: tuple[BackendState, ...], runs: tuple[Run, ...], on: MeasuredOn) -> Report:
    """Return the report on measured runs: pure judging, as parity's, and how errors grow with the ring."""
    found = growths(runs)
    findings = tuple(_grows(growth.backend, told(growth)) for growth in found if growth.beyond > BOUND)
    plain = parity.report(snapshot, states, runs, on)
    return replace(plain, findings=plain.findings + findings, growth=found)


def _grows(backend: str, words: str) -> Finding:
    return engine.stamped("ATN605", Problem(f"the error of {backend} grows with the ring", (words,), (), backend))


def repeat(
    snapshot: Snapshot, request: determinism.Request, ring: Ring, bench: Bench, say: Callable[[str], None]
) -> Report:
    """Return the report of determinism over ranks. Raises `Unanswered` where nothing can be repeated."""
    began = time.monotonic()
    cases = determinism.ring_cases(snapshot, request.seed, bench.gpu, ring.size)
    say("looking for backends")
    states, chosen = schemes(bench, request.backends)
    talk = talked(snapshot, ring, bench, say)
    if silent(talk):
        return talk
    items = [
        (state.name, f"{case.name}@{mode}")
        for state in chosen
        for case in cases
        for mode in determinism.modes(state.name)
    ]
    message = {"task": "determinism", "repeats": request.repeats, "cases": codec.plain(cases)}
    work = job(ring, bench, ring.size, items, message)
    work = replace(work, seconds=bench.seconds * max(2.0, request.repeats / 6))
    progress = Progress(say, len(items))
    found: list[Repeats] = []

    def tell(event: Event) -> None:
        progress.hear(event)
        if event.kind != "started":
            found.append(determinism.repeats_of(event, cases))

    ranks = Ranks(bench.python, place(os.environ))
    ranks.run(work, tell)
    only_rank_0_speaks(ranks)
    order = {state.name: index for index, state in enumerate(chosen)}
    found.sort(key=lambda item: (order[item.backend], item.case.layout))
    on = measured_on(ranks, ring, bench, request.seed, began)
    told = determinism.report(snapshot, tuple(states), tuple(found), on)
    return engine.added(replace(told, communication=talk.communication), talk.findings)
