"""Rows and headings say only what is about them: packages, launches, emulated kernels."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attncheck.core.launch import SourceLocation
from attncheck.core.results.lint import LintSection
from attncheck.core.verdicts import BackendState, MeasuredOn, Verdict
from attncheck.doctor.engine import run_rules
from attncheck.report.sections.doctor import make_overview
from attncheck.report.sections.lint import launch_rows
from attncheck.report.sections.parity import format_heading
from tests import snapshots as s
from tests.report import reports


def test_a_part_that_fails_is_named_in_place_of_the_package_that_imports() -> None:
    broken = s.with_import(s.h200(), "transformers.modeling_utils", "raised", exception="ImportError", message="x")
    for snapshot, expected in ((s.h200(), "imports"), (broken, "importing it (transformers.modeling_utils) raised")):
        items = {item.title: item.text for item in make_overview(run_rules(snapshot, frozenset()))}
        assert items["transformers"].endswith(expected)


def test_a_finding_marks_the_row_that_it_is_about() -> None:
    """At fca601f a finding about a TRL launch marked the package trl of the environment as wrong."""
    gate = reports.make_gate_report()
    at = (SourceLocation("run.sh", 2, 3),)
    launch = reports.make_finding("ATN401", subject="transformers", severity="error", locations=at, check="lint")
    package = reports.make_finding("ATN140", subject="transformers", severity="error", check="doctor")
    for finding, package_mark, launch_mark in ((launch, "ok", "error"), (package, "error", "ok")):
        report = replace(gate, findings=(finding,))
        marks = {item.title: item.mark for item in make_overview(report)}
        section = report.section(LintSection)
        assert section is not None
        assert (marks["transformers"], next(launch_rows(report, section))[0]) == (package_mark, launch_mark)


@pytest.mark.parametrize(("package", "expected"), [("torch", False), ("ring-flash-attn", True)])
def test_emulated_kernels_are_named_if_a_measured_backend_calls_them(package: str, expected: bool) -> None:
    """At fca601f they were named although only torch's own ring had run."""
    states = (BackendState("one", "", package), BackendState("other", "", "ring-flash-attn"))
    verdicts = (Verdict("parity", "one", "x", "x", "pass", ""), Verdict("parity", "other", "x", "x", "refused", ""))
    heading = format_heading(MeasuredOn("cpu", "CPU", "2.13", ring_size=2, emulated=True), states, verdicts)
    assert ("emulated" in heading) == expected
