"""The problems that a framework has with a launch's settings, each with its fixes."""

from collections.abc import Iterator, Sequence

from packaging.requirements import Requirement

from attncheck.core.findings import Fix, Problem
from attncheck.core.job import Consequence, SettingProblem
from attncheck.core.snapshot import Known, Snapshot
from attncheck.doctor.fixes.install import meet_requirements
from attncheck.doctor.queries import change_settings, describe_job, is_version_allowed, require_job
from attncheck.doctor.queries.requirements import may_not_run


def setting_problems(snapshot: Snapshot, consequence: Consequence) -> Iterator[Problem]:
    """Yield a problem for each setting of the launch that has this consequence in its framework."""
    job = require_job(snapshot)
    for setting_problem in job.problems:
        if setting_problem.consequence != consequence or _are_installed(snapshot, setting_problem.installs):
            continue
        yield Problem(
            message=setting_problem.message,
            evidence=setting_problem.evidence,
            fixes=tuple(_list_fixes(snapshot, setting_problem)),
            subject=describe_job(job),
            predicted=setting_problem.mild or bool(setting_problem.installs and may_not_run(snapshot, job)),
            locations=(setting_problem.location,) if setting_problem.location.source else (job.location,),
        )


def _list_fixes(snapshot: Snapshot, setting_problem: SettingProblem) -> Iterator[Fix]:
    """Yield the settings that fix a problem, or else the packages, and then the other remedies."""
    if setting_problem.sets:
        yield change_settings(setting_problem.advice or "change the setting", setting_problem.sets)
        return
    if setting_problem.installs:
        yield from meet_requirements(snapshot, require_job(snapshot).framework, setting_problem.installs)
    if setting_problem.advice:
        yield Fix("what to do", "manual", setting_problem.advice)


def _are_installed(snapshot: Snapshot, lines: Sequence[str]) -> bool:
    """Return whether the requirements that fix a problem are met, as after a repair that installs them."""
    requirements = [Requirement(line) for line in lines]
    versions = [snapshot.version(requirement.name) for requirement in requirements]
    return bool(lines) and all(
        isinstance(version, Known) and is_version_allowed(requirement.specifier, version.value)
        for requirement, version in zip(requirements, versions)
    )
