"""A gate's checks, and how each ended."""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.findings import Finding
from attncheck.core.report import Report
from attncheck.core.results.gate import GateSection, Stage
from attncheck.core.verdicts import ANSWERS
from attncheck.report.blocks import Block, Items, Paragraph
from attncheck.report.finding_lines import count_by_code
from attncheck.report.sections import SectionView
from attncheck.report.testcases import TestCase

MARKS = {"unanswered": "no answer", "left out": "not run", "not linted": "not run"}
STATES = {"unanswered": "error", "left out": "skipped", "not linted": "skipped"}
# Whose findings a check's are, by the first digit of their codes; a finding with a place is lint's.
CHECK_OF_DIGIT = {"4": "smoke", "6": "parity", "7": "determinism", "8": "bench"}


def blocks(report: Report, section: GateSection) -> Iterator[Block]:
    """Yield the level, if there is one, and a row for each check."""
    if section.level:
        seconds = sum(stage.seconds for stage in section.stages)
        yield Paragraph(f"level {section.level} · {seconds:.0f} s of at most {section.promised_seconds:.0f} s")
    yield Items(tuple(_describe_stage(report, section, stage) for stage in section.stages), ("", "check", "answer"))


def verdict(report: Report, section: GateSection) -> str:
    """Return whether the gate passes, and what fails it: "gate: failed, doctor 1 error (ATN301)"."""
    failing = [(stage, _findings_of(report, section, stage)) for stage in section.stages]
    errors = [(stage.check, [f for f in made if f.severity == "error"]) for stage, made in failing]
    if failed := [f"{check} {count_by_code(made)}" for check, made in errors if made]:
        return f"gate: failed, {', '.join(failed)}"
    if unanswered := [stage.check for stage in section.stages if stage.outcome == "unanswered"]:
        return f"gate: no answer from {', '.join(unanswered)}"
    passed = [stage.check for stage in section.stages if stage.outcome in ("clean", "found")]
    return f"gate: passed ({', '.join(passed)})" if passed else "gate: nothing was checked"


def testcases(report: Report, section: GateSection) -> Iterator[TestCase]:
    """Yield a test case for each check; its findings are test cases of their own."""
    for stage in section.stages:
        text = "its findings are tests of their own" if stage.outcome == "found" else ""
        state = STATES.get(stage.outcome, "passed")
        yield TestCase(stage.check, "gate", state, stage.reason or stage.outcome, text, stage.outcome, stage.seconds)


def _findings_of(report: Report, section: GateSection, stage: Stage) -> list[Finding]:
    """Return the findings that a check made. A report does not hold whose they are: the code and the place tell it."""
    if stage.outcome != "found":
        return []
    reporting = [other.check for other in section.stages if other.outcome == "found"]

    def guess_check(finding: Finding) -> str:
        check = CHECK_OF_DIGIT.get(finding.code[3:4], "doctor")
        if finding.locations or (check == "smoke" and finding.code < "ATN43"):
            check = "lint"
        if check == "smoke" and check not in reporting:
            check = "rehearsal"
        return check if check in reporting else reporting[0]

    return [finding for finding in report.findings if guess_check(finding) == stage.check]


def _describe_stage(report: Report, section: GateSection, stage: Stage) -> tuple[str, str, str]:
    made = _findings_of(report, section, stage)
    failed = any(finding.severity == "error" for finding in made)
    parts = [count_by_code(made)] if made else []
    parts += [stage.reason] if stage.reason else []
    parts += [f"{stage.answers[answer]} {answer}" for answer in ANSWERS if stage.answers.get(answer)]
    if stage.outcome != "left out":
        parts.append(f"{stage.seconds:.1f} s")
    return MARKS.get(stage.outcome, "failed" if failed else "passed"), stage.check, " · ".join(parts)


VIEW = SectionView("Gate", blocks, verdict=verdict, testcases=testcases, covers=True)
