"""The first and the last line of a report are its verdict; what says the same of many subjects is one finding."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from attncheck.core.cases import Case
from attncheck.core.findings import Fix, Skip
from attncheck.core.launch import SourceLocation
from attncheck.core.report import Report
from attncheck.core.results.doctor import DoctorSection
from attncheck.core.results.gate import GateSection, Stage
from attncheck.core.results.lint import LintSection
from attncheck.core.results.parity import ParitySection
from attncheck.core.results.rehearsal import RehearsalSection, RehearsedLaunch
from attncheck.core.results.repair import RepairSection, RepairStep
from attncheck.core.results.smoke import CheckResult
from attncheck.core.results.upgrade import ChangedPackage, UpgradeSection
from attncheck.core.verdicts import BackendState, MeasuredOn, Run, Verdict
from attncheck.report.finding_lines import merge_alike
from attncheck.report.formats import load_format
from attncheck.report.verdict import describe_verdict
from tests import snapshots as s
from tests.report import reports

RIGHT = tuple(Verdict("parity", name, case, case, "pass", "") for name in ("eager", "sdpa_math") for case in "ab")
CUDA = Verdict("parity", "sdpa_cudnn", "a", "a", "refused", "CUDNN_ATTENTION runs on CUDA only")


def report_with(section: ParitySection | UpgradeSection | GateSection | LintSection | RehearsalSection) -> Report:
    return Report(section.name, s.laptop(), sections={section.name: section})


def make_launch(*answers: str, tried: str = "") -> RehearsedLaunch:
    results = tuple(
        CheckResult(f"check_{number}", violations=("it is wrong",) if answer == "fail" else ())
        if answer in ("pass", "fail")
        else CheckResult("loss", "skipped" if answer == "skipped" else "out_of_time", "a consequence")
        for number, answer in enumerate(answers)
    )
    return RehearsedLaunch("a.sh:2:1", "trl", "1.16.0", "sft", "qwen2", "", "", "", results, steps=30, tried=tried)


@pytest.mark.parametrize(
    ("report", "verdict"),
    [
        (
            Report("doctor", s.laptop(), passed=("ATN101", "ATN102"), skips=(Skip("ATN103", "x", "y"),)),
            "no problems (2 rules passed, 1 inconclusive)",
        ),
        (
            Report("doctor", s.laptop(), sections={"doctor": DoctorSection((), ("the import lane died",))}),
            "no problems in the rest · unanswered: doctor",
        ),
        (report_with(ParitySection(verdicts=RIGHT)), "all 4 cases right, 2 backends"),
        (report_with(ParitySection(verdicts=(*RIGHT, CUDA))), "all 4 cases right, 2 backends; 1 needs CUDA"),
        (
            report_with(ParitySection(verdicts=(*RIGHT[1:], replace(RIGHT[0], answer="fail")))),
            "3 of 4 cases right, 1 wrong, 2 backends",
        ),
        (
            report_with(RehearsalSection(launches=(make_launch("fail"), make_launch("pass", tried="--packing bfd")))),
            "a.sh trains wrongly; --packing bfd trains right (both run, 30 steps)",
        ),
        (
            report_with(RehearsalSection(launches=(make_launch("pass", "skipped"),))),
            "a.sh passes check_0 (run, 30 steps); not judged: loss",
        ),
        (
            report_with(RehearsalSection(launches=(replace(make_launch("pass"), unasked=("images", "evaluation")),))),
            "a.sh trains right (run, 30 steps); not asked: images, evaluation",
        ),
        (report_with(RehearsalSection(launches=(make_launch("fail"),))), "a.sh trains wrongly (run, 30 steps)"),
        (
            report_with(RehearsalSection(launches=(make_launch("out_of_time"),))),
            "a.sh was not judged completely (run, 30 steps) · unanswered: rehearsal",
        ),
        (
            report_with(RehearsalSection(launches=(replace(make_launch("fail"), steps=0),))),
            "a.sh was not judged: no step was taken; it is wrong · unanswered: rehearsal",
        ),
        (
            replace(
                report_with(RehearsalSection(launches=(replace(make_launch("fail"), steps=0),))),
                findings=(
                    replace(
                        reports.make_finding("ATN435"),
                        message="it ends: it is wrong",
                        fixes=(Fix("install x", "command", "pip install x"), Fix("or else", "advice", "")),
                    ),
                ),
            ),
            "a.sh was not judged: no step was taken; it is wrong; pip install x · 1 error (ATN435) "
            "· unanswered: rehearsal",
        ),
        (
            report_with(RehearsalSection(launches=(replace(make_launch(), steps=0),))),
            "a.sh was not judged: no step was taken; -v shows how it was scaled down · unanswered: rehearsal",
        ),
        (report_with(LintSection(not_linted=("x",))), "nothing was linted: no launch of a known trainer was read"),
        (
            report_with(UpgradeSection(packages=(ChangedPackage("x", "", "1"),), lost=("unknown: no table has x",))),
            "unknown: no table has x · unanswered: upgrade",
        ),
        (report_with(GateSection((Stage("doctor", "clean"),))), "gate: passed (doctor)"),
        (
            replace(
                report_with(GateSection((Stage("doctor", "found"),))),
                findings=(reports.make_finding("ATN301", check="doctor"),),
            ),
            "gate: failed, doctor 1 error (ATN301)",
        ),
        (
            report_with(GateSection((Stage("parity", "unanswered", 0, "x"),))),
            "gate: no result from parity · unanswered: parity",
        ),
    ],
)
def test_the_verdict_comes_first_and_last(report: Report, verdict: str) -> None:
    assert describe_verdict(report) == verdict
    lines = load_format("text").render(report, False).splitlines()
    assert lines[0] == lines[-1] == verdict
    assert verdict.split("(")[0] in load_format("github").render(report, False)


def test_what_was_refused_is_not_counted_as_right() -> None:
    run = Run("eager", Case("x", (8,), (8,), name="x"), "refused", "no luck")
    refused = Verdict("parity", "eager", "x", "x", "refused", "no luck")
    report = report_with(ParitySection(MeasuredOn("cpu"), (), (refused,), (run,)))
    assert describe_verdict(report) == "nothing was measured · unanswered: parity"
    assert "right" not in describe_verdict(report_with(ParitySection(verdicts=(refused,))))


def test_findings_that_say_the_same_of_several_subjects_are_one_with_a_list() -> None:
    names = [f"backend_{number}" for number in range(6)]
    alike = tuple(
        reports.make_finding(
            "ATN601",
            subject=name,
            message=f"{name} is wrong",
            evidence=("on every rank", f"{name}: error {number}", f"at head {number}"),
            fixes=(Fix("reproduce it", "advice", f"attncheck parity --explain-case x --backend {name}"),),
        )
        for number, name in enumerate(names)
    )
    other = reports.make_finding("ATN601", subject="eager", message="eager is wrong in 3 of 59 cases")
    (merged, kept) = merge_alike((*alike, other))
    assert merged.message == f"{', '.join(names)} is wrong" and kept == other
    assert merged.evidence[:3] == ("on every rank", "backend_0: error 0", "backend_0: at head 0")
    assert len(merged.evidence) == 13 and len(merged.fixes) == 1
    report = Report("parity", s.laptop(), (*alike, other))
    for name in ("text", "markdown", "html"):
        assert max(Counter(load_format(name).render(report, False).split("is wrong")).values()) < 3
        assert load_format(name).render(report, False).count("on every rank") <= 2  # once more in the page's bug report
    assert load_format("json").render(report, False).count('"code": "ATN601"') == 7


def test_findings_of_one_subject_stay_apart() -> None:
    findings = tuple(reports.make_finding(message=text) for text in ("it is 3 wide", "it is 4 wide"))
    assert merge_alike(findings) == findings


def test_a_step_of_the_repair_is_printed_once() -> None:
    command = "uv pip install transformers==5.3.0"
    step = RepairStep(command, "install it", ("ATN140", "ATN142"))
    findings = (reports.make_finding("ATN140"), reports.make_finding("ATN142"))
    section = RepairSection((step,), ("ATN140", "ATN142"))
    report = reports.make_doctor_report(findings=findings, sections={"repair": section})
    for name in ("text", "markdown"):
        text = load_format(name).render(report, False)
        assert text.count(command) == 1 and text.count("(step 1 below)") == 2 and "# 1. ATN140, ATN142" in text


def test_lint_shows_the_line_and_a_caret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.sh").write_text('torchrun train.py \\\n  --attn eager \\\n  --packing_samples "{0}"\n')
    report = reports.make_gate_report()
    lines = load_format("text").render(report, False).splitlines()
    place = next(index for index, line in enumerate(lines) if "run.sh:2:3: " in line)
    assert lines[place + 1 : place + 3] == [" " * 15 + "--attn eager \\", " " * 15 + "^" * len("--attn eager")]


@pytest.mark.parametrize("source", ["../run.sh", "/etc/hostname", "other.sh"])
def test_no_line_of_a_file_that_is_no_launch_is_shown(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project").mkdir()
    for path in (tmp_path / "run.sh", tmp_path / "project" / "other.sh"):
        path.write_text("a\n  secret line\n")
    monkeypatch.chdir(tmp_path / "project")
    report = reports.make_gate_report()
    finding = replace(report.findings[2], locations=(SourceLocation(source, 2, 3),))
    assert "secret line" not in load_format("text").render(replace(report, findings=(finding,)), False)


def test_missing_backends_are_grouped_by_what_they_need() -> None:
    states = tuple(
        BackendState(name, "", "flash-attn", missing="flash-attn is not installed") for name in ("fa2", "fa2_varlen")
    )
    report = report_with(ParitySection(backends=states, verdicts=(*RIGHT, CUDA)))
    lines = [line.split() for line in load_format("text").render(report, False).splitlines()]
    assert ["-", "not", "installed", "(2)", "flash-attn", "(2)"] in lines
    assert ["-", "needs", "CUDA", "(1)", "sdpa_cudnn"] in lines


def test_inconclusive_rules_are_one_line_for_each_reason_in_every_format() -> None:
    """At fca601f the job summary repeated one reason in 24 lines."""
    skips = tuple(Skip(f"ATN3{number:02}", f"rule-{number}", "the model is unreadable") for number in range(24))
    report = reports.make_doctor_report(skips=skips)
    for name in ("text", "markdown", "html"):
        page = load_format(name).render(report, True)
        assert page.count("the model is unreadable") == 1 and "ATN300 rule-0, ATN301 rule-1" in page, name
