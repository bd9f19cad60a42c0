"""Part of the launch can only be known at run time.

What it checks: parts of the launch that depend on the user's environment or on a command's output, and files that it
names but that are not available here. It also covers settings with an unknown value for which the default was assumed.

Why it matters: unknown settings are not judged, and a clean answer does not cover them.

What to do: set the values in the script, or lint the command with the values filled in.

Source: the launch itself.
"""

from attncheck.doctor.queries.launch import describe_job
from attncheck.doctor.rules import Job, Problem, Problems, Rule, Snapshot, about_job


@about_job
def check(snapshot: Snapshot, job: Job) -> Problems:
    if job.remarks:
        count = f"{len(job.remarks)} thing{'s' * (len(job.remarks) > 1)}"
        yield Problem(
            message=f"{count} about this {describe_job(job)} launch {'are' if len(job.remarks) > 1 else 'is'} unknown",
            evidence=job.remarks,
            subject=describe_job(job),
            locations=(job.location,),
        )


RULE = Rule("ATN448", "note", check, needs=frozenset({"job"}))
