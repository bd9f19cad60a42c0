"""The report as JUnit XML, in the dialect that GitHub's reporters, GitLab and Jenkins read.

A suite for the rules, one for the stages of a gate, one for each backend or model that was measured. Red is what fails
a job by default and nothing else: a finding that is an error fails; a warning or a note passes and tells itself in
`system-out`; what could not be judged, is in the baseline, allowed or switched off is skipped with its reason. A
verdict fails beside the finding made of it, unless no error stands: then it was let pass, and is skipped. A stage that
was not answered, and a measurement whose process was lost, are errors. `time` is in seconds: of a call that was timed,
of all repeats, of a proof.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass, field

from attncheck.core.findings import Finding
from attncheck.core.report import Report
from attncheck.core.results import smoke
from attncheck.core.results.verdicts import UNMEASURED, Answer, Outcome
from attncheck.report.formats import Renderer
from attncheck.report.sections.plain import allowance, told

# What XML 1.0 (2.2) does not allow in a document, in any writing.
FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
LET_PASS = "it fails, and no error stands: the baseline, the policy or --ignore let it pass"


@dataclass(frozen=True)
class Test:
    """One testcase. `state` is "passed", or the element that says otherwise."""

    name: str
    suite: str
    state: str = "passed"  # "failure", "error", "skipped"
    because: str = ""  # in one line
    text: str = ""  # all of it
    kind: str = ""
    seconds: float = 0.0
    where: dict[str, str] = field(default_factory=dict)  # file and line


def render(report: Report, verbose: bool) -> str:
    """Return the report as JUnit XML; it always holds everything, so `verbose` changes nothing."""
    tests = list(_tests(report))
    root = ET.Element("testsuites", _attributes(f"attncheck {report.command}", tests))
    for name in dict.fromkeys(test.suite for test in tests):
        mine = [test for test in tests if test.suite == name]
        suite = ET.SubElement(root, "testsuite", _attributes(name, mine))
        _properties(suite, report)
        for test, label in zip(mine, _labels(mine)):
            _testcase(suite, test, label)
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _tests(report: Report) -> Iterator[Test]:
    yield from _stages(report)
    yield from _rules(report)
    yield from _verdicts(report)
    yield from _proofs(report)
    yield from _timings(report)


def _attributes(name: str, tests: list[Test]) -> dict[str, str]:
    counted = {state: sum(test.state == state for test in tests) for state in ("failure", "error", "skipped")}
    return {
        "name": safe(name),
        "tests": str(len(tests)),
        "failures": str(counted["failure"]),
        "errors": str(counted["error"]),
        "skipped": str(counted["skipped"]),
        "time": f"{sum(test.seconds for test in tests):.3f}",
    }


def _labels(tests: list[Test]) -> Iterator[str]:
    """Yield each test's name, numbered from the second of the same: readers take two of a name for one."""
    seen: dict[str, int] = {}
    for test in tests:
        seen[test.name] = seen.get(test.name, 0) + 1
        yield test.name if seen[test.name] == 1 else f"{test.name} ({seen[test.name]})"


def _testcase(suite: ET.Element, test: Test, label: str) -> None:
    classname = re.sub(r"[^\w-]+", "_", test.suite)
    plain = {"name": label, "classname": f"attncheck.{classname}", "time": f"{test.seconds:.3f}", **test.where}
    case = ET.SubElement(suite, "testcase", {key: safe(value) for key, value in plain.items()})
    if test.state == "passed":
        if test.text:
            ET.SubElement(case, "system-out").text = safe(test.text)
        return
    message = {"message": safe(" ".join(test.because.split()))}
    kind = {} if test.state == "skipped" else {"type": safe(test.kind or "attncheck")}
    ET.SubElement(case, test.state, {**message, **kind}).text = safe(test.text) or None


def _properties(suite: ET.Element, report: Report) -> None:
    on = report.measured_on
    launches = {
        f"launch.{n}": f"{each.job.location}: {each.job.framework} {each.job.version} {each.job.trainer}"
        for n, each in enumerate(report.launches, 1)
    }
    known = {"attncheck": report.snapshot.attncheck, "device": on.name or on.device, "torch": on.torch, **launches}
    holder = ET.SubElement(suite, "properties")
    for name, value in known.items():
        if value:
            ET.SubElement(holder, "property", {"name": name, "value": safe(value)})


def safe(text: str) -> str:
    """Return text that an XML 1.0 document can hold: a character that it cannot hold is written as Python's escape."""
    return FORBIDDEN.sub(lambda found: found.group().encode("unicode_escape").decode("ascii"), text)


def _stages(report: Report) -> Iterator[Test]:
    for stage in report.stages:
        state = {"unanswered": "error", "left out": "skipped"}.get(stage.outcome, "passed")
        text = "its findings are tests of their own" if stage.outcome == "found" else ""
        yield Test(stage.check, "gate", state, stage.reason or stage.outcome, text, stage.outcome, stage.seconds)


def _rules(report: Report) -> Iterator[Test]:
    from attncheck.doctor.engine import all_rules

    suite = report.command if report.command in ("lint", "communication") else "rules"
    names = {rule.code: rule.name for rule in all_rules()[0]}
    for finding in report.findings:
        state = "failure" if finding.severity == "error" else "passed"
        yield _found(finding, suite, state, finding.message)
    for finding in report.baselined:
        yield _found(finding, suite, "skipped", f"known, it is in the baseline: {finding.message}")
    for finding in report.allowed:
        yield _found(finding, suite, "skipped", f"allowed{_why(finding, report)}: {finding.message}")
    for code in report.passed:
        yield Test(f"{code} {names.get(code, '')}".rstrip(), suite)
    for skip in report.skips:
        yield Test(f"{skip.code} {skip.name}", suite, "skipped", skip.reason)
    for code in report.suppressed:
        yield Test(f"{code} {names.get(code, '')}".rstrip(), suite, "skipped", "switched off")


def _found(finding: Finding, suite: str, state: str, because: str) -> Test:
    about = f": {finding.subject}" if finding.subject else ""
    where = {"file": finding.locations[0].source, "line": str(finding.locations[0].line)} if finding.locations else {}
    name = f"{finding.code} {finding.name}{about}"
    return Test(name, suite, state, because, _text(finding), f"{finding.code} {finding.severity}", 0.0, where)


def _text(finding: Finding) -> str:
    places = (f"at: {place}" for place in finding.locations)
    return "\n".join((f"{finding.severity}: {finding.message}", *places, *told(finding)))


def _why(finding: Finding, report: Report) -> str:
    allowed = allowance(finding, report)
    return f" until {allowed.until} ({allowed.reason})" if allowed else ""


def _judged(report: Report, name: str, suite: str, answer: Answer, reason: str, text: str, seconds: float) -> Test:
    """Return a measurement's test."""
    if answer == "fail" and report.worst() != "error":
        return Test(name, suite, "skipped", f"{LET_PASS}: {reason}", text, answer, seconds)
    state = {"fail": "failure", "lost": "error", "refused": "skipped", "skipped": "skipped"}.get(answer, "passed")
    text = f"{reason}\n{text}".strip() if answer != "pass" or text else ""
    return Test(name, suite, state, reason, text, answer, seconds)


def _verdicts(report: Report) -> Iterator[Test]:
    if report.attempts:  # smoke's verdicts are its proofs
        return
    times = _times(report)
    for each in report.verdicts:
        seconds = times.get((each.backend, each.case), 0.0)
        suite = f"{each.question}: {each.backend}"
        yield _judged(report, each.case, suite, each.answer, each.reason, "\n".join(each.evidence), seconds)


def _times(report: Report) -> dict[tuple[str, str], float]:
    """Return how long each case of each backend took, in seconds."""
    times = {(run.backend, run.case.name): run.call_ms / 1000 for run in report.runs}
    for each in report.repeats:
        key = (each.backend, each.case.name)
        times[key] = times.get(key, 0.0) + each.call_ms * each.repeats / 1000
    return times


def _proofs(report: Report) -> Iterator[Test]:
    for attempt in report.attempts:
        mended = f", mended: {attempt.reason}" if attempt.reason else ""
        for proof in attempt.results:
            text = "\n".join((*proof.violations[1:], *proof.reservations, *proof.notes))
            suite = f"smoke: {attempt.model}{mended}"
            yield _judged(
                report, proof.check, suite, smoke.answer(proof), smoke.deciding_reason(proof), text, proof.seconds
            )


def _timings(report: Report) -> Iterator[Test]:
    """Yield what was timed; `time` is the median call's."""
    for each in report.timings:
        name = f"{each.case.name} {each.passes}" + (" deterministic" if each.mode == "deterministic" else "")
        parity = _told(each.outcome, each.answer)
        text = f"median {each.median_ms:.4g} ms, {each.tflops:.3g} TFLOP/s" if each.outcome == "ok" else ""
        suite = f"bench: {each.backend}"
        yield _judged(report, name, suite, parity, each.reason or each.answer_reason, text, each.median_ms / 1000)
    for ring in report.ring_timings:
        name = f"{ring.table} {ring.passes} {ring.seqlen} tokens a rank"
        text = f"efficiency {ring.efficiency:.3f}" if ring.outcome == "ok" else ""
        parity = _told(ring.outcome, ring.correct)
        yield _judged(report, name, f"bench: {ring.title}", parity, ring.reason, text, ring.watch.ms / 1000)


def _told(outcome: Outcome, parity: Answer) -> Answer:
    """Return the answer of a timing: parity's where it was timed; one whose parity was not asked passes."""
    return UNMEASURED.get(outcome, "pass" if parity in ("skipped", "refused") else parity)


RENDERER = Renderer("junit", render)
