"""`attncheck report`: kept reports come back whole in any format; what is no report is one clear line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from attncheck.cli.report_files import read_reports
from attncheck.cli.stack_file import read_side
from attncheck.core.cases import Case
from attncheck.core.facts import Absent
from attncheck.core.io.errors import BadUsage
from attncheck.core.report import Report
from attncheck.core.results.parity import ParitySection
from attncheck.core.results.rehearsal import RehearsalSection
from attncheck.core.results.repair import RepairSection
from attncheck.core.results.upgrade import UpgradeEffect, UpgradeSection
from attncheck.core.verdicts import Run as BackendRun
from attncheck.report import document
from tests import snapshots as s
from tests.adversary import hostile_text
from tests.conftest import Run
from tests.report import reports
from tests.report.html_reader import read_page
from tests.report.test_html import make_determinism_report, make_parity_report


def write(path: Path, report: Report) -> str:
    path.write_text(document.dumps(report), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("number", range(len(hostile_text.make_reports())))
def test_a_report_comes_back_whole(tmp_path: Path, number: int) -> None:
    report = hostile_text.make_reports()[number]
    assert read_reports([write(tmp_path / "a.json", report)]) == report


def test_several_reports_become_one_page(attncheck: Run, tmp_path: Path) -> None:
    write(tmp_path / "parity.json", make_parity_report())
    write(tmp_path / "determinism.json", make_determinism_report())
    write(tmp_path / "doctor.json", hostile_text.make_reports()[0])
    argv = ("parity.json", "determinism.json", "--output", "html=all.html", "--output", "json=all.json")
    result = attncheck("report", *argv)
    assert (result.returncode, result.stderr) == (1, "")
    assert "of 5 cases right" in result.stdout and "Different results among the calls" in result.stdout
    page = read_page((tmp_path / "all.html").read_text(encoding="utf-8"))
    assert [e.text for e in page.named("h2")][:3] == ["Findings", "Parity", "Determinism"]
    merged = document.loads((tmp_path / "all.json").read_text(encoding="utf-8"))
    assert merged.command == "report" and list(merged.sections) == ["parity", "determinism"]
    assert merged.findings == make_parity_report().findings and merged.exit_code == 1
    assert attncheck("report", *argv, "--fail-on", "never").returncode == 0


def test_a_report_of_schema_2_is_still_read(tmp_path: Path) -> None:
    run = BackendRun("flex_attention", Case("gqa", (8,), (8,), name="gqa-8"), "ok", warnings=("NaN",))
    sections = {
        "parity": ParitySection(runs=(run,)),
        "rehearsal": RehearsalSection(corrected=("trl sft",)),
        "repair": RepairSection(targets=("ATN140",)),
        "upgrade": UpgradeSection(fixes=(UpgradeEffect("ATN140", "x", "y", "read"),), unchanged=2, unknown=("z",)),
    }
    report = Report("upgrade", s.laptop(), (reports.make_finding(),), sections=sections)
    old = json.loads(document.dumps(report)) | {"schema_version": 2}
    del old["findings"][0]["check"]
    old["parity"]["runs"][0]["reservations"] = old["parity"]["runs"][0].pop("warnings")
    old["rehearsal"]["mended"] = old["rehearsal"].pop("corrected")
    old["repair"]["mends"] = old["repair"].pop("targets")
    for name, former in (("fixes", "mends"), ("unchanged", "kept"), ("unknown", "not_known")):
        old["upgrade"][former] = old["upgrade"].pop(name)
    (tmp_path / "old.json").write_text(json.dumps(old))
    assert read_reports([str(tmp_path / "old.json")]) == report
    assert read_side(str(tmp_path / "old.json")).report == report


def test_one_report_reads_as_its_own_command_wrote_it(attncheck: Run, tmp_path: Path) -> None:
    report = hostile_text.make_reports()[0]
    write(tmp_path / "a.json", report)
    from attncheck.report.formats import load_format

    result = attncheck("report", "a.json", "--format", "markdown")
    assert result.stdout == load_format("markdown").render(report, False)
    again = attncheck("report", "-", "--format", "json", input=(tmp_path / "a.json").read_text())
    assert document.loads(again.stdout) == replace(report, exit_code=1)


def test_an_issue_is_printed(attncheck: Run, tmp_path: Path) -> None:
    write(tmp_path / "a.json", make_parity_report())
    result = attncheck("report", "a.json", "--bug", "flash-attn")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("# flash-attn: flash is wrong\n")


def test_reports_of_two_environments_are_not_put_together(tmp_path: Path) -> None:
    first = write(tmp_path / "a.json", make_parity_report())
    other = replace(make_determinism_report(), snapshot=s.with_package(s.h200(), "flash-attn", "2.7.4"))
    with pytest.raises(BadUsage, match="describe different environments \\(other packages\\)"):
        read_reports([first, write(tmp_path / "b.json", other)])
    driver = replace(make_determinism_report(), snapshot=s.with_driver(s.h200(), version="550.1"))
    with pytest.raises(BadUsage, match=r"driver: 5.*; 550\.1"):
        read_reports([first, write(tmp_path / "c.json", driver)])
    unread = replace(s.h200(), driver=Absent("not asked"), devices=Absent("not asked"))
    for paths in (("d.json", "a.json"), ("a.json", "d.json")):
        write(tmp_path / "d.json", replace(make_determinism_report(), snapshot=unread))
        merged = read_reports([str(tmp_path / path) for path in paths])
        assert merged.snapshot == s.h200(), "what one of them knows is kept"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not a report of schema version 2 or 3"),
        ('{"schema_version": 1, "host": {}}', "not a report of schema version 2 or 3"),
        ('{"schema_version": 4}', "schema version 4; this attncheck reads 3: update attncheck"),
        ('{"schema_version": 2, "command": "doctor"}', "snapshot is missing"),
        ('{"schema_version": true}', "not a report of schema version 2 or 3"),
    ],
)
def test_what_is_no_report_is_one_clear_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(BadUsage, match=message) as caught:
        read_reports([str(path)])
    assert "\n" not in str(caught.value) and "x.json is not a report written by attncheck" in str(caught.value)


@pytest.mark.parametrize("field", ["findings", "sections", "exit_code"])
def test_a_report_that_was_altered_is_refused_and_says_where(tmp_path: Path, field: str) -> None:
    written = json.loads(document.dumps(make_parity_report()))
    written["parity" if field == "sections" else field] = "altered"
    (tmp_path / "x.json").write_text(json.dumps(written))
    with pytest.raises(BadUsage, match=r"\$.*: expected .*, found str"):
        read_reports([str(tmp_path / "x.json")])


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("nowhere.json",), "cannot read nowhere.json: No such file"),
        (("/",), "cannot read /: Is a directory"),
        (("-", "-"), "standard input, which can be read only once"),
        (("a.json", "--bug", "torch", "--output", "html=x"), "remove --format and --output"),
        (("a.json", "--bug", "torch"), "no finding about torch"),
        (("a.json", "--output", "htlm=x"), "did you mean 'html'?"),
        ((), "FILE"),
    ],
)
def test_a_mistake_is_one_clear_line(attncheck: Run, tmp_path: Path, argv: tuple[str, ...], message: str) -> None:
    write(tmp_path / "a.json", replace(make_parity_report(), findings=(reports.make_finding(),)))
    result = attncheck("report", *argv)
    assert result.returncode == 2 and message in result.stderr and len(result.stderr.splitlines()) == 1
    assert result.stdout == ""
