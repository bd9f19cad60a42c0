"""Test cases for JUnit XML, which the sections of a report yield."""

from dataclasses import dataclass, field

from attncheck.core.report import UNMEASURED, Answer, Outcome, Report

ALLOWED = "it is an error, but the baseline, the policy or --ignore allows it"


@dataclass(frozen=True)
class TestCase:
    """One test case. `state` is "passed", or the name of another XML element."""

    name: str
    suite: str
    state: str = "passed"  # "failure", "error", "skipped"
    reason: str = ""  # in one line
    text: str = ""  # in full
    kind: str = ""
    seconds: float = 0.0
    location: dict[str, str] = field(default_factory=dict)  # file and line


def make_testcase(
    report: Report, name: str, suite: str, answer: Answer, reason: str, text: str, seconds: float
) -> TestCase:
    """Return the test case of one measurement.

    A verdict fails together with its finding; if no error is left, it was allowed and is skipped.
    """
    if answer == "fail" and report.worst_severity() != "error":
        return TestCase(name, suite, "skipped", f"{ALLOWED}: {reason}", text, answer, seconds)
    states = {"fail": "failure", "lost": "error", "refused": "skipped", "skipped": "skipped"}
    text = f"{reason}\n{text}".strip() if answer != "pass" or text else ""
    return TestCase(name, suite, states.get(answer, "passed"), reason, text, answer, seconds)


def timing_answer(outcome: Outcome, parity: Answer) -> Answer:
    """Return the answer of a timing: parity's if it was timed; one whose parity was not checked passes."""
    return UNMEASURED.get(outcome, "pass" if parity in ("skipped", "refused") else parity)
