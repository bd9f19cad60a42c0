"""Finds the problems of only one side, as far as the other side was judged too."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from attncheck.core.report import Finding, Report, by_severity
from attncheck.core.results.diff import OneSidedFinding, SideName
from attncheck.core.snapshot import NOT_ASKED, Absent
from attncheck.doctor import engine
from attncheck.doctor.memory import RuleMemory
from attncheck.doctor.needs import Need
from attncheck.doctor.profile import needs_of_profile
from attncheck.stacks.diff.sides import StackSide

VERSION = re.compile(r"[ =]+v?\d[\w.+!-]*$")
Key = tuple[str, str]  # a finding's code, and its subject without a version


@dataclass(frozen=True)
class OneSided:
    """The findings that only one side has, in full and by side, and those that the other side could not judge."""

    findings: tuple[Finding, ...] = ()
    rows: tuple[OneSidedFinding, ...] = ()
    not_judged: tuple[str, ...] = ()


def compare_findings(a: StackSide, b: StackSide) -> OneSided:
    """Return the findings that only one side has: from the rules, run on both, and from measurements in reports.

    A lock has no findings; compared with a lock, no finding is one-sided.
    """
    if a.snapshot is None or b.snapshot is None:
        return OneSided()
    needs = needs_of_profile("auto", a.snapshot) | needs_of_profile("auto", b.snapshot)
    judged_a, judged_b = judge_side(a, needs), judge_side(b, needs)
    findings: list[Finding] = []
    rows: list[OneSidedFinding] = []
    not_judged: list[str] = []
    sides: tuple[tuple[SideName, JudgedSide, JudgedSide], ...] = (("A", judged_a, judged_b), ("B", judged_b, judged_a))
    for name, here, there in sides:
        for finding, reason in list_one_sided(here, there):
            if reason:
                not_judged.append(f"{finding.code} of {name} ({finding.subject or finding.name}): {reason}")
                continue
            rows.append(OneSidedFinding(name, finding.code, finding.subject))
            only = f"only on {name}, {here.side.name.source}"
            findings.append(replace(finding, evidence=(only, *finding.evidence)))
    return OneSided(by_severity(findings), tuple(rows), tuple(not_judged))


def list_one_sided(here: "JudgedSide", there: "JudgedSide") -> Iterator[tuple[Finding, str]]:
    """Yield each finding of `here` that `there` lacks, with the reason if it was not judged there, otherwise ""."""
    keys_there = {make_key(finding) for finding in there.report.findings}
    for finding in here.report.findings:
        if make_key(finding) not in keys_there:
            yield finding, _why_not_judged(finding, here, there)


@dataclass(frozen=True)
class JudgedSide:
    """A side with its rules' findings, and the facts that each rule read."""

    side: StackSide
    report: Report
    memory: RuleMemory[engine.RuleAnswer]

    def list_unseen(self, code: str) -> set[str]:
        """Return the facts that the rule `code` read and that were not probed here."""
        read = self.memory.list_values(code)
        return {name for name, value in read if isinstance(name, str) and value == Absent(NOT_ASKED)}


def judge_side(side: StackSide, needs: frozenset[Need]) -> JudgedSide:
    """Return the rules' report on a side, with its own report's findings on measurements and launches."""
    assert side.snapshot is not None
    memory: RuleMemory[engine.RuleAnswer] = RuleMemory()
    judged = engine.run_rules(side.snapshot, needs, memory=memory)
    if side.report is None:
        return JudgedSide(side, judged, memory)
    keys = {make_key(finding) for finding in judged.findings}
    own = (*side.report.findings, *side.report.baselined, *side.report.allowed)
    more = [f for f in own if make_key(f) not in keys and f.code not in judged.passed]
    return JudgedSide(side, replace(judged, findings=by_severity((*judged.findings, *more))), memory)


def make_key(finding: Finding) -> Key:
    """Return a key that identifies a finding, regardless of its subject's version."""
    return finding.code, VERSION.sub("", finding.subject)


def _why_not_judged(finding: Finding, here: JudgedSide, there: JudgedSide) -> str:
    """Return why a finding was not judged on the other side; "" if it was judged and not found there."""
    unseen = there.list_unseen(finding.code) - here.list_unseen(finding.code)
    if unseen:
        return f"not examined on the other side: {', '.join(sorted(unseen))}"
    skip = next((skip for skip in there.report.skips if skip.code == finding.code), None)
    if skip is not None:
        return f"not judged on the other side: {skip.reason}"
    if not any(rule.code == finding.code and rule.by_engine for rule in engine.all_rules()[0]):
        was_judged = finding.code in there.report.passed or any(f.code == finding.code for f in there.report.findings)
        return "" if was_judged else "not judged on the other side"
    lacking = _list_unmeasured(finding, here.side, there.side)
    return f"the other side has no {lacking}" if lacking else ""


def _list_unmeasured(finding: Finding, side: StackSide, other: StackSide) -> str:
    """Return the measurements for this finding that the other side's report lacks."""
    if side.report is None:
        return ""
    sections = other.report.sections if other.report is not None else {}
    missing = [name for name in side.report.sections if name not in sections]
    if missing:
        return f"report of {', '.join(missing)}"
    here = {verdict.backend for verdict in side.report.verdicts}
    there = set(_list_judged_backends(other.report))
    if finding.subject in here and finding.subject not in there:
        return f"measurement of {finding.subject}"
    return ""


def _list_judged_backends(report: Report | None) -> Iterator[str]:
    for verdict in report.verdicts if report is not None else ():
        if verdict.answer in ("pass", "warn", "fail"):
            yield verdict.backend
