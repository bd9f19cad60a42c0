"""Several documents in one run: refused before any work, written whole or not at all, GitHub reported to on its own."""

from __future__ import annotations

import io
import json
import os
import re
import stat
from pathlib import Path

import pytest

from attncheck.core.io.errors import BadUsage
from attncheck.core.launch import SourceLocation
from attncheck.report import outputs
from attncheck.report.formats import format_names, load_format
from attncheck.report.outputs import Output
from tests.report import reports

ACTIONS_ENVIRONMENT = {"GITHUB_ACTIONS": "true"}


def test_every_format_can_be_written_at_once(tmp_path: Path) -> None:
    report = reports.make_gate_report()
    documents = outputs.parse_outputs(f"{form}={tmp_path / form}" for form in format_names())
    assert outputs.write(report, documents) == ()
    for form in format_names():
        text = (tmp_path / form).read_text(encoding="utf-8")
        assert text == load_format(form).render(report, False) and text.endswith("\n")
    assert sorted(os.listdir(tmp_path)) == sorted(format_names()), "nothing else is left"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["sarif"], "is not FORMAT=FILE"),
        (["sarif="], "is not FORMAT=FILE"),
        (["=x"], "'' is not one of github"),
        (["sarrif=x"], "did you mean 'sarif'?"),
        (["json=-"], "--format json"),
        (["json=gone/x.json"], "does not exist"),
        (["json=folder"], "is a folder"),
        (["json=a", "sarif=./a"], "json and sarif cannot both be written to ./a"),
        (["json=link", "sarif=a"], "cannot both be written to a"),
        (["json=x\0y"], "null"),
        (["json=file/x"], "does not exist"),
    ],
)
def test_what_cannot_be_written_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("a")
    with pytest.raises(BadUsage, match=re.escape(message)) as caught:
        outputs.parse_outputs(values)
    assert "\n" not in str(caught.value)
    assert sorted(os.listdir(tmp_path)) == ["file", "folder", "link"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with pytest.raises(BadUsage, match="cannot be written"):
        outputs.parse_outputs([f"json={tmp_path / 'x'}"])


def test_one_that_fails_is_one_line_and_the_others_are_written(tmp_path: Path) -> None:
    documents = (
        Output("json", str(tmp_path / "gone" / "x")),
        Output("junit", "/dev/full"),
        Output("text", str(tmp_path / "t")),
    )
    failures = outputs.write(reports.make_gate_report(), documents)
    assert len(failures) == 2 and "cannot write json to" in failures[0] and "No space left" in failures[1]
    assert (tmp_path / "t").read_text(encoding="utf-8")


def test_a_file_that_is_there_is_replaced_and_keeps_its_mode_and_its_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to("real")
    before = real.stat().st_ino
    assert outputs.write(reports.make_doctor_report(), outputs.parse_outputs([f"json={link}"])) == ()
    assert link.is_symlink() and json.loads(real.read_text(encoding="utf-8"))["command"] == "doctor"
    assert stat.S_IMODE(real.stat().st_mode) == 0o640 and real.stat().st_ino != before


def test_devices_and_pipes_are_written_to_and_not_replaced(tmp_path: Path) -> None:
    documents = outputs.parse_outputs(["json=/dev/null", "text=/dev/null"])
    assert outputs.write(reports.make_doctor_report(), documents) == ()
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_a_message_that_no_file_can_hold_is_written_all_the_same(tmp_path: Path) -> None:
    report = reports.make_doctor_report(findings=(reports.make_finding(message="half a pair: \ud800"),))
    assert outputs.write(report, outputs.parse_outputs(f"{form}={tmp_path / form}" for form in format_names())) == ()
    for form in format_names():
        assert "half a pair: " in (tmp_path / form).read_text(encoding="utf-8")


def test_github_is_told_by_itself_and_only_there(tmp_path: Path) -> None:
    summary, stream = tmp_path / "summary", io.StringIO()
    summary.write_text("before\n")
    environ = {**ACTIONS_ENVIRONMENT, "GITHUB_STEP_SUMMARY": str(summary)}
    report = reports.make_gate_report()
    assert outputs.report_to_github(report, "text", True, {"GITHUB_STEP_SUMMARY": str(summary)}, stream) == ()
    assert outputs.report_to_github(report, "text", False, environ, stream) == ()
    assert (summary.read_text(), stream.getvalue()) == ("before\n", "")
    assert outputs.report_to_github(report, "text", True, environ, stream) == ()
    assert stream.getvalue().startswith("::error ") and summary.read_text().startswith("before\n# attncheck gate\n")
    assert outputs.report_to_github(report, "github", True, ACTIONS_ENVIRONMENT, again := io.StringIO()) == ()
    assert again.getvalue() == "", "standard output carries them already"


def test_a_summary_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    environ = {**ACTIONS_ENVIRONMENT, "GITHUB_STEP_SUMMARY": str(tmp_path / "gone" / "x")}
    (line,) = outputs.report_to_github(reports.make_doctor_report(), "text", True, environ, io.StringIO())
    assert line.startswith("cannot write the job summary: ")


def test_the_summary_keeps_to_the_room_that_the_step_has_left(tmp_path: Path) -> None:
    summary = tmp_path / "summary"
    long_report = reports.make_doctor_report(
        findings=tuple(reports.make_finding(message="é" * 400) for _ in range(2000))
    )
    environ = {**ACTIONS_ENVIRONMENT, "GITHUB_STEP_SUMMARY": str(summary)}
    for _ in range(3):
        assert outputs.report_to_github(long_report, "github", True, environ) == ()
        assert summary.stat().st_size <= 1 << 20
    text = summary.read_text(encoding="utf-8")
    assert "does not fit" in text and text.count("```") % 2 == 0


def test_a_working_directory_that_is_gone_is_no_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    finding = reports.make_finding(locations=(SourceLocation("../run.sh", 2, 1),))
    report = reports.make_doctor_report(findings=(finding, reports.make_finding()))
    with pytest.raises(BadUsage):
        outputs.parse_outputs(["json=x"])
    documents = [Output(form, str(tmp_path / form)) for form in format_names()]
    assert outputs.write(report, documents) == ()
    monkeypatch.chdir(tmp_path)
