"""The report as JUnit XML, in the dialect that GitHub's reporters, GitLab and Jenkins read.

There is a suite for the rules, one for the stages of a gate, and one for each measured backend or model. A rule is one
test case with the same name whether it passes or fails, so that a CI can follow its history; the message names the
subject. Only what fails a job by default is a failure: a finding that is an error. A warning or a note passes, with its
text in `system-out`. Rules that are inconclusive, in the baseline, allowed or switched off are skipped with their
reason. A verdict fails together with its finding; if no error is left, it was allowed and is skipped. A stage without
an answer, and a measurement whose process was lost, are errors. `time` is in seconds: of a timed call, of all repeats,
or of a smoke check.
"""

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from attncheck.core.io.visible import indent_continuation, show_line_ends
from attncheck.core.lists import group_values
from attncheck.report.finding_lines import INDENT, evidence_and_fixes, find_allowance, measured_questions
from attncheck.report.formats import Finding, Format, Report
from attncheck.report.interpreter_line import describe_interpreter
from attncheck.report.sections import TestCase, load_view

# Characters that XML 1.0 (2.2) forbids in a document, even as a character reference.
FORBIDDEN_CHARACTER = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(report: Report, verbose: bool) -> str:
    """Return the report as JUnit XML; it always contains everything, so `verbose` changes nothing."""
    tests = list(_iter_testcases(report))
    root = ET.Element("testsuites", _suite_attributes(f"attncheck {report.command}", tests))
    for name in dict.fromkeys(test.suite for test in tests):
        suite_tests = [test for test in tests if test.suite == name]
        suite = ET.SubElement(root, "testsuite", _suite_attributes(name, suite_tests))
        _add_properties(suite, report)
        for test, unique_name in zip(suite_tests, _unique_names(suite_tests)):
            _add_testcase(suite, test, unique_name)
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _iter_testcases(report: Report) -> Iterator[TestCase]:
    views = {name: load_view(name) for name in report.sections}
    for question in measured_questions(report):
        yield TestCase("answered", question.name, "error", question.reason, question.reason, question.outcome)
    for covers in (True, False):  # a gate's stages come before their results
        if not covers:
            yield from _rule_testcases(report)
        for name, section in report.sections.items():
            if views[name].covers == covers:
                yield from views[name].testcases(report, section)


def _suite_attributes(name: str, tests: list[TestCase]) -> dict[str, str]:
    counts = {state: sum(test.state == state for test in tests) for state in ("failure", "error", "skipped")}
    return {
        "name": escape_forbidden(name),
        "tests": str(len(tests)),
        "failures": str(counts["failure"]),
        "errors": str(counts["error"]),
        "skipped": str(counts["skipped"]),
        "time": f"{sum(test.seconds for test in tests):.3f}",
    }


def _unique_names(tests: list[TestCase]) -> Iterator[str]:
    """Yield each test's name, with a number for repeated ones, because readers merge tests with the same name."""
    counts: dict[str, int] = {}
    for test in tests:
        counts[test.name] = counts.get(test.name, 0) + 1
        yield test.name if counts[test.name] == 1 else f"{test.name} ({counts[test.name]})"


def _add_testcase(suite: ET.Element, test: TestCase, name: str) -> None:
    classname = re.sub(r"[^\w-]+", "_", test.suite)
    attributes = {"name": name, "classname": f"attncheck.{classname}", "time": f"{test.seconds:.3f}", **test.location}
    case = ET.SubElement(suite, "testcase", {key: escape_forbidden(value) for key, value in attributes.items()})
    if test.state == "passed":
        if test.text:
            ET.SubElement(case, "system-out").text = escape_forbidden(test.text)
        return
    message = {"message": escape_forbidden(" ".join(test.reason.split()))}
    type_attribute = {} if test.state == "skipped" else {"type": escape_forbidden(test.kind or "attncheck")}
    ET.SubElement(case, test.state, {**message, **type_attribute}).text = escape_forbidden(test.text) or None


def _add_properties(suite: ET.Element, report: Report) -> None:
    measured_on = report.device
    properties = {
        "attncheck": report.snapshot.attncheck,
        "device": measured_on.name or measured_on.device,
        "torch": measured_on.torch,
        "python": describe_interpreter(report),
    }
    for section_name, section in report.sections.items():
        properties.update(load_view(section_name).properties(report, section))
    element = ET.SubElement(suite, "properties")
    for name, value in properties.items():
        if value:
            ET.SubElement(element, "property", {"name": name, "value": escape_forbidden(value)})


def escape_forbidden(text: str) -> str:
    """Return text that an XML 1.0 document can contain: a forbidden character is written as Python's escape."""
    text = text.replace("\r\n", "\n")  # as every XML reader normalises it
    return FORBIDDEN_CHARACTER.sub(lambda match: match.group().encode("unicode_escape").decode("ascii"), text)


def _rule_testcases(report: Report) -> Iterator[TestCase]:
    """Yield one test case for each rule, always named by its code and name, so that a CI can follow its history."""
    from attncheck.doctor.engine import all_rules

    suite = "lint" if report.command == "lint" else "rules"
    names = {rule.code: rule.name for rule in all_rules()[0]}
    groups = group_values(((outcome.finding.code, outcome.finding.name), outcome) for outcome in _iter_outcomes(report))
    for (code, name), outcomes in groups.items():
        yield _finding_testcase(f"{code} {name}", suite, outcomes)
    for code in report.passed:
        yield TestCase(f"{code} {names.get(code, '')}".rstrip(), suite)
    for skip in report.skips:
        if (skip.code, skip.name) not in groups:
            yield TestCase(f"{skip.code} {skip.name}", suite, "skipped", skip.reason)
    for code in report.suppressed:
        yield TestCase(f"{code} {names.get(code, '')}".rstrip(), suite, "skipped", "switched off")


@dataclass(frozen=True)
class _Outcome:
    """A finding, the state that it alone would give its rule's test case, and the reason in one line."""

    finding: Finding
    state: str
    reason: str


STATES = ("failure", "passed", "skipped")  # most severe first: a rule's test case is as severe as its worst finding


def _iter_outcomes(report: Report) -> Iterator[_Outcome]:
    for finding in report.findings:
        yield _Outcome(finding, "failure" if finding.severity == "error" else "passed", finding.message)
    for finding in report.baselined:
        yield _Outcome(finding, "skipped", f"known, it is in the baseline: {finding.message}")
    for finding in report.allowed:
        yield _Outcome(finding, "skipped", f"allowed{_describe_allowance(finding, report)}: {finding.message}")


def _finding_testcase(name: str, suite: str, outcomes: Iterable[_Outcome]) -> TestCase:
    """Return the test case of one rule with findings: as severe as its worst finding, with the text of all."""
    ordered = sorted(outcomes, key=lambda outcome: STATES.index(outcome.state))
    first = ordered[0]
    finding = first.finding
    more = f" (and {len(ordered) - 1} more)" if len(ordered) > 1 else ""
    location = (
        {"file": finding.locations[0].source, "line": str(finding.locations[0].line)} if finding.locations else {}
    )
    text = "\n\n".join(_describe_finding(outcome.finding) for outcome in ordered)
    kind = f"{finding.code} {finding.severity}"
    return TestCase(name, suite, first.state, first.reason + more, text, kind, 0.0, location)


def _describe_finding(finding: Finding) -> str:
    locations = (f"at: {show_line_ends(str(location))}" for location in finding.locations)
    message = indent_continuation(f"{finding.severity}: {finding.message}", INDENT)
    return "\n".join((message, *locations, *evidence_and_fixes(finding)))


def _describe_allowance(finding: Finding, report: Report) -> str:
    allowance = find_allowance(finding, report)
    return f" until {allowance.until} ({allowance.reason})" if allowance else ""


FORMAT = Format(render, "xml")
