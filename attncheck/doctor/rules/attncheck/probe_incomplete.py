"""A probe could not finish its look at the environment.

What it checks: whether any part of the probe reported that it could not do its work (a crash, a deadline, a file
that cannot be read).

Why it matters: rules that need those facts are skipped, so silence about them means nothing.

What to do: read the evidence; run again with a longer `--timeout` if a deadline passed.

Source: attncheck/doctor/probes.
"""

from attncheck.doctor.rules import Fix, Problem, Problems, Rule, Snapshot


def check(snapshot: Snapshot) -> Problems:
    """Yield a problem for each thing the probe could not do."""
    for problem in (*snapshot.problems, *snapshot.lost):
        is_late = "deadline" in problem or "hung" in problem
        fixes = (Fix("give it longer", "advice", "attncheck doctor --timeout 180"),) if is_late else ()
        yield Problem(f"the probe could not finish: {problem}", fixes=fixes, subject="probe")


RULE = Rule("ATN903", "warning", check)
