"""The text of an issue: versions, the machine, what was measured of that package, how to see it; nothing of others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attncheck.core.facts import Absent
from attncheck.core.findings import Fix
from attncheck.core.io.errors import BadUsage
from attncheck.core.report import Report
from attncheck.report.bug_report import write_bug_report
from tests import snapshots as s
from tests.report import reports
from tests.report.test_html import make_parity_report

COMMAND = "attncheck parity --backend flash --explain-case heads-128 > reproduce.py"


def make_report() -> Report:
    """Return parity's report: a backend of flash-attn is wrong, another package's finding is next to it."""
    report = make_parity_report()
    fixes = (Fix("use eager", "setting", 'attn_implementation="eager"'), Fix("report it upstream", "advice", COMMAND))
    wrong = replace(report.findings[0], fixes=fixes, evidence=("heads-128: dq has z_row 99",))
    other = reports.make_finding("ATN140", subject="ring-flash-attn 0.1.8", message="ring-flash-attn is not importable")
    return replace(report, findings=(wrong, other))


@pytest.mark.parametrize("spelling", ["flash-attn", "flash_attn", "Flash.Attn"])
def test_an_issue_holds_what_maintainers_want_to_know(spelling: str) -> None:
    lines = write_bug_report(make_report(), spelling).splitlines()
    assert lines[0] == f"# {spelling}: flash is wrong"
    text = "\n".join(lines)
    for part in ("- flash-attn 2.8.3", "- torch 2.11.0+cu130", "- driver 580", "NVIDIA H200", "Python 3."):
        assert part in text, part
    assert "- heads-128: dq has z_row 99" in lines
    assert lines[lines.index("## Reproduction") + 5] == COMMAND.replace("\n", ""), "in its own code block"
    assert "heads-128: batch 1, seqlen 128, heads 4, head_dim 64, bf16, causal" in lines
    assert text.count(COMMAND) == 1 and "ring-flash-attn is not importable" not in text


def test_an_issue_about_a_package_of_doctor_needs_no_measurement() -> None:
    text = write_bug_report(make_report(), "ring-flash-attn")
    assert "ring-flash-attn is not importable" in text and "flash is wrong" not in text
    assert "## Reproduction" not in text


def test_what_is_not_known_is_not_made_up() -> None:
    report = make_report()
    snapshot = replace(report.snapshot, driver=Absent("not asked"), devices=Absent("not asked"))
    lines = write_bug_report(replace(report, snapshot=snapshot), "flash-attn").splitlines()
    assert "- driver: not recorded (attncheck doctor reads it)" in lines and "- GPU: NVIDIA H200" in lines


def test_a_package_without_a_finding_is_one_clear_line() -> None:
    with pytest.raises(BadUsage, match="no finding about liger-kernel: its findings are about flash, ring-flash-"):
        write_bug_report(make_report(), "liger-kernel")
    with pytest.raises(BadUsage, match="it has none about a package"):
        write_bug_report(Report("doctor", s.laptop()), "torch")
