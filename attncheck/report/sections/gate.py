"""A gate's checks, and how each ended."""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.report import Report
from attncheck.core.results.gate import GateSection, Stage
from attncheck.core.verdicts import ANSWERS
from attncheck.report.lines import STYLES, Line, text_line
from attncheck.report.markdown_text import escape_line, format_table
from attncheck.report.sections import SectionView
from attncheck.report.testcases import TestCase

MARKS = {"clean": "ok", "unanswered": "warning", "left out": "-", "not linted": "-"}
STATES = {"unanswered": "error", "left out": "skipped", "not linted": "skipped"}


def rows(report: Report, section: GateSection, verbose: bool, width: int) -> Iterator[Line]:
    """Yield the level, if there is one, and a line for each check."""
    if section.level:
        yield text_line(describe_level(section))
        yield Line()
    for mark, check, text in stage_rows(report, section):
        yield Line(((f"{mark:<8}", STYLES[mark]), (f"{check:<13}", "bold")), text)


def markdown(report: Report, section: GateSection) -> Iterator[str]:
    """Yield the checks as a table."""
    if section.level:
        yield from (escape_line(describe_level(section)), "")
    yield from format_table(("", "check", ""), list(stage_rows(report, section)))
    yield ""


def testcases(report: Report, section: GateSection) -> Iterator[TestCase]:
    """Yield a test case for each check; its findings are test cases of their own."""
    for stage in section.stages:
        text = "its findings are tests of their own" if stage.outcome == "found" else ""
        state = STATES.get(stage.outcome, "passed")
        yield TestCase(stage.check, "gate", state, stage.reason or stage.outcome, text, stage.outcome, stage.seconds)


def describe_level(section: GateSection) -> str:
    """Return the gate's level, how long it took and how long it may take."""
    seconds = sum(stage.seconds for stage in section.stages)
    return f"level {section.level} · {seconds:.0f} s of at most {section.promised_seconds:.0f} s"


def stage_rows(report: Report, section: GateSection) -> Iterator[tuple[str, str, str]]:
    """Yield a mark, the check's name and how it ended, for each check of the gate."""
    for stage in section.stages:
        worst_mark = "error" if report.worst_severity() == "error" else "warning"
        yield MARKS.get(stage.outcome, worst_mark), stage.check, _describe_stage(stage)


def _describe_stage(stage: Stage) -> str:
    parts: list[str] = ["nothing found" if stage.outcome == "clean" else stage.outcome]
    if stage.reason:
        parts.append(stage.reason)
    parts += [f"{stage.answers[answer]} {answer}" for answer in ANSWERS if stage.answers.get(answer)]
    if stage.outcome != "left out":
        parts.append(f"{stage.seconds:.1f} s")
    return " · ".join(parts)


VIEW = SectionView(rows=rows, markdown=markdown, testcases=testcases, covers=True)
