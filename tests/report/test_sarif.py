"""SARIF: valid by the published schema, places and fixes that fit the files, fingerprints that last."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from attncheck.core.launch import COMMAND, SourceLocation
from attncheck.core.report import Report
from attncheck.report.fingerprints import compute_fingerprint, normalize_message
from attncheck.report.formats import load_format
from tests.report import reports
from tests.report.test_junit import NASTY

SCHEMA = Path(__file__).parents[1] / "data" / "sarif-schema-2.1.0.json"  # where from: next to it


@pytest.fixture(autouse=True)
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in a checkout with a launch script and requirements."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "run.sh").write_text(reports.SCRIPT, encoding="utf-8")
    (tmp_path / "requirements.txt").write_text("torch\nRing_Flash.Attn==0.1.8\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for name in ("GITHUB_WORKSPACE", "GITHUB_WORKFLOW_REF"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@cache
def make_validator() -> Any:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    kind = jsonschema.validators.validator_for(schema)
    return kind(schema, format_checker=kind.FORMAT_CHECKER)


def render_run(report: Report) -> dict[str, Any]:
    """Return the run of the report's SARIF log, which is valid by the schema."""
    log = json.loads(load_format("sarif").render(report, False))
    make_validator().validate(log)
    assert len(log["runs"]) == 1
    return log["runs"][0]  # type: ignore[no-any-return]


def test_the_schema_refuses_what_is_wrong() -> None:
    log = json.loads(load_format("sarif").render(reports.make_gate_report(), False))
    log["runs"][0]["results"][0]["level"] = "grave"
    with pytest.raises(jsonschema.ValidationError):
        make_validator().validate(log)


@pytest.mark.parametrize(
    "report",
    [reports.make_gate_report(), reports.make_smoke_report(), reports.make_doctor_report()],
    ids=lambda r: r.command,
)
def test_every_kind_of_report_is_valid(report: Report) -> None:
    run = render_run(report)
    assert len(run["results"]) == len(report.findings) + len(report.baselined) + len(report.allowed)
    for result in run["results"]:
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]


def test_levels_pages_and_suppressions() -> None:
    run = render_run(reports.make_gate_report())
    by_code = {result["ruleId"]: result for result in run["results"]}
    levels = {code: by_code[code]["level"] for code in ("ATN140", "ATN201", "ATN110")}
    assert levels == {"ATN140": "error", "ATN201": "warning", "ATN110": "note"}
    assert by_code["ATN109"]["suppressions"][0]["justification"] == "SDPA is enough (until 2027-02-01)"
    assert by_code["ATN147"]["suppressions"][0]["justification"] == "it is in the baseline"
    assert "suppressions" not in by_code["ATN140"]
    rule = next(rule for rule in run["tool"]["driver"]["rules"] if rule["id"] == "ATN140")
    assert rule["name"] == "RingFlashAttnImport" and "What to do" in rule["help"]["markdown"]
    skipped = run["invocations"][0]["toolExecutionNotifications"][-1]
    assert skipped["associatedRule"]["id"] == "ATN207" and "no GPU" in skipped["message"]["text"]
    assert run["invocations"][0]["executionSuccessful"] is False, "the gate's parity was not answered"
    assert render_run(reports.make_doctor_report())["invocations"][0]["executionSuccessful"] is True


def test_places_are_lines_of_the_checkouts_files() -> None:
    by_code = {result["ruleId"]: result for result in render_run(reports.make_gate_report())["results"]}
    assert _physical_location(by_code["ATN401"]) == ("run.sh", "%SRCROOT%", 2)
    assert _physical_location(by_code["ATN140"]) == ("requirements.txt", "%SRCROOT%", 2), "anchored to the requirement"
    assert by_code["ATN201"]["locations"][0]["logicalLocations"][0]["name"] == "driver 550.54"


def test_a_result_that_no_file_causes_stands_where_the_check_does(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code scanning refuses a log with a result that has no file."""
    report = reports.make_doctor_report(findings=(reports.make_finding(subject="driver 550", fixes=()),))
    assert _physical_location(render_run(report)["results"][0])[0] == "attncheck.toml"
    (checkout / "pyproject.toml").touch()
    assert _physical_location(render_run(report)["results"][0])[0] == "pyproject.toml"
    monkeypatch.setenv("GITHUB_WORKSPACE", str(checkout))
    monkeypatch.setenv("GITHUB_WORKFLOW_REF", "me/mine/.github/workflows/ci.yml@refs/heads/main")
    assert _physical_location(render_run(report)["results"][0])[0] == ".github/workflows/ci.yml"


def _physical_location(result: dict[str, Any]) -> tuple[str, str | None, int]:
    location = result["locations"][0]["physicalLocation"]
    return (
        location["artifactLocation"]["uri"],
        location["artifactLocation"].get("uriBaseId"),
        location["region"]["startLine"],
    )


def test_uris_are_relative_to_the_checkout_and_absolute_outside(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (checkout / "a b").mkdir()
    monkeypatch.chdir(checkout / "a b")
    finding = reports.make_finding(locations=(SourceLocation("lä%unch.sh", 7, 1),))
    assert (
        _physical_location(render_run(reports.make_doctor_report(findings=(finding,)))["results"][0])[0]
        == "a%20b/l%C3%A4%25unch.sh"
    )
    outside = reports.make_finding(locations=(SourceLocation("/elsewhere/x.sh", 7, 1),))
    assert _physical_location(render_run(reports.make_doctor_report(findings=(outside,)))["results"][0]) == (
        "file:///elsewhere/x.sh",
        None,
        7,
    )
    typed = reports.make_finding(locations=(SourceLocation(COMMAND, 1, 9),))
    location = render_run(reports.make_doctor_report(findings=(typed,)))["results"][0]["locations"][0]
    assert location["logicalLocations"] == [{"name": COMMAND, "kind": "resource"}]


def test_a_fix_replaces_what_stands_in_the_findings_line() -> None:
    by_code = {result["ruleId"]: result for result in render_run(reports.make_gate_report())["results"]}
    (change,) = by_code["ATN401"]["fixes"][0]["artifactChanges"]
    (edit,) = change["replacements"]  # the other edit is in another line
    start, length = edit["deletedRegion"]["charOffset"], edit["deletedRegion"]["charLength"]
    corrected = reports.SCRIPT[:start] + edit["insertedContent"]["text"] + reports.SCRIPT[start + length :]
    assert corrected == reports.SCRIPT.replace("eager", "sdpa")
    assert "fixes" not in by_code["ATN140"]


def test_any_characters_make_a_valid_log() -> None:
    finding = reports.make_finding(
        message=NASTY + "{0} [a](1)", subject=NASTY, evidence=(NASTY,), locations=(SourceLocation(NASTY[1:], 0, 0),)
    )
    text = load_format("sarif").render(reports.make_doctor_report(findings=(finding,)), False)
    assert text.encode("utf-8")
    run = render_run(reports.make_doctor_report(findings=(finding,)))
    assert "{{0}} [a] (1)" in run["results"][0]["message"]["text"]


def test_a_fingerprint_outlives_what_wobbles() -> None:
    finding = reports.make_finding(
        "ATN601", subject="ring zigzag", message="dq has z_row 40.1 (budget 12) at token 17 in /tmp/a/x.so at 0x7f"
    )
    same = replace(
        finding, message="dq has z_row 38.77 (budget 12) at token 9 in /opt/b/c/x.so at 0x8e", severity="warning"
    )
    assert compute_fingerprint(finding) == compute_fingerprint(same)
    moved = replace(finding, locations=(SourceLocation("requirements.txt", 3, 1),))
    assert compute_fingerprint(finding) == compute_fingerprint(moved), "an anchor is not part of it"


@pytest.mark.parametrize(
    "other",
    [
        {"code": "ATN602"},
        {"subject": "ring llama3"},
        {"message": "dk has z_row 40.1"},
        {"locations": (SourceLocation("a/train.sh", 3, 1),)},
    ],
)
def test_a_fingerprint_tells_different_things_apart(other: dict[str, Any]) -> None:
    finding = reports.make_finding("ATN601", subject="ring zigzag", message="dq has z_row 40.1")
    assert compute_fingerprint(finding) != compute_fingerprint(replace(finding, **other))


def test_a_fingerprint_knows_the_file_and_not_its_line_or_folder() -> None:
    finding = reports.make_finding(locations=(SourceLocation("a/train.sh", 3, 1),))
    assert compute_fingerprint(finding) == compute_fingerprint(
        replace(finding, locations=(SourceLocation("/x/a/train.sh", 30, 5),))
    )


def test_names_keep_their_digits() -> None:
    names = "flash_attention_2 on sm_90 and cuda:0 of qwen2 and fwd-bf16-128"
    assert normalize_message(names) == names
    assert (
        normalize_message("flash-attn 2.8.3+cu130 took 3,000 ms, 1e-05 off, 97%") == "flash-attn # took # ms, # off, #%"
    )


def test_a_sarif_reader_reads_it(tmp_path: Path) -> None:
    loader = pytest.importorskip("sarif.loader")
    path = tmp_path / "attncheck.sarif"
    path.write_text(load_format("sarif").render(reports.make_gate_report(), False), encoding="utf-8")
    read = loader.load_sarif_file(os.fspath(path))
    records = {record["Code"]: record for record in read.get_records()}
    assert read.get_distinct_tool_names() == ["attncheck"]
    assert records["ATN401"]["Location"] == "run.sh" and records["ATN401"]["Line"] == 2
    assert records["ATN140"]["Severity"] == "error" and records["ATN201"]["Severity"] == "warning"
