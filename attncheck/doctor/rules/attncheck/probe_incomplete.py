"""A probe could not finish examining the environment.

What it checks: whether any part of the probe failed (a crash, a deadline, an unreadable file).

Why it matters: rules that need those facts are skipped, so the absence of findings proves nothing.

What to do: read the evidence; run again with a longer `--timeout` if a deadline passed.

Source: attncheck/doctor/probes.
"""

from attncheck.doctor.rules import Fix, Problem, Problems, Rule, Snapshot


def check(snapshot: Snapshot) -> Problems:
    for problem in (*snapshot.problems, *snapshot.lost):
        is_late = "deadline" in problem or "hung" in problem
        fixes = (Fix("give it longer", "advice", "attncheck doctor --timeout 180"),) if is_late else ()
        yield Problem(f"the probe could not finish: {problem}", fixes=fixes, subject="probe")


RULE = Rule("ATN903", "warning", check)
