"""A gate's checks and their outcomes."""

from collections.abc import Iterator

from attncheck.core.lists import group_values
from attncheck.core.results.gate import GateSection, Stage
from attncheck.report.finding_lines import count_by_code
from attncheck.report.sections import ANSWERS, Block, Items, Paragraph, Report, SectionView, TestCase

MARKS = {"unanswered": "no answer", "left out": "not run", "not linted": "not run"}
STATES = {"unanswered": "error", "left out": "skipped", "not linted": "skipped"}


def blocks(report: Report, section: GateSection) -> Iterator[Block]:
    """Yield the level, if there is one, and a row for each check."""
    if section.level:
        seconds = sum(stage.seconds for stage in section.stages)
        yield Paragraph(f"level {section.level} · {seconds:.0f} s of at most {section.promised_seconds:.0f} s")
    yield Items(tuple(_describe_stage(report, stage) for stage in section.stages), ("", "check", "answer"))


def verdict(report: Report, section: GateSection) -> str:
    """Return whether the gate passes, and what makes it fail: "gate: failed, doctor 1 error (ATN301)"."""
    errors = group_values((finding.check or "policy", finding) for finding in report.findings_at("error"))
    if failed := [f"{check} {count_by_code(made)}" for check, made in errors.items()]:
        return f"gate: failed, {', '.join(failed)}"
    if unanswered := [stage.check for stage in section.stages if stage.outcome == "unanswered"]:
        return f"gate: no result from {', '.join(unanswered)}"
    passed = [stage.check for stage in section.stages if stage.outcome in ("clean", "found")]
    return f"gate: passed ({', '.join(passed)})" if passed else "gate: nothing was checked"


def testcases(report: Report, section: GateSection) -> Iterator[TestCase]:
    """Yield a test case for each check; its findings are separate test cases."""
    for stage in section.stages:
        text = "its findings are separate tests" if stage.outcome == "found" else ""
        state = STATES.get(stage.outcome, "passed")
        yield TestCase(stage.check, "gate", state, stage.reason or stage.outcome, text, stage.outcome, stage.seconds)


def _describe_stage(report: Report, stage: Stage) -> tuple[str, str, str]:
    made = [finding for finding in report.findings if finding.check == stage.check]
    failed = any(finding.severity == "error" for finding in made)
    parts = [count_by_code(made)] if made else []
    parts += [stage.reason] if stage.reason else []
    parts += [f"{stage.answers[answer]} {answer}" for answer in ANSWERS if stage.answers.get(answer)]
    if stage.outcome != "left out":
        parts.append(f"{stage.seconds:.1f} s")
    return MARKS.get(stage.outcome, "failed" if failed else "passed"), stage.check, " · ".join(parts)


VIEW = SectionView("Gate", blocks, verdict=verdict, testcases=testcases, covers=True)
