"""What every end of a command must look like, whatever it was given."""

from __future__ import annotations

import re

CLEAN, FOUND, BAD_USAGE, UNANSWERED, INTERRUPTED = 0, 1, 2, 3, 130
DOCUMENTED = (CLEAN, FOUND, BAD_USAGE, UNANSWERED, INTERRUPTED)
CODE = re.compile(r"\bATN\d{3}\b")
# What `init --write`, `baseline` and `gate` say alongside an error, and what a slow machine gets every 14 seconds.
CONFIRMATION = re.compile(
    r"wrote |\S+: \d+ findings?, |attncheck gate reads it: |attncheck: policy file |attncheck: \d+ s: "
)
LINE_ENDS = re.compile(r"[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
OWN_FAULTS = ("Traceback", "this is a bug in attncheck", "attncheck's own rule ATN", "ended before it could say why")


def error_lines(stderr: str) -> list[str]:
    """Return the lines on standard error that say what is wrong, those alongside left out."""
    return [line for line in LINE_ENDS.split(stderr) if line and not CONFIRMATION.match(line)]


def find_fault(code: object, stdout: str, stderr: str, can_report: bool = True, can_complain: bool = True) -> str:
    """Return what is wrong with how a command ended, "" if nothing is.

    Without `can_report` nothing reaches standard output, and without `can_complain` nothing standard error.
    """
    for text in OWN_FAULTS:
        if text in stdout + stderr:
            return f"{text!r} is shown"
    if code not in DOCUMENTED:
        return f"exit code {code} is not documented"
    if code == FOUND and not CODE.search(stdout + stderr):
        return "exit code 1 without a finding"
    if code == CLEAN and not (stdout or stderr):
        return "exit code 0 with an empty report"
    if code == CLEAN and not can_report:
        return "exit code 0 though the report went nowhere"
    lines = error_lines(stderr)
    if code in (BAD_USAGE, UNANSWERED) and can_complain and not (stdout and not lines):
        if len(lines) != 1:
            return f"{len(lines)} lines on standard error instead of one"
        if not lines[0].startswith("attncheck: "):
            return "a line on standard error that is not attncheck's"
    return ""
