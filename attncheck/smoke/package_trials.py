"""Tries other versions of packages on the checks that a plan fails: doctor's fixes, in a temporary folder.

Workers import from that folder before the environment's packages; the environment itself is never changed.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from attncheck.core.findings import Fix
from attncheck.core.io.errors import Unanswered
from attncheck.core.results.repair import RepairSection
from attncheck.core.results.smoke import PlanRun, deciding_reason
from attncheck.core.snapshot import Snapshot
from attncheck.doctor import engine
from attncheck.doctor.fixes.install import install_packages
from attncheck.doctor.profile import needs_of_profile
from attncheck.doctor.repair.overlays import complete_overlay
from attncheck.doctor.repair.plan import add_repair
from attncheck.doctor.repair.trial import list_trial_requirements
from attncheck.smoke import fix_search
from attncheck.smoke.trials import failed_checks, find_result
from attncheck.workers.overlay import parse_fix_requirements

MAX_FIXES = 4  # the most sets of packages tried

# Runs checks of a run's plan again, with a folder of packages first on sys.path.
RunWithPackages = Callable[[PlanRun, tuple[str, ...], str], PlanRun]


@dataclass(frozen=True)
class PackageTrial:
    """A fix that installs packages, and the plan run with them, or the reason why it could not be tried."""

    fix: Fix
    plan_run: PlanRun | None
    reason: str = ""

    def fixes_check(self, check_name: str) -> bool:
        """Return whether a failed check passes with these packages."""
        was_run = self.plan_run is not None and find_result(self.plan_run, check_name) is not None
        return was_run and self.plan_run is not None and fix_search.passes_check(self.plan_run, check_name)


def try_packages(
    plan_run: PlanRun,
    snapshot: Snapshot,
    python: str,
    run_with_packages: RunWithPackages,
    report_progress: Callable[[str], None],
) -> tuple[PackageTrial, ...]:
    """Return a trial of each of doctor's package fixes on the checks that a plan run fails."""
    failed = failed_checks(plan_run)
    if not failed:
        return ()
    run_in_overlay = partial(run_with_packages, plan_run, failed)
    return tuple(
        _try_fix(fix, snapshot, python, run_in_overlay, report_progress)
        for fix in list_package_fixes(snapshot)[:MAX_FIXES]
    )


def list_package_fixes(snapshot: Snapshot) -> list[Fix]:
    """Return the repair of all of doctor's findings, then its single fixes, if a folder can hold their packages.

    Each set of packages is listed once.
    """
    report = engine.run_rules(snapshot, needs_of_profile("all", snapshot))
    repair = add_repair(report).section(RepairSection)
    whole = list_trial_requirements(repair) if repair is not None else ()
    title = "the repair of all findings of doctor"
    fixes = {whole: install_packages(snapshot, *whole, options=("--no-deps",), title=title)} if whole else {}
    fixes |= {
        parse_fix_requirements(fix): fix
        for finding in report.findings
        for fix in finding.fixes
        if parse_fix_requirements(fix) not in ((), whole)
    }
    return list(fixes.values())


def _try_fix(
    fix: Fix,
    snapshot: Snapshot,
    python: str,
    run_in_overlay: Callable[[str], PlanRun],
    report_progress: Callable[[str], None],
) -> PackageTrial:
    """Return the trial of one fix: its packages, and their requirements that the environment lacks."""
    packages = parse_fix_requirements(fix)
    try:
        with complete_overlay(python, packages, snapshot, report_progress) as folder:
            return PackageTrial(fix, run_in_overlay(str(folder)))
    except Unanswered as error:
        return PackageTrial(fix, None, str(error))


def describe_failed_trials(trials: tuple[PackageTrial, ...], check_name: str) -> Iterator[str]:
    """Yield a line of evidence for each package trial that does not fix the check."""
    for trial in trials:
        if not trial.fixes_check(check_name):
            yield f"{trial.fix.title}, in a temporary folder: {trial.reason or _describe_failure(trial, check_name)}"


def _describe_failure(trial: PackageTrial, check_name: str) -> str:
    assert trial.plan_run is not None
    result = find_result(trial.plan_run, check_name)
    return f"still wrong: {deciding_reason(result)}" if result is not None else "still wrong"
