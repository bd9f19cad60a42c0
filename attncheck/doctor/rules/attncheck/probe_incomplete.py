"""A probe could not finish its look at the environment.

What it checks: whether any part of the probe reported that it could not do its work (a crash, a deadline, a file
that cannot be read).

Why it matters: rules that need those facts are skipped, so silence about them means nothing.

What to do: read the evidence; run again with a longer `--timeout` where a deadline passed.

Source: attncheck/doctor/probes.
"""

from attncheck.doctor.rules import Problem, Problems, Rule, Snapshot


def check(snapshot: Snapshot) -> Problems:
    for problem in (*snapshot.problems, *snapshot.lost):
        yield Problem(message=f"the probe could not finish: {problem}", subject="probe")


RULE = Rule("ATN903", "warning", check)
