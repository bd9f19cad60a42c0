"""JUnit XML: what is red, what is skipped and why, and that a real reader reads it back whatever messages hold."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attncheck.core.findings import Skip
from attncheck.report.formats import load_format
from tests.report import reports

NASTY = "\x00\x1b[31m\ud800 <&\"'> ]]> \ufffe \x85 é 🦊 \r\n tab\t"


def parse_junit(report: object) -> ET.Element:
    """Return the document as an XML reader sees it, from bytes as a file holds them."""
    return ET.fromstring(load_format("junit").render(report, False).encode("utf-8"))  # type: ignore[arg-type]


def states_by_name(root: ET.Element) -> dict[str, str]:
    """Return each test's state by its name."""
    return {
        case.get("name", ""): next((child.tag for child in case if child.tag != "system-out"), "passed")
        for case in root.iter("testcase")
    }


def test_red_is_what_fails_a_job_and_the_rest_says_why_it_is_not() -> None:
    root = parse_junit(reports.make_gate_report())
    states = states_by_name(root)
    assert states["ATN140 ring-flash-attn-import"] == "failure"
    assert states[_name_with_code(states, "ATN201")] == "passed"
    assert states[_name_with_code(states, "ATN110")] == "passed", "a note is no failure"
    assert (
        states[_name_with_code(states, "ATN147")] == "skipped"
        and states[_name_with_code(states, "ATN109")] == "skipped"
    )
    assert (
        states[_name_with_code(states, "ATN101")] == "passed" and states[_name_with_code(states, "ATN155")] == "skipped"
    )
    assert (states["doctor"], states["lint"], states["parity"], states["bench"]) == (
        "passed",
        "passed",
        "error",
        "skipped",
    )
    assert states["gqa-128"] == "failure", "the later suite of two that have such a case"
    assert (states["alibi"], states["long"], states["near"]) == ("skipped", "error", "passed")


def _name_with_code(states: dict[str, str], code: str) -> str:
    return next(name for name in states if name.startswith(code))


def test_a_rule_is_one_test_of_one_name_whether_it_passes_or_fails() -> None:
    """A CI's history follows a test by suite, class and name; what a rule found is in the message."""

    def names(**fields: Any) -> list[tuple[str | None, str | None]]:
        root = parse_junit(reports.make_doctor_report(**fields))
        return sorted((case.get("classname"), case.get("name")) for case in root.iter("testcase"))

    code = reports.make_finding()
    other = replace(code, subject="ring-flash-attn 0.1.9", message="another", severity="warning")
    passing = reports.make_doctor_report(findings=(), skips=())
    codes = tuple({*passing.passed, "ATN140"})
    passed, rest = {"findings": (), "skips": ()}, tuple(name for name in codes if name != "ATN140")
    expected = names(**passed, passed=codes)
    assert len(expected) > 50
    for outcome in (
        {"findings": (code,)},
        {"findings": (other, code)},
        {"findings": (other,), "baselined": (code,)},
        {"allowed": (code,)},
        {"skips": (Skip("ATN140", code.name, "no torch"),)},
    ):
        assert names(**{**passed, **outcome}, passed=rest) == expected, outcome
    both = parse_junit(reports.make_doctor_report(findings=(other, code)))
    failure = next(both.iter("failure"))
    assert failure.get("message", "").endswith("(and 1 more)")
    assert "another" in (failure.text or "") and code.message in (failure.text or "")


def test_reasons_places_and_times_are_told() -> None:
    root = parse_junit(reports.make_gate_report())
    skips = {case.get("name", "")[:6]: case.find("skipped") for case in root.iter("testcase")}
    allowed = skips["ATN109"]
    assert allowed is not None and "until 2027-02-01 (SDPA is enough)" in allowed.get("message", "")
    unjudged = skips["ATN207"]
    assert unjudged is not None and unjudged.get("message") == "no GPU"
    located = next(case for case in root.iter("testcase") if case.get("name", "").startswith("ATN401"))
    assert (located.get("file"), located.get("line")) == ("run.sh", "2")
    timed = next(case for case in root.iter("testcase") if case.get("classname") == "attncheck.parity_sdpa_math")
    assert timed.get("time") == "1.500"
    failure = next(case for case in root.iter("testcase") if case.get("name", "").startswith("ATN140")).find("failure")
    assert failure is not None and "uv pip install transformers==5.3.0" in (failure.text or "")


def test_counts_are_those_of_the_testcases() -> None:
    root = parse_junit(reports.make_gate_report())
    for holder in (root, *root.iter("testsuite")):
        cases = list(holder.iter("testcase"))
        assert holder.get("tests") == str(len(cases))
        for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert holder.get(attribute) == str(sum(case.find(tag) is not None for case in cases))


def test_a_failing_verdict_that_is_allowed_is_not_red() -> None:
    report = reports.make_gate_report()
    quiet = replace(report, findings=(), baselined=(*report.baselined, *report.findings))
    case = next(c for c in parse_junit(quiet).iter("testcase") if c.get("classname") == "attncheck.parity_flash")
    skipped = case.find("skipped")
    assert skipped is not None and "allows it" in skipped.get("message", "")
    assert not any(True for _ in parse_junit(quiet).iter("failure"))


def test_proofs_are_tests_of_their_model() -> None:
    cases = {case.get("name"): case for case in parse_junit(reports.make_smoke_report()).iter("testcase")}
    assert cases["documents_apart"].find("failure") is not None
    assert cases["what_ran"].find("failure") is None and cases["what_ran"].get("time") == "0.250"


def test_any_characters_make_a_document() -> None:
    finding = reports.make_finding(message=NASTY, subject=NASTY, evidence=(NASTY,))
    root = parse_junit(reports.make_doctor_report(findings=(finding,)))
    message = next(root.iter("failure")).get("message", "")
    assert "\\x00" in message and "\\ud800" in message and "\\ufffe" in message
    assert "<&\"'> ]]>" in message and "é 🦊" in message


def test_every_single_character_can_stand_in_a_message() -> None:
    text = "".join(map(chr, [*range(0x300), *range(0xD7F0, 0xE010), *range(0xFFF0, 0x10010)]))
    assert parse_junit(reports.make_doctor_report(findings=(reports.make_finding(message=text),))).tag == "testsuites"


def test_a_junit_reader_reads_it(tmp_path: Path) -> None:
    junitparser = pytest.importorskip("junitparser")
    path = tmp_path / "junit.xml"
    path.write_text(load_format("junit").render(reports.make_gate_report(), False), encoding="utf-8")
    suites = {suite.name: suite for suite in junitparser.JUnitXml.fromfile(str(path))}
    assert list(suites) == ["gate", "rules", "parity: sdpa_math", "parity: flash"]
    red = [case.name for case in suites["rules"] for result in case.result if isinstance(result, junitparser.Failure)]
    assert [name[:6] for name in red] == ["ATN140", "ATN401"]
    assert suites["gate"].errors == 1 and suites["parity: flash"].failures == 1
    assert any(p.name == "launch.1" and "openrlhf 0.11.2 sft" in p.value for p in suites["rules"].properties())
