"""The program logs a warning about the launch's settings.

What it checks: the source of the program that the launch starts, and of the trainer that it creates, with the launch's
settings. A warning counts if the conditions before it follow from these settings and from defaults.

Why it matters: the warning appears once in the log of each rank, before training, where nobody sees it.

What to do: read the warning; it names the settings.

Source: the program's own files, named in the finding with their lines.
"""

from attncheck.doctor.queries.launch import describe_job
from attncheck.doctor.rules import Job, Problem, Problems, Rule, Snapshot, about_job


@about_job
def check(snapshot: Snapshot, job: Job) -> Problems:
    if job.warnings:
        count = f"{len(job.warnings)} warning{'s' * (len(job.warnings) > 1)}"
        message = f"{describe_job(job)} logs {count} about these settings"
        yield Problem(message, job.warnings, subject=describe_job(job), locations=(job.location,))


RULE = Rule("ATN466", "note", check, needs=frozenset({"job"}))
