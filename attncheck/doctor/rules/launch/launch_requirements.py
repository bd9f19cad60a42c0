"""The installed packages do not meet the requirements of the launch's framework release.

What it checks: the requirements of the framework release that the launch is written for, against the versions
installed or named for the target. If that release is installed, ATN147 checks this.

Why it matters: frameworks patch private code of the very version they pin.

What to do: install what the release requires, or use a framework release that accepts the installed versions.

Source: METADATA in the wheels of the frameworks, kept in attncheck/lint/names.
"""

from attncheck.doctor.fixes import install
from attncheck.doctor.queries.requirements import iter_unmet_requirements
from attncheck.doctor.rules import Job, Known, Problem, Problems, Rule, Snapshot, Unreadable, about_job, need


@about_job
def check(snapshot: Snapshot, job: Job) -> Problems:
    framework = snapshot.package(job.framework)
    if isinstance(framework, Known) and framework.value.version == job.version and framework.value.requires:
        return  # ATN147
    if isinstance(release := snapshot.version(job.framework), Unreadable):
        need(release, f"the release of {job.framework}")
    unmet = list(iter_unmet_requirements(snapshot, job))
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


RULE = Rule("ATN453", "warning", check, needs=frozenset({"job"}))
