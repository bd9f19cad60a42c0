"""Trains small models the way the job will, searches changes that fix failed checks, and reports both.

First every check is run with the plan as given. Then, for each failed check, changes of the plan are run. Finally every
check is run with all accepted changes. The report ends with that plan, ready to paste.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from attncheck.core.io.errors import BadUsage, Unanswered
from attncheck.core.plan import Change, Plan
from attncheck.core.report import HUGE, UNMEASURED, Finding, Fix, InterruptedRun, MeasuredOn, Problem, Report, Verdict
from attncheck.core.results.smoke import (
    CheckResult,
    PlanRun,
    Settings,
    SmokeSection,
    deciding_reason,
    describe_measure,
    describe_undecided,
    find_undecided,
    judge_result,
    worst_first,
)
from attncheck.core.snapshot import Snapshot
from attncheck.doctor import engine
from attncheck.doctor.queries.hub_fallback import explain_uncached_kernel
from attncheck.lint import frameworks, plan_settings
from attncheck.ring.group import Ring
from attncheck.smoke import checks, fix_search, over_ranks, package_trials
from attncheck.smoke.fix_search import AcceptedChange, SearchResult
from attncheck.smoke.package_trials import PackageTrial
from attncheck.smoke.trials import (
    NOT_REACHED,
    PARALLEL_CHECK,
    Trial,
    TrialRunner,
    failed_checks,
    find_result,
    seconds_since,
)
from attncheck.workers.execution import ExecutionTarget
from attncheck.workers.launcher_env import RankEnv, read_rank_env

DOES_NOT_RUN = "ATN347"  # the code of errors that prevent every check
DEFAULT_MODELS = ("llama", "qwen2")  # the models to train without a named one
# names of stand-ins that are found within a model's name
SHAPES = ("qwen2", "qwen3", "mistral", "gemma2", "gemma3", "gpt_oss", "llama")


@dataclass(frozen=True)
class Request:
    """The request: the plan, the models, the names of the checks, and the fixes that may be tried."""

    plan: Plan = Plan()
    models: tuple[str, ...] = DEFAULT_MODELS
    check_names: tuple[str, ...] = ()
    full: bool = False
    fix: bool = True
    try_packages: bool = False
    ring: Ring | None = None


def parse_check_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the requested checks, each once. Raises `BadUsage` naming the known ones."""
    known_checks = checks.load()[0]
    for name in names:
        if name not in known_checks:
            raise BadUsage(f"--only {name!r} is not one of {', '.join(known_checks)}")
    return tuple(dict.fromkeys(names))


def validate_request(request: Request) -> None:
    """Raise `BadUsage` for incompatible options."""
    if request.full and request.models == DEFAULT_MODELS:
        raise BadUsage("--full trains the real weights of a MODEL; name one")
    if request.plan.learning_rate <= 0:
        raise BadUsage("the learning rate must be above 0")


def run(
    snapshot: Snapshot, request: Request, target: ExecutionTarget, report_progress: Callable[[str], None]
) -> Report:
    """Return the report of the request. Raises `Unanswered` if nothing can be run."""
    began = time.monotonic()
    request = restrict_to_rank(request, read_rank_env(os.environ))
    plan = choose_implementation(request.plan, snapshot, target)
    emulates_flash_attn = request.ring is not None and request.ring.is_emulated(target)
    if not emulates_flash_attn and (reason := explain_uncached_kernel(snapshot, plan.attn_implementation)):
        raise Unanswered(reason)
    runner = TrialRunner(target, report_progress, {"full": request.full})
    first_runs: list[PlanRun] = []
    searches: list[SearchResult] = []
    package_trials_per_model: list[tuple[PackageTrial, ...]] = []
    try:
        trials = [Trial(model, plan, "", request.check_names) for model in request.models]
        first_runs += _run_trials(request, runner, trials)
        _require_results(first_runs)
        searches += (_search_changes(plan_run, request, runner) for plan_run in first_runs)
        package_trials_per_model += (_try_packages(plan_run, snapshot, request, runner) for plan_run in first_runs)
    except KeyboardInterrupt:
        first_runs = first_runs or list(runner.finished)
        not_reached = sum(result.reason == NOT_REACHED for plan_run in first_runs for result in plan_run.results)
        if not_reached == sum(len(plan_run.results) for plan_run in first_runs):
            raise
        searches += (SearchResult((), (), plan_run) for plan_run in first_runs[len(searches) :])
        package_trials_per_model += [()] * (len(first_runs) - len(package_trials_per_model))
        measured_on = replace(
            _make_measured_on(request, plan, runner, began), not_reached=not_reached, interrupted=True
        )
        report = make_report(snapshot, first_runs, searches, measured_on, package_trials_per_model)
        raise InterruptedRun(report) from None
    measured_on = _make_measured_on(request, plan, runner, began)
    return make_report(snapshot, first_runs, searches, measured_on, package_trials_per_model)


def _make_measured_on(request: Request, plan: Plan, runner: TrialRunner, began: float) -> MeasuredOn:
    """Return the record of the device, the seed, the seconds and the ring."""
    device, target = runner.device, runner.target
    return MeasuredOn(
        str(device.get("kind", "")),
        str(device.get("name", "")),
        str(device.get("torch", "")),
        seed=plan.seed,
        seconds=seconds_since(began),
        ring_size=plan.ring_size if plan.ring_size > 1 else 0,
        emulated=plan.ring_size > 1 and request.ring is not None and request.ring.is_emulated(target),
    )


def find_shape(name: str) -> str:
    """Return the small architecture with the longest name that is in a model's name, "" if there is none."""
    text = name.lower().replace("-", "").replace("_", "").replace(".", "")
    return max((shape for shape in SHAPES if shape.replace("_", "") in text), key=len, default="")


def restrict_to_rank(request: Request, rank_env: RankEnv | None) -> Request:
    """Return the request for a rank of an external launcher: one model, once; rank 0 also runs other checks.

    A second group of ranks is impossible there, so nothing that needs one is tried. Raises `BadUsage` without a ring.
    """
    if rank_env is None:
        return request
    if request.ring is None:
        raise BadUsage(f"under a launcher of {rank_env.world_size} ranks, pass --ring-size {rank_env.world_size}")
    check_names = request.check_names if rank_env.rank == 0 else (PARALLEL_CHECK,)
    return replace(request, models=request.models[:1], check_names=check_names, fix=False, try_packages=False)


def choose_implementation(plan: Plan, snapshot: Snapshot, target: ExecutionTarget) -> Plan:
    """Return the plan with an implementation: the named one, flash-attn if installed, or transformers' default.

    A ring needs flash_attention_2, which the adapter replaces.
    """
    if plan.attn_implementation:
        return plan
    needs_adapter = plan.ring_size > 1 and plan.scheme == "llama3"
    if plan.precision != "fp32" and (needs_adapter or (target.uses_gpu and snapshot.has("flash-attn"))):
        return replace(plan, attn_implementation="flash_attention_2")
    return plan


def _run_trials(request: Request, runner: TrialRunner, trials: Sequence[Trial]) -> list[PlanRun]:
    """Return the plan run of each trial, on one device and across ranks.

    If flash-attn is emulated for the ranks, one device does not have it and runs transformers' default.
    """
    emulated = request.ring is not None and request.ring.is_emulated(runner.target)
    local_trials = [
        replace(trial, plan=replace(trial.plan, attn_implementation="")) if emulated else trial for trial in trials
    ]
    local_runs = zip(runner.run(local_trials), trials, strict=True)
    plan_runs = [replace(plan_run, plan=trial.plan) for plan_run, trial in local_runs]
    return [_add_parallel_check(plan_run, request, runner) for plan_run in plan_runs]


def _add_parallel_check(plan_run: PlanRun, request: Request, runner: TrialRunner) -> PlanRun:
    """Return a plan run with the result of the check across ranks, if that applies and is requested.

    Ranks are started once per plan: the run of all checks with a change reuses the result that proved the change.
    """
    check = checks.load()[0].get(PARALLEL_CHECK)
    if check is None or request.ring is None or check.applies(plan_run.plan):
        return plan_run
    if request.check_names and PARALLEL_CHECK not in request.check_names:
        return plan_run
    key = (plan_run.model, plan_run.plan, request.ring)
    if key not in runner.over_ranks:
        runner.report_progress(f"{plan_run.model}: {check.title}")
        runner.over_ranks[key] = over_ranks.run_parallel_check(*key, runner.target, runner.report_progress)
    return replace(plan_run, results=(*plan_run.results, runner.over_ranks[key]))


def _require_results(plan_runs: Sequence[PlanRun]) -> None:
    """Raise `Unanswered` if no check applies or nothing fits into memory."""
    results = [result for plan_run in plan_runs for result in plan_run.results]
    if not results:
        raise Unanswered("no check applies to this plan")
    if all(result.outcome == "out_of_memory" for result in results):
        raise Unanswered(f"not even the small model fits into memory: {results[0].reason}")


def _search_changes(plan_run: PlanRun, request: Request, runner: TrialRunner) -> SearchResult:
    """Return the changes that fix the plan of a run; without --fix none is tried."""

    def run_changes(latest_run: PlanRun, changes: Sequence[Change], check_names: tuple[str, ...]) -> list[PlanRun]:
        trial_request = replace(request, check_names=check_names or request.check_names)
        titles = [", ".join(filter(None, (latest_run.reason, change.title))) for change in changes]
        trials = [
            Trial(latest_run.model, change.plan, title, trial_request.check_names)
            for change, title in zip(changes, titles, strict=True)
        ]
        return _run_trials(trial_request, runner, trials)

    return fix_search.search_changes(plan_run, run_changes) if request.fix else SearchResult((), (), plan_run)


def _try_packages(
    plan_run: PlanRun, snapshot: Snapshot, request: Request, runner: TrialRunner
) -> tuple[PackageTrial, ...]:
    """Return the trials of other versions of packages on the checks that a plan run fails."""
    if not request.try_packages:
        return ()

    def run_with_packages(failed_run: PlanRun, check_names: tuple[str, ...], folder: str) -> PlanRun:
        ring = replace(request.ring, extra_path=folder) if request.ring is not None else None
        trial_request = replace(request, check_names=check_names, ring=ring)
        overlay_runner = replace(runner, extra_path=folder)
        trial = Trial(failed_run.model, failed_run.plan, "with other packages", check_names)
        return _run_trials(trial_request, overlay_runner, [trial])[0]

    return package_trials.try_packages(
        plan_run, snapshot, runner.target.python, run_with_packages, runner.report_progress
    )


def make_report(
    snapshot: Snapshot,
    first_runs: Sequence[PlanRun],
    searches: Sequence[SearchResult],
    measured_on: MeasuredOn,
    package_trials_per_model: Sequence[tuple[PackageTrial, ...]] = (),
) -> Report:
    """Return the report from the results alone. The sequences have one item for each model."""
    final_runs = [search.final_run for search in searches if search.accepted]
    plan_runs = (*first_runs, *final_runs)
    final_plan = next(iter(final_runs), first_runs[0]).plan
    verdicts = tuple(
        make_verdict(f"{plan_run.model} {plan_run.reason}".strip(), result)
        for plan_run in plan_runs
        for result in plan_run.results
    )
    findings = tuple(_iter_findings(first_runs, searches, package_trials_per_model or [()] * len(first_runs)))
    section = SmokeSection(measured_on, verdicts, plan_runs, tuple(_iter_settings(snapshot, final_plan)))
    return Report("smoke", snapshot, findings, sections={"smoke": section})


def make_verdict(name: str, result: CheckResult) -> Verdict:
    """Return the verdict on what has this name by one check, of a plan or of a rehearsed launch."""
    budget_ratio = max((measure.budget_ratio for measure in result.measures), default=0.0)
    return Verdict(
        "smoke",
        name,
        result.check,
        "",
        judge_result(result),
        deciding_reason(result),
        min(budget_ratio, HUGE),
        collect_evidence(result),
    )


def collect_evidence(result: CheckResult) -> tuple[str, ...]:
    """Return the lines of evidence for a result's answer, the most severe first."""
    beyond_limit = [describe_measure(measure) for measure in worst_first(result) if measure.beyond]
    undecided = map(describe_undecided, find_undecided(result))
    return tuple(dict.fromkeys((*result.violations, *beyond_limit, *result.warnings, *undecided, *result.notes)))


@dataclass(frozen=True)
class _FailedCheck:
    """A check that failed or was lost in a model's first run, and the attempts to fix it."""

    check: checks.SmokeCheck
    plan_run: PlanRun
    result: CheckResult
    search: SearchResult
    package_trials: tuple[PackageTrial, ...]

    @property
    def is_error(self) -> bool:
        """Whether the model raised or its process died before this check had numbers, so that it has no answer."""
        return not self.check.names_errors and self.result.outcome in UNMEASURED


def _iter_findings(
    first_runs: Sequence[PlanRun],
    searches: Sequence[SearchResult],
    package_trials_per_model: Sequence[tuple[PackageTrial, ...]],
) -> Iterator[Finding]:
    """Yield one finding for each failed check, and one for all checks without numbers, over all models."""
    failed = [
        _FailedCheck(check, plan_run, result, search, trials)
        for check in checks.load()[0].values()
        for plan_run, search, trials in zip(first_runs, searches, package_trials_per_model, strict=True)
        if check.name in failed_checks(plan_run) and (result := find_result(plan_run, check.name)) is not None
    ]
    errors = [item for item in failed if item.is_error]
    if errors:
        yield _make_finding(DOES_NOT_RUN, f"the model does not run under this plan: {errors[0].result.reason}", errors)
    for check in checks.load()[0].values():
        wrong = [item for item in failed if item.check is check and not item.is_error]
        if wrong:
            yield _make_finding(check.code, check.message(wrong[0].result), wrong)


def _make_finding(code: str, message: str, failed: Sequence[_FailedCheck]) -> Finding:
    """Return the finding for these checks, with the fixes of the first model that fails them."""
    first = failed[0]
    lines = dict.fromkeys(line for item in failed for line in _evidence_lines(item))
    names = {item.check.name for item in failed}
    rejected = dict.fromkeys(title for name, title in first.search.rejected if name in names)
    if rejected:
        lines[f"tried without success: {'; '.join(rejected)}"] = None
    fixes: dict[str, Fix] = {}
    for item in failed:
        if item.plan_run is first.plan_run:
            lines |= dict.fromkeys(package_trials.describe_failed_trials(item.package_trials, item.check.name))
            for fix in (*_change_fixes(item.check.name, item.search), *_package_fixes(item)):
                fixes.setdefault(fix.title, fix)
    subject = ", ".join(dict.fromkeys(item.plan_run.model for item in failed))
    message += _name_culprit(first.check.name, first.search)
    return engine.make_finding_by_code(code, Problem(message, tuple(lines), tuple(fixes.values()), subject))


def _evidence_lines(item: _FailedCheck) -> Iterator[str]:
    for line in (collect_evidence(item.result) or (item.result.reason,))[:4]:
        yield f"{item.plan_run.model}: {line}"


def _change_fixes(check_name: str, search: SearchResult) -> Iterator[Fix]:
    """Yield the changes that fix a check as fixes, with the result of the run with all of them.

    A check that was fixed together with another has that one's accepted changes.
    """
    if not search.accepted or not fix_search.passes_check(search.final_run, check_name):
        return
    for accepted in _accepted_for(check_name, search):
        change = accepted.change
        yield Fix(change.title, change.kind, change.text, "safe", _describe_proof(check_name, search.final_run))
        if accepted.alternative is not None and accepted.check_name == check_name:
            other, plan_run = accepted.alternative
            yield Fix(other.title, other.kind, other.text, "safe", _describe_proof(check_name, plan_run))


def _accepted_for(check_name: str, search: SearchResult) -> list[AcceptedChange]:
    """Return the changes accepted for a check; if it was fixed together with others, all of them."""
    own_changes = [accepted for accepted in search.accepted if accepted.check_name == check_name]
    return own_changes or list(search.accepted)


def _name_culprit(check_name: str, search: SearchResult) -> str:
    """Return the end of a message that names the cause, if a single change fixes a check; otherwise ""."""
    if not search.accepted or not fix_search.passes_check(search.final_run, check_name):
        return ""
    accepted = _accepted_for(check_name, search)
    return f"; {accepted[0].change.culprit} causes it" if len(accepted) == 1 and accepted[0].change.culprit else ""


def _package_fixes(item: _FailedCheck) -> Iterator[Fix]:
    for trial in item.package_trials:
        if trial.fixes_check(item.check.name) and trial.plan_run is not None:
            proof = _describe_proof(item.check.name, trial.plan_run)
            yield replace(trial.fix, proven=f"in a temporary folder: {proof}")


def _describe_proof(check_name: str, plan_run: PlanRun) -> str:
    """Return the proof that a check passes: its number, and the training run with the same plan."""
    result, training = find_result(plan_run, check_name), find_result(plan_run, "training")
    reason = "the check no longer applies" if result is None else deciding_reason(result)
    if training is None or not training.steps or result is training:
        return reason
    return f"{reason}; {summarize_training(training)}"


def summarize_training(result: CheckResult) -> str:
    """Return the steps and losses of a training run in a few words: "20 steps, loss 5.54 → 2.10"."""
    losses = [step.loss for step in result.steps]
    return f"{len(losses)} steps, loss {losses[0]:.2f} → {losses[-1]:.2f}"


def _iter_settings(snapshot: Snapshot, plan: Plan) -> Iterator[Settings]:
    """Yield the plan's settings in the form of plain transformers and of each installed framework."""
    yield Settings("transformers", plan_settings.format_plan_settings(plan, "transformers"))
    for framework in frameworks.load():
        if not framework.general and snapshot.has(framework.distribution):
            version = str(getattr(snapshot.version(framework.distribution), "value", ""))
            yield Settings(framework.name, plan_settings.format_plan_settings(plan, framework.name, version))
