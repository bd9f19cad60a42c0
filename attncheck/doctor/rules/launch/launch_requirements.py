"""The installed packages do not meet the requirements of the launch's framework release.

What it checks: the requirements of the framework release that the launch is written for, against the versions
installed or named for the target. If that release is installed, ATN147 checks this.

Why it matters: frameworks patch private code of the very version they pin.

What to do: install what the release requires, or use a framework release that accepts the installed versions.

Source: METADATA in the wheels of the frameworks, kept in attncheck/lint/names.
"""

from collections.abc import Iterator

from packaging.requirements import InvalidRequirement

from attncheck.doctor.fixes import install
from attncheck.doctor.queries import requirements
from attncheck.doctor.rules import Job, Known, Problem, Problems, Rule, Snapshot, Unreadable, about_job, need


@about_job
def check(snapshot: Snapshot, job: Job) -> Problems:
    framework = snapshot.package(job.framework)
    if isinstance(framework, Known) and framework.value.version == job.version and framework.value.requires:
        return  # ATN147
    if isinstance(release := snapshot.version(job.framework), Unreadable):
        need(release, f"the release of {job.framework}")
    unmet = list(_unmet_requirements(snapshot, job))
    if unmet:
        listed = ", ".join(f"{requirement} (here: {version})" for requirement, version in unmet)
        yield Problem(
            message=f"{job.framework} {job.version} requires {listed}",
            evidence=(f"METADATA of {job.framework} {job.version}",),
            fixes=install.meet_requirements(snapshot, job.framework, (requirement for requirement, _ in unmet)),
            subject=f"{job.framework} {job.version}",
            predicted=True,
            locations=(job.location,),
        )


def _unmet_requirements(snapshot: Snapshot, job: Job) -> Iterator[tuple[str, str]]:
    for line in job.requires:
        try:
            requirement = requirements.parse_requirement(line)
        except InvalidRequirement:
            continue
        installed = snapshot.version(requirement.name)
        if isinstance(installed, Known) and not requirements.is_version_allowed(requirement.specifier, installed.value):
            yield f"{requirement.name}{requirement.specifier}", str(installed.value)


RULE = Rule("ATN453", "warning", check, needs=frozenset({"job"}))
