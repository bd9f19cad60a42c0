"""Something in the launch could only be known by running it.

What it checks: words of the launch that depend on the user's environment or on a command's output, files that it names
and that are not available here, and what was taken as its default for want of a value.

Why it matters: what is not known is not judged, and a clean answer does not cover it.

What to do: give the values in the script, or lint the command with them put in.

Source: the launch itself.
"""

from attncheck.doctor.queries.launch import describe_job, require_job
from attncheck.doctor.rules import Problem, Problems, Rule, Snapshot


def check(snapshot: Snapshot) -> Problems:
    job = require_job(snapshot)
    if job.remarks:
        count = f"{len(job.remarks)} thing{'s' * (len(job.remarks) > 1)}"
        yield Problem(
            message=f"{count} about this {describe_job(job)} launch are unknown",
            evidence=job.remarks,
            subject=describe_job(job),
            locations=(job.location,),
        )


RULE = Rule("ATN448", "note", check, needs=frozenset({"job"}))
