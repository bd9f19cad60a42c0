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

from attncheck.core.findings import Finding
from attncheck.core.report import Report
from attncheck.report.finding_lines import allowance_for, evidence_and_fixes
from attncheck.report.formats import Format
from attncheck.report.sections import load_view
from attncheck.report.testcases import TestCase

# What XML 1.0 (2.2) does not allow in a document, in any writing.
FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(report: Report, verbose: bool) -> str:
    """Return the report as JUnit XML; it always holds everything, so `verbose` changes nothing."""
    tests = list(_testcases(report))
    root = ET.Element("testsuites", _attributes(f"attncheck {report.command}", tests))
    for name in dict.fromkeys(test.suite for test in tests):
        members = [test for test in tests if test.suite == name]
        suite = ET.SubElement(root, "testsuite", _attributes(name, members))
        _add_properties(suite, report)
        for test, label in zip(members, _labels(members)):
            _add_testcase(suite, test, label)
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _testcases(report: Report) -> Iterator[TestCase]:
    views = {name: load_view(name) for name in report.sections}
    for covers in (True, False):  # a gate's own checks come before what they found
        if not covers:
            yield from _rules(report)
        for name, section in report.sections.items():
            if views[name].covers == covers:
                yield from views[name].testcases(report, section)


def _attributes(name: str, tests: list[TestCase]) -> dict[str, str]:
    counted = {state: sum(test.state == state for test in tests) for state in ("failure", "error", "skipped")}
    return {
        "name": safe(name),
        "tests": str(len(tests)),
        "failures": str(counted["failure"]),
        "errors": str(counted["error"]),
        "skipped": str(counted["skipped"]),
        "time": f"{sum(test.seconds for test in tests):.3f}",
    }


def _labels(tests: list[TestCase]) -> Iterator[str]:
    """Yield each test's name, numbered from the second of the same: readers take two of a name for one."""
    seen: dict[str, int] = {}
    for test in tests:
        seen[test.name] = seen.get(test.name, 0) + 1
        yield test.name if seen[test.name] == 1 else f"{test.name} ({seen[test.name]})"


def _add_testcase(suite: ET.Element, test: TestCase, label: str) -> None:
    classname = re.sub(r"[^\w-]+", "_", test.suite)
    plain = {"name": label, "classname": f"attncheck.{classname}", "time": f"{test.seconds:.3f}", **test.location}
    case = ET.SubElement(suite, "testcase", {key: safe(value) for key, value in plain.items()})
    if test.state == "passed":
        if test.text:
            ET.SubElement(case, "system-out").text = safe(test.text)
        return
    message = {"message": safe(" ".join(test.reason.split()))}
    kind = {} if test.state == "skipped" else {"type": safe(test.kind or "attncheck")}
    ET.SubElement(case, test.state, {**message, **kind}).text = safe(test.text) or None


def _add_properties(suite: ET.Element, report: Report) -> None:
    on = report.device
    properties = {"attncheck": report.snapshot.attncheck, "device": on.name or on.device, "torch": on.torch}
    for section, part in report.sections.items():
        properties.update(load_view(section).properties(report, part))
    holder = ET.SubElement(suite, "properties")
    for name, value in properties.items():
        if value:
            ET.SubElement(holder, "property", {"name": name, "value": safe(value)})


def safe(text: str) -> str:
    """Return text that an XML 1.0 document can hold: a character that it cannot hold is written as Python's escape."""
    return FORBIDDEN.sub(lambda found: found.group().encode("unicode_escape").decode("ascii"), text)


def _rules(report: Report) -> Iterator[TestCase]:
    from attncheck.doctor.engine import all_rules

    suite = "lint" if report.command == "lint" else "rules"
    names = {rule.code: rule.name for rule in all_rules()[0]}
    for finding in report.findings:
        state = "failure" if finding.severity == "error" else "passed"
        yield _finding(finding, suite, state, finding.message)
    for finding in report.baselined:
        yield _finding(finding, suite, "skipped", f"known, it is in the baseline: {finding.message}")
    for finding in report.allowed:
        yield _finding(finding, suite, "skipped", f"allowed{_why(finding, report)}: {finding.message}")
    for code in report.passed:
        yield TestCase(f"{code} {names.get(code, '')}".rstrip(), suite)
    for skip in report.skips:
        yield TestCase(f"{skip.code} {skip.name}", suite, "skipped", skip.reason)
    for code in report.suppressed:
        yield TestCase(f"{code} {names.get(code, '')}".rstrip(), suite, "skipped", "switched off")


def _finding(finding: Finding, suite: str, state: str, reason: str) -> TestCase:
    about = f": {finding.subject}" if finding.subject else ""
    location = (
        {"file": finding.locations[0].source, "line": str(finding.locations[0].line)} if finding.locations else {}
    )
    name = f"{finding.code} {finding.name}{about}"
    return TestCase(name, suite, state, reason, _text(finding), f"{finding.code} {finding.severity}", 0.0, location)


def _text(finding: Finding) -> str:
    locations = (f"at: {location}" for location in finding.locations)
    return "\n".join((f"{finding.severity}: {finding.message}", *locations, *evidence_and_fixes(finding)))


def _why(finding: Finding, report: Report) -> str:
    allowance = allowance_for(finding, report)
    return f" until {allowance.until} ({allowance.reason})" if allowance else ""


FORMAT = Format(render)
