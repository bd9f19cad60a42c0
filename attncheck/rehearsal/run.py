"""Rehearses launches: makes their materials, runs them scaled down, judges their steps, and tries fixes."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from attncheck.core.findings import Finding
from attncheck.core.io import interrupts
from attncheck.core.io.errors import BadUsage, Unanswered
from attncheck.core.rehearsal import JobCut
from attncheck.core.report import InterruptedRun, Report
from attncheck.core.results.rehearsal import RehearsalSection, RehearsedLaunch
from attncheck.core.results.smoke import CheckResult, judge_result
from attncheck.core.snapshot import Snapshot
from attncheck.core.verdicts import MeasuredOn, Verdict
from attncheck.lint.rewriting import ReadLaunch
from attncheck.rehearsal import cutting
from attncheck.rehearsal.cutting import NothingToRehearse
from attncheck.rehearsal.judged_run import run_once
from attncheck.rehearsal.lacking import MAX_RUNS, add_lacking, choose_variable, excuse_rows, needs_own_rows
from attncheck.rehearsal.options import add_options
from attncheck.rehearsal.reading import Request, read_launches_of
from attncheck.rehearsal.staging import Stage, make_materials, open_pool
from attncheck.rehearsal.trials import MESSAGES, format_corrected, iter_findings, try_corrections
from attncheck.smoke.run import make_verdict
from attncheck.workers.execution import ExecutionTarget
from attncheck.workers.scratch import remove_folder, scratch_folder

STEPS = 30
POLICY_STEPS = 22  # of a policy's update: 8 public launches had learned as much after 20 steps as after 30
FULL_STEPS = 10  # for the job's own model size, which is slow, and other launches whose learning is not judged
CPU_PROCESSES = 2


def run(
    snapshot: Snapshot, request: Request, target: ExecutionTarget, report_progress: Callable[[str], None]
) -> Report:
    """Return the report on every launch of the request.

    Raises `NothingToRehearse` if none can be scaled down, `Unanswered` if none can run here, `InterruptedRun` with the
    results so far if it is interrupted after the first of them.
    """
    unknown = [name for name in request.only if name not in MESSAGES]
    if unknown:
        raise BadUsage(f"--only {unknown[0]}: a launch's rehearsal answers {', '.join(MESSAGES)}")
    began = time.monotonic()
    launches = [read for source in request.sources for read in read_launches_of(snapshot, request, source)]
    if not launches:
        names = ", ".join(source.name for source in request.sources)
        raise NothingToRehearse(
            f"{names}: starts neither a training that attncheck knows nor a script whose source trains a model that "
            f"it loads, or that has options for model, data and learning rate or steps"
        )
    sections: list[RehearsalSection] = []
    findings: list[Finding] = []
    errors: list[Unanswered] = []
    for read in launches:
        try:
            section, launch_findings = _rehearse(read, request, target, report_progress)
        except Unanswered as error:
            errors.append(error)
            section, launch_findings = _make_refused(read, str(error)), []
        except KeyboardInterrupt:
            if not sections:
                raise
            break
        sections.append(section)
        findings += launch_findings
    if len(errors) == len(launches):
        raise errors[0]
    section = sections[0]
    for other in sections[1:]:
        section = section.merge(other)
    measured_on = replace(
        section.measured_on,
        seed=request.seed,
        seconds=round(time.monotonic() - began, 3),
        interrupted=interrupts.is_interrupted(),
    )
    report = Report("smoke", snapshot, (*findings,), sections={"rehearsal": replace(section, measured_on=measured_on)})
    if measured_on.interrupted:
        raise InterruptedRun(report)
    return report


def _make_refused(read: ReadLaunch, reason: str) -> RehearsalSection:
    """Return the section of a launch that cannot run, among other launches."""
    job = read.job
    result = CheckResult("run", "skipped", reason.removeprefix(f"{job.location}: "))
    names = (str(job.location), job.framework, job.version, job.trainer, job.model)
    launch = RehearsedLaunch(*names, "not run", "", "", (result,), ranks=0)
    return RehearsalSection(verdicts=(_make_verdict(launch, result),), launches=(launch,))


def choose_steps(request: Request, is_policy: bool = False) -> int:
    """Return the number of steps to take, which are fewer if the learning is not judged."""
    is_short = request.full_model or (request.only and "learning" not in request.only)
    return request.steps or (FULL_STEPS if is_short else POLICY_STEPS if is_policy else STEPS)


def _rehearse(
    read: ReadLaunch, request: Request, target: ExecutionTarget, report_progress: Callable[[str], None]
) -> tuple[RehearsalSection, list[Finding]]:
    with scratch_folder() as folder, open_pool(target) as pool:
        processes = max(1, len(read.snapshot.visible_devices())) if target.uses_gpu else CPU_PROCESSES
        steps = choose_steps(request, read.job.reinforcement)
        materials = cutting.make_materials(
            read,
            folder,
            steps,
            target.uses_gpu,
            processes,
            request.full_model,
            request.real_data,
            request.trusts_remote_code,
        )
        cut = cutting.cut_job(read, materials)
        stage = Stage(read, folder, materials, target, request, report_progress, pool)
        has_processor = make_materials(stage, cut)
        if has_processor != materials.has_tower:  # frameworks divide the loss by it
            cut = replace(cut, objective=cutting.cut_job(read, replace(materials, has_tower=has_processor)).objective)
        cut = replace(cut, objective=add_options(cut.objective, read.job))
        cut, first = _run_with_lacking(stage, cut)
        if needs_own_rows(stage, cut, first):
            with suppress(Unanswered):  # without the model's tokenizer, or because of the launch's kind
                return _rehearse(read, replace(request, real_data=True), target, report_progress)
        first = _keep_requested(excuse_rows(stage, first), request.only)
        trials = try_corrections(stage, cut, first) if request.fix else []
        launches = [first, *(_keep_requested(trial.launch, request.only) for trial in trials if trial.is_better)]
    verdicts = tuple(_make_verdict(launch, result) for launch in launches for result in launch.results)
    kind, name, torch = (str(pool.device.get(key, "")) for key in ("kind", "name", "torch"))
    measured_on = MeasuredOn(kind, name, torch)
    corrected = next((format_corrected(read, trial.correction) for trial in trials if trial.is_clean), ())
    section = RehearsalSection(measured_on, verdicts, tuple(launches), corrected)
    return section, list(iter_findings(read, cut, first, trials))


def _run_with_lacking(stage: Stage, cut: JobCut) -> tuple[JobCut, RehearsedLaunch]:
    """Return how a launch ran with what it was found to lack, and its cut; without its readers of rows at last."""
    first = run_once(stage, cut, {}, "")
    for _ in range(MAX_RUNS):
        if add_lacking(stage, cut, first):
            for path in os.listdir(stage.folder):
                remove_folder(os.path.join(stage.folder, path))
            make_materials(stage, cut)
        elif name := choose_variable(stage, cut, first):
            cut = replace(cut, environ={**cut.environ, name: "1"})
        else:
            break
        again = run_once(stage, cut, {}, "")
        if again.results[0].violations != first.results[0].violations:  # of a row, not of another dictionary
            first = again
    return cut, first


def _keep_requested(launch: RehearsedLaunch, only: tuple[str, ...]) -> RehearsedLaunch:
    """Return a launch with only the requested results, and a note that it did not run if there are none."""
    results = (r for r in launch.results if r.check in only or (r.check == "run" and judge_result(r) != "pass"))
    return replace(launch, results=tuple(results)) if only else launch


def _make_verdict(launch: RehearsedLaunch, result: CheckResult) -> Verdict:
    return make_verdict(f"{launch.location}{f' with {launch.tried}' if launch.tried else ''}", result)
