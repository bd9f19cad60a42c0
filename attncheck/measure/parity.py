"""Measures every backend against the reference and judges it: cases × backends → runs → verdicts → findings."""

from __future__ import annotations

import fnmatch
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from attncheck.attention.backend import Device
from attncheck.core import codec
from attncheck.core.cases import DTYPES, SHORT, Case, Dtype
from attncheck.core.errors import BadUsage, Unanswered
from attncheck.core.findings import Finding, Fix, Problem
from attncheck.core.report import Report
from attncheck.core.results.parity import ParitySection
from attncheck.core.results.verdicts import BackendState, MeasuredOn, Run, Verdict, judge
from attncheck.core.snapshot import Snapshot
from attncheck.doctor import engine
from attncheck.measure import discovery
from attncheck.measure.suites import COMPILED, Suite, for_model, suite, thinned
from attncheck.workers import execution
from attncheck.workers.execution import ExecutionTarget, Progress
from attncheck.workers.pool import Event, Job, Pool, default_slots

SHOWN = 5  # failing cases named in a finding
COMPILERS = 3  # workers that share a backend which compiles each case
ON_CPU = {"quick": 1, "standard": 2, "full": 4}  # cases of a backend that compiles, on the CPU
COMPILE_FACTOR = 4.0  # a backend that compiles gets this many times the deadline


@dataclass(frozen=True)
class Request:
    """What was asked for on the command line."""

    suite: Suite = "standard"
    backends: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    dtypes: tuple[Dtype, ...] = ()
    seed: int = 0
    repeat: int = 1  # how many seeds, one after another
    budget: float | None = None  # seconds
    longest: int | None = None


def chosen_cases(request: Request, snapshot: Snapshot) -> tuple[Case, ...]:
    """Return the cases to run. Raises `BadUsage` where nothing is left, `Unanswered` for a model that is unreadable."""
    model = discovery.readable_model(snapshot)
    cases: list[Case] = []
    for seed in range(request.seed, request.seed + request.repeat):
        if model is None:
            cases += suite(request.suite, seed)
        else:
            for dtype in request.dtypes or (None,):
                cases += for_model(model, request.longest, seed, dtype)
    kept = [case for case in cases if wanted(case, request)]
    if not kept:
        known = ", ".join(dict.fromkeys(case.family for case in cases))
        raise BadUsage(f"no case is left by --case and --dtype; families are {known}, names are listed by -v")
    return tuple(kept)


def wanted(case: Case, request: Request) -> bool:
    """Say whether --case and --dtype leave a case in."""
    if request.dtypes and case.dtype not in request.dtypes:
        return False
    return not request.cases or any(
        word == case.family or word in case.name or fnmatch.fnmatchcase(case.name, word) for word in request.cases
    )


def dtypes(words: Iterable[str]) -> tuple[Dtype, ...]:
    """Return dtypes by their long or short names. Raises `BadUsage`."""
    names: dict[str, Dtype] = dict(zip(DTYPES, DTYPES))
    names |= {SHORT[name]: name for name in DTYPES}
    for word in words:
        if word not in names:
            raise BadUsage(f"--dtype {word!r} is not one of {', '.join(SHORT.values())}")
    return tuple(names[word] for word in words)


def run(snapshot: Snapshot, request: Request, bench: ExecutionTarget, say: Callable[[str], None]) -> Report:
    """Return the report on every backend that is here. Raises `Unanswered` where none is."""
    began = time.monotonic()
    cases = chosen_cases(request, snapshot)
    say("looking for backends")
    states = discovery.list_backends(bench)
    chosen = discovery.choose_backends(states, request.backends)
    pool = Pool(bench.python, default_slots(bench.uses_gpu))
    jobs = [job for state in chosen for job in _jobs(state, cases, request, bench, pool.slots)]
    jobs.sort(key=lambda job: not discovery.get_backend(job.name).compiles)  # the slow ones first
    runs: list[Run] = []
    by_name = {case.name: case for case in cases}
    progress = Progress(say, sum(len(job.items) for job in jobs))

    def tell(event: Event) -> None:
        progress.on_event(event)
        if event.kind != "started":
            runs.append(run_of(event, by_name[event.item]))

    until = None if request.budget is None else began + request.budget
    left = pool.run(jobs, tell, until)
    if not runs:
        raise Unanswered("nothing was measured: --budget ended before the first case")
    name = "model" if discovery.readable_model(snapshot) is not None else request.suite
    on = execution.make_measured_on(pool, request.seed, began, name, len(left))
    return report(snapshot, tuple(states), in_order(runs, chosen, cases), on)


def _jobs(
    state: BackendState, cases: tuple[Case, ...], request: Request, bench: ExecutionTarget, slots: int
) -> Iterator[Job]:
    """Yield the work on one backend: one worker's, or several workers' where each case is compiled for seconds."""
    compiles = discovery.get_backend(state.name).compiles
    parts = 1
    if compiles and not request.cases:
        device = Device("cuda" if bench.uses_gpu else "cpu", compute_capability=(99, 0), torch=(99, 0))
        accepted = tuple(case for case in cases if not discovery.get_backend(state.name).refuse(case, device))
        cases = thinned(accepted or cases, (COMPILED if bench.uses_gpu else ON_CPU)[request.suite] * request.repeat)
        parts = min(COMPILERS, slots, len(cases)) if bench.uses_gpu else 1
    message = {
        "task": "attncheck.measure.worker.tasks:parity",
        "backend": state.name,
        "device": bench.device,
        "threads": bench.threads_per_worker(slots),
        "slots": slots,
        "seconds": bench.seconds,
        "cases": codec.plain(cases),
    }
    seconds = bench.seconds * (COMPILE_FACTOR if compiles else 1.0)
    for part in range(parts):
        yield Job(state.name, message, tuple(case.name for case in cases[part::parts]), seconds)


def run_of(event: Event, case: Case) -> Run:
    """Return the run that an event answers, or why there is none."""
    if event.kind == "answer":
        return codec.read(Run, event.answer)
    return Run(event.job, case, execution.unmeasured_outcome(event), event.reason)


def in_order(runs: Iterable[Run], states: Sequence[BackendState], cases: Sequence[Case]) -> tuple[Run, ...]:
    """Return runs by backend, then by case, however they came in."""
    backends = {state.name: index for index, state in enumerate(states)}
    places = {case.name: index for index, case in enumerate(cases)}
    return tuple(sorted(runs, key=lambda run: (backends[run.backend], places[run.case.name])))


def report(snapshot: Snapshot, states: tuple[BackendState, ...], runs: tuple[Run, ...], on: MeasuredOn) -> Report:
    """Return the report on measured runs: pure judging, so that recorded runs can be judged again."""
    verdicts = tuple(judge(run) for run in runs)
    asked = discovery.readable_model(snapshot)
    model = "" if asked is None else shlex.quote(asked.source)
    findings = tuple(finding for state in states for finding in _findings(state.name, runs, verdicts, model))
    return Report("parity", snapshot, findings, sections={"parity": ParitySection(on, states, verdicts, runs)})


def _findings(backend: str, runs: tuple[Run, ...], verdicts: tuple[Verdict, ...], model: str) -> list[Finding]:
    pairs = [(run, verdict) for run, verdict in zip(runs, verdicts) if run.backend == backend]
    kinds: list[tuple[str, list[tuple[Run, Verdict]]]] = [
        ("ATN603", [p for p in pairs if p[0].foreign_kernels]),
        ("ATN604", [p for p in pairs if p[0].outcome in ("raised", "died", "timed_out")]),
        ("ATN601", [p for p in pairs if p[1].answer == "fail" and p[0].outcome == "ok" and not p[0].foreign_kernels]),
        ("ATN602", [p for p in pairs if p[1].answer == "warn"]),
    ]
    judged = sum(verdict.answer in ("pass", "warn", "fail", "lost") for _, verdict in pairs)
    return [
        engine.make_finding_by_code(code, _problem(code, backend, found, judged, runs, verdicts, model))
        for code, found in kinds
        if found
    ]


_SAYS = {
    "ATN601": "{backend} is wrong in {cases}",
    "ATN602": "{backend} is less precise than a kernel of its class in {cases}",
    "ATN603": "{backend} was asked for, and something else ran in {cases}",
    "ATN604": "{backend} does not survive {cases}",
}


def _problem(
    code: str,
    backend: str,
    found: list[tuple[Run, Verdict]],
    judged: int,
    runs: tuple[Run, ...],
    verdicts: tuple[Verdict, ...],
    model: str,
) -> Problem:
    worst = sorted(found, key=lambda pair: -pair[1].budget_ratio)
    cases = f"{len(found)} of {judged} case{'s' * (judged != 1)}"
    evidence: list[str] = []
    for _, verdict in worst[:SHOWN]:
        evidence.append(f"{verdict.case}: {verdict.reason}")
        evidence += [f"  {line}" for line in verdict.evidence[:2]]
    if len(worst) > SHOWN:
        evidence.append(f"… and {len(worst) - SHOWN} more: -v lists them")
    families = sorted({run.case.family for run, _ in found})
    evidence.append(f"families: {', '.join(families)}")
    fixes = [*_ways_out(backend, found, runs, verdicts), *_reproducer(worst, model)]
    return Problem(_SAYS[code].format(backend=backend, cases=cases), tuple(evidence), tuple(fixes), backend)


def _ways_out(
    backend: str, found: list[tuple[Run, Verdict]], runs: tuple[Run, ...], verdicts: tuple[Verdict, ...]
) -> list[Fix]:
    """Return the backend that passed the very cases in which this one failed, nearest to its budget last."""
    wanted = {run.case.name for run, _ in found}
    passed: dict[str, list[Verdict]] = {}
    for run, verdict in zip(runs, verdicts):
        if run.case.name in wanted and verdict.answer == "pass" and run.backend != backend:
            passed.setdefault(run.backend, []).append(verdict)
    whole = [name for name, found in passed.items() if len(found) == len(wanted) and discovery.job_setting(name)]
    whole.sort(key=lambda name: (name in ("eager", "sdpa_math"), max(v.budget_ratio for v in passed[name])))
    fixes = []
    for name in whole[:1]:
        worst = max(verdict.budget_ratio for verdict in passed[name])
        proven = f"{len(wanted)} of these cases pass, worst error {worst:.2g} of its budget"
        fixes.append(Fix(f"use {name}", "setting", discovery.job_setting(name), proven=proven))
    return fixes


def _reproducer(worst: list[tuple[Run, Verdict]], model: str) -> list[Fix]:
    run = worst[0][0]
    if run.outcome == "died" and not run.kernels and "did not start" in run.reason:
        return []
    words = ["attncheck parity", *filter(None, (model,)), f"--backend {run.backend}"]
    if discovery.is_context_parallel(run.backend):
        ring = f"--ring-size {run.case.context_parallel_size} --case {run.case.name}"
        return [Fix("run this case alone", "command", " ".join([*words, ring]))]
    command = " ".join([*words, f"--explain-case {run.case.name} > reproduce.py"])
    return [Fix("report it upstream with a script that stands alone", "command", command)]
