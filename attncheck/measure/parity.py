"""Measures every backend against the reference and judges it: cases × backends → runs → verdicts → findings."""

import fnmatch
import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from attncheck.core import codec
from attncheck.core.cases import DTYPE_ABBREVIATIONS, DTYPES, Case, Dtype
from attncheck.core.io.errors import BadUsage, Unanswered
from attncheck.core.lists import group_values
from attncheck.core.report import Finding, Fix, InterruptedRun, Problem, Report
from attncheck.core.results.parity import ParitySection
from attncheck.core.snapshot import Snapshot
from attncheck.core.verdicts import BackendState, MeasuredOn, Run, Verdict, judge_run
from attncheck.doctor import engine
from attncheck.measure import discovery, lost_cases
from attncheck.measure.parity_jobs import accepted_cases, make_job, make_jobs
from attncheck.measure.suites import COMPILED_CASES, Suite, make_model_cases, make_suite, thin_cases
from attncheck.measure.wrong_cases import describe_shared
from attncheck.workers import execution
from attncheck.workers.execution import ExecutionTarget, Progress
from attncheck.workers.pool import Event, Job, Pool, default_slots

# Cases of a backend that compiles, on the CPU, where the first one takes over 20 s of its time.
COMPILED_CASES_ON_CPU = {"quick": 0, "standard": 0, "full": 4}
MAX_SHOWN_CASES = 5  # failing cases named in a finding
NOTHING_LEFT_OF_FAILURES = "--backend, --case and --dtype exclude every case that failed last time"


@dataclass(frozen=True)
class Request:
    """The cases, backends and limits requested on the command line."""

    suite: Suite = "standard"
    backends: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    dtypes: tuple[Dtype, ...] = ()
    seed: int = 0
    repeat: int = 1  # the number of seeds, run one after another
    budget: float | None = None  # seconds
    max_seqlen: int | None = None
    only: tuple[tuple[str, str], ...] = ()  # backends, each with the name of a case; empty: all


def choose_cases(request: Request, snapshot: Snapshot) -> tuple[Case, ...]:
    """Return the cases to run. Raises `BadUsage` if none is left, `Unanswered` if the model is unreadable."""
    model = discovery.requested_model(snapshot)
    cases: list[Case] = []
    for seed in range(request.seed, request.seed + request.repeat):
        if model is None:
            cases += make_suite(request.suite, seed)
        else:
            for dtype in request.dtypes or (None,):
                cases += make_model_cases(model, request.max_seqlen, seed, dtype)
    selected = select_cases(cases, request)
    if not selected and request.only:
        raise BadUsage(NOTHING_LEFT_OF_FAILURES)
    if not selected:
        families = ", ".join(dict.fromkeys(case.family for case in cases))
        raise BadUsage(f"--case and --dtype exclude every case; families are {families}, --list prints names")
    return tuple(selected)


def select_cases(cases: Sequence[Case], request: Request) -> tuple[Case, ...]:
    """Return the cases that --case, --dtype and --last-failed select.

    If --case is the whole name of a case, with or without its seed, it selects that case. Otherwise it is a family, a
    part of a name or a pattern.
    """
    names = {name for case in cases for name in (case.name, _name_without_seed(case))}
    whole_names, patterns = (
        {text for text in request.cases if (text in names) == is_name} for is_name in (True, False)
    )
    only = {name for _, name in request.only}

    def is_selected(case: Case) -> bool:
        if (request.dtypes and case.dtype not in request.dtypes) or (only and case.name not in only):
            return False
        if not request.cases or whole_names & {case.name, _name_without_seed(case)}:
            return True
        return any(
            text == case.family or text in case.name or fnmatch.fnmatchcase(case.name, text) for text in patterns
        )

    return tuple(case for case in cases if is_selected(case))


def _name_without_seed(case: Case) -> str:
    return case.name.removesuffix(f"-seed{case.seed}")


def is_requested(backend: str, case: str, request: Request) -> bool:
    """Return whether a backend must run one of the selected cases."""
    return not request.only or (backend, case) in request.only


def parse_dtypes(texts: Iterable[str]) -> tuple[Dtype, ...]:
    """Return dtypes by their long or short names. Raises `BadUsage`."""
    dtypes_by_name: dict[str, Dtype] = dict(zip(DTYPES, DTYPES))
    dtypes_by_name |= {DTYPE_ABBREVIATIONS[name]: name for name in DTYPES}
    for text in texts:
        if text not in dtypes_by_name:
            raise BadUsage(f"--dtype {text!r} is not one of {', '.join(DTYPE_ABBREVIATIONS.values())}")
    return tuple(dtypes_by_name[text] for text in texts)


def run(
    snapshot: Snapshot, request: Request, target: ExecutionTarget, report_progress: Callable[[str], None]
) -> Report:
    """Return the report on every backend that is installed. Raises `Unanswered` if none is."""
    began = time.monotonic()
    report_progress("looking for backends")
    states = discovery.list_backends(target)
    pool = Pool(target.python, default_slots(target.uses_gpu))
    chosen_states = discovery.choose_backends(states, request.backends)
    for_any = [
        make_job("", {state.name: ()}, target, pool.slots)
        for state in chosen_states
        if target.uses_gpu or not discovery.get_backend(state.name).compiles
    ]
    with pool.prepare(*for_any):
        cases = choose_cases(request, snapshot)
        chosen_cases = {state.name: choose_backend_cases(state, cases, request, target) for state in chosen_states}
        jobs = make_jobs(chosen_cases, target, pool.slots)
        if not any(job.items for job in jobs):
            raise BadUsage(NOTHING_LEFT_OF_FAILURES)
        until = None if request.budget is None else began + request.budget
        runs, not_reached, is_interrupted = _measure(pool, jobs, cases, until, report_progress)
    if not runs and is_interrupted:
        raise KeyboardInterrupt
    if not runs:
        raise Unanswered("nothing was measured: --budget ended before the first case")
    runs += [
        Run(name, cases[0], "skipped", discovery.NOT_COMPILED)
        for name, own in chosen_cases.items()
        if not (own or request.only)
    ]
    suite_name = "model" if discovery.requested_model(snapshot) is not None else request.suite
    measured_on = execution.make_measured_on(pool, request.seed, began, suite_name, not_reached, is_interrupted)
    report = make_report(snapshot, tuple(states), sort_runs(runs, chosen_states, cases), measured_on)
    if is_interrupted:
        raise InterruptedRun(report)
    return report


def _measure(
    pool: Pool,
    jobs: Sequence[Job],
    cases: Sequence[Case],
    until: float | None,
    report_progress: Callable[[str], None],
) -> tuple[list[Run], int, bool]:
    """Return the runs, the number of those not reached, and whether an interrupt ended them."""
    runs: list[Run] = []
    by_name = {case.name: case for case in cases}
    progress = Progress(report_progress, sum(len(job.items) for job in jobs))

    def on_event(event: Event) -> None:
        name, _, backend = event.item.partition("@")
        event = replace(event, job=backend, item=name)
        progress.on_event(event)
        if event.kind != "started":
            runs.append(read_run(event, by_name[name]))

    try:
        return runs, len(pool.run(jobs, on_event, until)), False
    except KeyboardInterrupt:
        return runs, progress.total - len(runs), True


def choose_backend_cases(
    state: BackendState, cases: tuple[Case, ...], request: Request, target: ExecutionTarget
) -> tuple[Case, ...]:
    """Return the cases that a backend must run: those that it accepts, only a few if it compiles each."""
    own = tuple(case for case in cases if is_requested(state.name, case.name, request))
    if not discovery.get_backend(state.name).compiles or request.cases or request.only:
        return own
    count = (COMPILED_CASES if target.uses_gpu else COMPILED_CASES_ON_CPU)[request.suite] * request.repeat
    count = max(count, len(request.backends) > 0)
    accepted = accepted_cases(state.name, own, target) or own
    # Without TF32, Triton compiles a product of float32 for minutes.
    return thin_cases(tuple(case for case in accepted if case.dtype != "float32") or accepted, count)


def read_run(event: Event, case: Case) -> Run:
    """Return the run in an event, or the reason why there is none."""
    if event.kind == "answer":
        return codec.read(Run, event.answer)
    return Run(event.job, case, execution.unmeasured_outcome(event), event.reason)


def sort_runs(runs: Iterable[Run], states: Sequence[BackendState], cases: Sequence[Case]) -> tuple[Run, ...]:
    """Return runs by backend, then by case, regardless of the order in which they were measured."""
    backend_order = {state.name: index for index, state in enumerate(states)}
    case_order = {case.name: index for index, case in enumerate(cases)}
    return tuple(sorted(runs, key=lambda run: (backend_order[run.backend], case_order[run.case.name])))


def make_report(
    snapshot: Snapshot, states: tuple[BackendState, ...], runs: tuple[Run, ...], measured_on: MeasuredOn
) -> Report:
    """Return the report on measured runs from these alone, so that recorded runs can be judged again."""
    verdicts = tuple(judge_run(run) for run in runs)
    model = discovery.requested_model(snapshot)
    model_argument = "" if model is None else shlex.quote(model.source)
    findings = tuple(finding for state in states for finding in _make_findings(state, runs, verdicts, model_argument))
    return Report("parity", snapshot, findings, sections={"parity": ParitySection(measured_on, states, verdicts, runs)})


def _make_findings(
    state: BackendState, runs: tuple[Run, ...], verdicts: tuple[Verdict, ...], model_argument: str
) -> list[Finding]:
    pairs = [(run, verdict) for run, verdict in zip(runs, verdicts) if run.backend == state.name]
    matches_by_code: list[tuple[str, list[tuple[Run, Verdict]]]] = [
        ("ATN603", [p for p in pairs if p[0].foreign_kernels]),
        ("ATN604", [p for p in pairs if p[0].outcome in ("raised", "died", "timed_out")]),
        ("ATN601", [p for p in pairs if p[1].answer == "fail" and p[0].outcome == "ok" and not p[0].foreign_kernels]),
        ("ATN602", [p for p in pairs if p[1].answer == "warn" and not p[0].warnings]),
        ("ATN607", [p for p in pairs if p[1].answer == "warn" and p[0].warnings]),
    ]
    judged_count = sum(verdict.answer in ("pass", "warn", "fail", "lost") for _, verdict in pairs)
    return [
        engine.make_finding_by_code(
            code, _make_problem(code, state, matches, judged_count, runs, verdicts, model_argument)
        )
        for code, matches in matches_by_code
        if matches
    ]


_MESSAGES = {
    "ATN601": "{backend} is wrong in {cases}",
    "ATN602": "{backend} is less precise than a kernel of its class in {cases}",
    "ATN603": "{backend} was requested, but another kernel ran in {cases}",
    "ATN604": "{backend} crashes or hangs in {cases}",
    "ATN607": "{backend} is correct, but has a side effect, in {cases}",
}


def _make_problem(
    code: str,
    state: BackendState,
    matches: list[tuple[Run, Verdict]],
    judged_count: int,
    runs: tuple[Run, ...],
    verdicts: tuple[Verdict, ...],
    model_argument: str,
) -> Problem:
    backend = state.name
    worst = sorted(matches, key=lambda pair: -pair[1].budget_ratio)
    cases = f"{len(matches)} of {judged_count} case{'s' * (judged_count != 1)}"
    evidence: list[str] = []
    for _, verdict in worst[:MAX_SHOWN_CASES]:
        evidence.append(f"{verdict.case}: {verdict.reason}")
        evidence += [f"  {line}" for line in verdict.evidence[:2]]
    if len(worst) > MAX_SHOWN_CASES:
        evidence.append(f"… and {len(worst) - MAX_SHOWN_CASES} more: -v lists them")
    families = sorted({run.case.family for run, _ in matches})
    evidence.append(f"families: {', '.join(families)}")
    lost = lost_cases.describe(state, [run for run in runs if run.backend == backend]) if code == "ATN604" else None
    if lost is not None:
        evidence[:0] = lost.lines
    elif code in ("ATN601", "ATN602"):
        right = [run for run, verdict in zip(runs, verdicts) if run.backend == backend and verdict.answer == "pass"]
        evidence[:0] = describe_shared([run for run, _ in matches], right)
    fixes = [
        *_suggest_off_switch(backend, matches, runs, verdicts),
        *_suggest_backend(backend, matches, runs, verdicts),
        *_suggest_reproducer(worst, model_argument, lost.missing_feature if lost is not None else ""),
    ]
    return Problem(_MESSAGES[code].format(backend=backend, cases=cases), tuple(evidence), tuple(fixes), backend)


def _suggest_off_switch(
    backend: str, matches: list[tuple[Run, Verdict]], runs: tuple[Run, ...], verdicts: tuple[Verdict, ...]
) -> list[Fix]:
    """Return a fix that turns off one of SDPA's backends, if all others that run these cases pass them."""
    switch = discovery.off_switch(backend)
    case_names = {run.case.name for run, _ in matches}
    answers_by_backend: dict[str, set[str]] = {}
    passed: set[str] = set()
    for run, verdict in zip(runs, verdicts):
        others = run.backend.startswith("sdpa_") and run.backend != backend
        if switch and others and run.case.name in case_names and verdict.answer not in ("refused", "skipped"):
            answers_by_backend.setdefault(run.backend, set()).add(verdict.answer)
            passed |= {run.case.name} if verdict.answer == "pass" else set()
    if passed != case_names or any(answers != {"pass"} for answers in answers_by_backend.values()):
        return []
    proven = f"{', '.join(answers_by_backend)}, SDPA's other backends, pass these {len(case_names)} cases"
    return [Fix(f"prevent SDPA from choosing {backend}", "setting", switch, proven=proven)]


def _suggest_backend(
    backend: str, matches: list[tuple[Run, Verdict]], runs: tuple[Run, ...], verdicts: tuple[Verdict, ...]
) -> list[Fix]:
    """Return a fix that names the passing backend with the least error on these cases; eager and math come last."""
    case_names = {run.case.name for run, _ in matches}
    passes_by_backend = group_values(
        (run.backend, verdict)
        for run, verdict in zip(runs, verdicts)
        if run.case.name in case_names and verdict.answer == "pass" and run.backend != backend
    )
    passing_backends = [
        name
        for name, passes in passes_by_backend.items()
        if len(passes) == len(case_names) and discovery.job_setting(name)
    ]
    passing_backends.sort(
        key=lambda name: (name in ("eager", "sdpa_math"), max(v.budget_ratio for v in passes_by_backend[name]))
    )
    fixes = []
    for name in passing_backends[:1]:
        worst = max(verdict.budget_ratio for verdict in passes_by_backend[name])
        error = f", worst error {worst:.2g} of its budget" if worst else ""
        proven = f"{len(case_names)} of these cases pass{error}"
        fixes.append(Fix(f"use {name}", "setting", discovery.job_setting(name), proven=proven))
    return fixes


def _suggest_reproducer(worst: list[tuple[Run, Verdict]], model_argument: str, missing_feature: str = "") -> list[Fix]:
    """Return the fix that runs only the worst case; `missing_feature` is the feature that the build may lack."""
    run = worst[0][0]
    if run.outcome == "died" and not run.kernels and "did not start" in run.reason:
        return []
    arguments = ["attncheck parity", *filter(None, (model_argument,)), f"--backend {run.backend}"]
    if discovery.is_context_parallel(run.backend):
        ring = f"--ring-size {run.case.context_parallel_size} --case {run.case.name}"
        return [Fix("run only this case", "advice", " ".join([*arguments, ring]))]
    command = " ".join([*arguments, f"--explain-case {run.case.name} > reproduce.py"])
    title = "report it upstream with a standalone script"
    if missing_feature:
        title = f"{missing_feature} (not tried here); if the build has it, this script shows the fault in isolation"
    return [Fix(title, "advice", command)]
