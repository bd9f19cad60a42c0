"""Runs the probes, parity and smoke with the new versions from a temporary folder, and compares the results."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from attncheck.core.io.errors import Unanswered
from attncheck.core.report import Finding, InterruptedRun, Problem, Report
from attncheck.core.results.upgrade import TrialStage
from attncheck.core.snapshot import Snapshot
from attncheck.doctor import engine
from attncheck.doctor.repair.overlays import REPORTED_BY_FOLDER, collect_beside, complete_overlay, hide_folder
from attncheck.measure import parity
from attncheck.smoke import run as smoke
from attncheck.stacks.diff.one_sided import make_key
from attncheck.stacks.upgrade.compare import Comparison, Judging, compare_snapshots
from attncheck.stacks.upgrade.moves import Moves, list_torch_moves, resolve_moves
from attncheck.stacks.upgrade.requests import UpgradeRequest
from attncheck.workers.deadline import OutOfTime, interrupt_after
from attncheck.workers.execution import ExecutionTarget

DOES_NOT_RUN = "ATN926"
STAGES = ("imports", "parity", "smoke")
PARITY_SECONDS = 180.0
SMALL_MODELS = ("llama",)  # models without a name
Progress = Callable[[str], None]
Run = Callable[[ExecutionTarget], Report]


@dataclass(frozen=True)
class TrialRequest:
    """What to try, and for how long. `options` are the installer's: the sources of wheels."""

    upgrade: UpgradeRequest
    stages: tuple[str, ...] = STAGES
    options: tuple[str, ...] = ()
    seconds: float = 1800.0


@dataclass
class TrialOutcome:
    """The results of a trial so far; it is filled stage by stage, so that an interrupt leaves the finished ones."""

    stages: list[TrialStage] = field(default_factory=list)
    moves: Moves = Moves((), (), ())
    comparison: Comparison | None = None  # based on the results of imports
    findings: list[Finding] = field(default_factory=list)  # findings of parity and smoke with the new versions only
    lost: tuple[str, ...] = ()

    def add(self, name: str, worse: int, detail: str) -> None:
        """Add a stage that ran."""
        self.stages.append(TrialStage(name, "worse" if worse else "same", detail))

    def leave_out(self, name: str, reason: str) -> None:
        """Add a stage that did not run."""
        self.stages.append(TrialStage(name, "not_run", reason))


def run_trial(
    request: TrialRequest,
    before: Snapshot,
    judging: Judging,
    target: ExecutionTarget,
    outcome: TrialOutcome,
    report_progress: Progress,
) -> None:
    """Fill `outcome` with the results of the new versions in a temporary folder. The environment is never changed.

    If packages cannot be installed, or a stage does not start before the deadline, it counts as not run. Ctrl-C is
    raised again after the folder is removed.
    """
    try:
        with interrupt_after(request.seconds):
            _run_stages(request, before, judging, target, outcome, report_progress)
    except Unanswered as error:
        outcome.leave_out("install", str(error))
    except OutOfTime:
        done = {stage.name for stage in outcome.stages}
        for name in ("install", *request.stages):
            if name not in done:
                outcome.leave_out(name, f"the trial's {request.seconds:.0f} s were used up")
    except InterruptedRun:
        raise KeyboardInterrupt from None  # an interrupted comparison is not used


def _run_stages(
    request: TrialRequest,
    before: Snapshot,
    judging: Judging,
    target: ExecutionTarget,
    outcome: TrialOutcome,
    report_progress: Progress,
) -> None:
    packages = request.upgrade.packages
    outcome.moves = moves = resolve_moves(target.python, packages, before, request.options, report_progress)
    torch_moves = list_torch_moves(moves, packages)
    outcome.findings += engine.add_findings(
        Report("upgrade", before), torch_moves, judging.select, judging.ignore
    ).findings
    if not moves.tried:
        raise Unanswered("; ".join(moves.not_tried))
    with complete_overlay(target.python, moves.tried, before, report_progress, request.options) as folder:
        outcome.add("install", 0, f"into a temporary folder: {' '.join(map(_name_file, moves.tried))}")
        if "imports" in request.stages:
            _try_imports(request, before, judging, target, folder, outcome, report_progress)
        with_folder = replace(target, extra_path=str(folder))
        for name, run in _list_runs(request, before, report_progress):
            _try_run(name, run, target, with_folder, judging, outcome)


def _name_file(requirement: str) -> str:
    return Path(requirement).name if requirement.endswith(".whl") else requirement


def _try_imports(
    request: TrialRequest,
    before: Snapshot,
    judging: Judging,
    target: ExecutionTarget,
    folder: Path,
    outcome: TrialOutcome,
    report_progress: Progress,
) -> None:
    after = collect_beside(
        target.python,
        str(folder),
        ("static", "import"),
        request.upgrade.model,
        before,
        target.seconds,
        report_progress,
    )
    outcome.lost = after.lost
    ignored = replace(judging, ignore=(*judging.ignore, *REPORTED_BY_FOLDER))
    outcome.comparison = comparison = compare_snapshots(before, after, ignored)
    grave = _count_grave(comparison.breaks)
    outcome.add("imports", grave, _describe_new(comparison.breaks))


def _list_runs(request: TrialRequest, before: Snapshot, report_progress: Progress) -> Iterator[tuple[str, Run]]:
    """Yield each measurement; its run takes the interpreter, with or without the folder."""
    model = request.upgrade.model
    if "parity" in request.stages:
        cases = parity.Request(suite="quick", budget=PARITY_SECONDS)
        yield "parity", lambda target: parity.run(before, cases, target, report_progress)
    if "smoke" in request.stages:
        training = smoke.Request(models=(model,) if model else SMALL_MODELS, fix=False)
        yield "smoke", lambda target: smoke.run(before, training, target, report_progress)


def _try_run(
    name: str,
    run: Run,
    target: ExecutionTarget,
    with_folder: ExecutionTarget,
    judging: Judging,
    outcome: TrialOutcome,
) -> None:
    """Run one measurement with the new versions; without them too, if it has findings or no result."""
    try:
        report = hide_folder(run(with_folder), with_folder.extra_path)
    except Unanswered as error:
        reason = hide_folder(str(error), with_folder.extra_path)
        _judge_lost_run(name, reason, run, target, outcome)
        return
    kept = engine.add_findings(Report("upgrade", report.snapshot), report.findings, judging.select, judging.ignore)
    new = _subtract(kept.findings, run, target)
    outcome.findings += new
    verdicts = [verdict for verdict in report.verdicts if verdict.answer in ("pass", "warn", "fail")]
    outcome.add(name, _count_grave(new), f"{len(verdicts)} answers; {_describe_new(new)}")
    for question in report.unanswered:
        outcome.leave_out(name, hide_folder(question.reason, with_folder.extra_path))


def _judge_lost_run(name: str, reason: str, run: Run, target: ExecutionTarget, outcome: TrialOutcome) -> None:
    """Judge a run without a result with the new versions: they broke it if it has a result without them."""
    try:
        run(target)
    except Unanswered:
        outcome.leave_out(name, f"it also fails without the new versions: {reason}")
        return
    problem = Problem(f"{name} no longer runs: {reason}", (f"{name} runs without the new versions",), (), name)
    outcome.findings.append(engine.make_finding_by_code(DOES_NOT_RUN, problem))
    outcome.add(name, 1, f"it no longer runs: {reason}")


def _subtract(findings: Sequence[Finding], run: Run, target: ExecutionTarget) -> list[Finding]:
    """Return the findings that do not occur without the new versions."""
    if not findings:
        return []
    here = {make_key(finding) for finding in run(target).findings}
    return [finding for finding in findings if make_key(finding) not in here]


def _count_grave(findings: Sequence[Finding]) -> int:
    return sum(finding.severity != "note" for finding in findings)


def _describe_new(findings: Sequence[Finding]) -> str:
    codes = ", ".join(dict.fromkeys(finding.code for finding in findings))
    return f"new findings: {codes}" if codes else "no new findings"
