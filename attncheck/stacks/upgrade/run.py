"""Judges an upgrade, tries it if requested, and makes the report."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from attncheck.core.io.errors import Unanswered
from attncheck.core.report import Finding, InterruptedRun, Report, by_severity
from attncheck.core.results.upgrade import Basis, ChangedPackage, UpgradeEffect, UpgradeSection
from attncheck.core.snapshot import Snapshot
from attncheck.stacks.diff.one_sided import make_key
from attncheck.stacks.upgrade.compare import Judging
from attncheck.stacks.upgrade.planned import describe_version, list_changes
from attncheck.stacks.upgrade.predict import Prediction, list_unknown, predict_upgrade, read_wheels
from attncheck.stacks.upgrade.requests import RequestedPackage, UpgradeRequest
from attncheck.stacks.upgrade.trial import TrialOutcome, TrialRequest, run_trial
from attncheck.workers.execution import ExecutionTarget

Progress = Callable[[str], None]
BASES: dict[Basis, str] = {
    "predicted": "predicted, not run:",
    "read": "judged from the wheel's files, not run:",
    "tried": "run from a temporary folder:",
}


@dataclass(frozen=True)
class UpgradeSettings:
    """How to judge an upgrade; without a `target` a recorded snapshot is used, and without a `trial` nothing runs."""

    judging: Judging = Judging()
    target: ExecutionTarget | None = None
    trial: TrialRequest | None = None


def run_upgrade(
    request: UpgradeRequest, before: Snapshot, settings: UpgradeSettings, report_progress: Progress
) -> Report:
    """Return the report on an upgrade. Raises `InterruptedRun` with the partial results if Ctrl-C ends the trial."""
    packages = list_changes(before, request.packages)
    if not packages:
        return _make_report(request, before, None, None)
    prediction = _predict(replace(request, packages=packages), before, settings, report_progress)
    if settings.trial is None or settings.target is None:
        return _make_report(request, before, prediction, None)
    outcome = TrialOutcome()
    trial = replace(settings.trial, upgrade=replace(request, packages=packages))
    try:
        run_trial(trial, before, settings.judging, settings.target, outcome, report_progress)
    except KeyboardInterrupt:
        raise InterruptedRun(_make_report(request, before, prediction, outcome, interrupted=True)) from None
    return _make_report(request, before, prediction, outcome)


def _predict(
    request: UpgradeRequest, before: Snapshot, settings: UpgradeSettings, report_progress: Progress
) -> Prediction:
    """Return the judgement without a run: by the new code if its wheel is available, otherwise by tables."""
    target = settings.target
    if target is None or not any(package.wheel is not None for package in request.packages):
        return predict_upgrade(request, before, settings.judging, target is not None)
    try:
        read = read_wheels(target.python, request.packages, request.model, before, target.seconds, report_progress)
    except Unanswered as error:  # a wheel for another machine, which has its own finding
        prediction = predict_upgrade(request, before, settings.judging, True)
        return replace(prediction, unknown=(str(error), *prediction.unknown))
    return predict_upgrade(request, before, settings.judging, True, read)


def _make_report(
    request: UpgradeRequest,
    before: Snapshot,
    prediction: Prediction | None,
    outcome: TrialOutcome | None,
    interrupted: bool = False,
) -> Report:
    """Return the report; if everything could be tried, results of imports replace the prediction."""
    effects = _join(prediction, outcome)
    unknown = () if effects.breaks or effects.fixes else list_unknown(before, list_changes(before, request.packages))
    label = ", ".join(f"{package.name} {package.version}" for package in list_changes(before, request.packages))
    changed = (*_list_packages(request.packages, before), *(outcome.moves.along if outcome is not None else ()))
    section = UpgradeSection(
        basis=effects.basis,
        packages=tuple(changed),
        breaks=tuple(_describe(finding, basis) for finding, basis in effects.breaks),
        fixes=tuple(_describe(finding, effects.basis) for finding in effects.fixes),
        unchanged=effects.unchanged,
        refuted=effects.refuted,
        unknown=effects.unknown,
        stages=tuple(outcome.stages) if outcome is not None else (),
        lost=(*before.lost, *(outcome.lost if outcome is not None else unknown)),
        interrupted=interrupted,
    )
    findings = by_severity(
        replace(finding, evidence=(f"{BASES[basis]} {label}", *finding.evidence)) for finding, basis in effects.breaks
    )
    return Report("upgrade", before, findings, sections={"upgrade": section})


@dataclass(frozen=True)
class _Effects:
    """The effects from prediction and trial together."""

    basis: Basis = "predicted"
    breaks: tuple[tuple[Finding, Basis], ...] = ()
    fixes: tuple[Finding, ...] = ()
    unchanged: int = 0
    refuted: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def _join(prediction: Prediction | None, outcome: TrialOutcome | None) -> _Effects:
    if prediction is None:
        return _Effects()
    predicted = prediction.comparison
    breaks: list[tuple[Finding, Basis]] = [(finding, prediction.basis) for finding in predicted.breaks]
    breaks += [
        (finding, "read" if any(".whl" in line for line in finding.evidence) else "predicted")
        for finding in prediction.metadata
    ]
    if outcome is None or outcome.comparison is None:
        breaks += [(finding, "tried") for finding in (outcome.findings if outcome is not None else ())]
        return _Effects(prediction.basis, tuple(breaks), predicted.fixes, predicted.kept, unknown=prediction.unknown)
    tried = outcome.comparison
    shown = {make_key(finding) for finding in tried.breaks}
    if outcome.moves.not_tried:  # packages that cannot be tried keep their prediction
        kept = [pair for pair in breaks if make_key(pair[0]) not in shown]
        refuted: tuple[str, ...] = ()
        open_questions = (*(f"not tried: {line}" for line in outcome.moves.not_tried), *prediction.unknown)
    else:
        kept = [pair for pair in breaks if pair[0] in prediction.metadata]
        refuted = tuple(
            f"{finding.code} ({finding.subject}): predicted, but not confirmed by importing"
            for finding in predicted.breaks
            if make_key(finding) not in shown
        )
        open_questions = tried.not_judged
    kept += [(finding, "tried") for finding in (*tried.breaks, *outcome.findings)]
    return _Effects("tried", tuple(kept), tried.fixes, tried.kept, refuted, open_questions)


def _list_packages(packages: tuple[RequestedPackage, ...], before: Snapshot) -> Iterator[ChangedPackage]:
    for package in packages:
        wheel = package.wheel.file_name if package.wheel is not None else ""
        yield ChangedPackage(package.name, describe_version(before, package.name), package.version, wheel)


def _describe(finding: Finding, basis: Basis) -> UpgradeEffect:
    return UpgradeEffect(finding.code, finding.subject, finding.message, basis)
