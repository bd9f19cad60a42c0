"""The corpus of launches: what lint says of each in four environments, and what its corrections are worth.

`ATTNCHECK_UPDATE_GOLDEN=1` writes the expectations again; every change of them is to be read.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from attncheck.core.job import LintedLaunch
from attncheck.core.report import Report
from attncheck.core.results.lint import launches_of
from attncheck.lint import frameworks, run
from attncheck.lint.context import Request
from tests.lint import launches

EXPECTED = launches.FOLDER / "expected.json"
CORPUS = list(launches.iter_corpus())
ENVIRONMENTS = launches.make_environments()


def load_expected() -> dict[str, dict[str, list[str]]]:
    findings: dict[str, dict[str, list[str]]] = json.loads(EXPECTED.read_text(encoding="utf-8"))
    return findings


def case_name(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def list_codes(report: Report) -> list[str]:
    """Return the code and severity of every finding that is no note: "ATN440 error"."""
    return sorted({f"{f.code} {f.severity}" for f in report.findings if f.severity != "note"})


def test_the_corpus_is_large_and_of_every_framework() -> None:
    assert len(CORPUS) >= 40
    covered, known = {path.parent.name.replace("_", "-") for path in CORPUS}, {f.name for f in frameworks.load()}
    assert covered == known, "tests/data/launch has a folder of launches for each framework"


@pytest.mark.parametrize("path", CORPUS, ids=case_name)
def test_findings_are_as_expected(path: Path) -> None:
    findings = {name: list_codes(launches.lint_file(path, snapshot)) for name, snapshot in ENVIRONMENTS.items()}
    if os.environ.get("ATTNCHECK_UPDATE_GOLDEN"):
        previous = load_expected() if EXPECTED.exists() else {}
        text = json.dumps(dict(sorted({**previous, case_name(path): findings}.items())), indent=1)
        EXPECTED.write_text(text + "\n", encoding="utf-8")
    assert findings == load_expected()[case_name(path)]


@pytest.mark.nightly  # mutations of the same launches are corrected every time: test_corrected_launches
@pytest.mark.parametrize("path", CORPUS, ids=case_name)
def test_what_is_corrected_is_read_again_without_a_name_that_is_not_known(path: Path) -> None:
    for snapshot in (ENVIRONMENTS["h200"], ENVIRONMENTS["v100x8"]):  # the corrections differ most
        report = launches.lint_file(path, snapshot)
        source = launches.read_launch(path)
        for launch in launches_of(report):
            second_report = run.run(
                snapshot,
                Request((apply_corrections(source, launch),)),
                launches.read_model,
                launches.read_no_file,
            )
            unknown = {name.name for job in launches_of(second_report) for name in job.job.unknown_settings}
            before = {name.name for name in launch.job.unknown_settings if not (name.now and name.proof)}
            assert unknown <= before, "only what has no new name, or is not proven to be refused, may be left"
            assert len(launches_of(second_report)) == len(launches_of(report))


def apply_corrections(source: Any, launch: LintedLaunch) -> Any:
    from dataclasses import replace

    from attncheck.lint.files import editing

    edits = [edit for edit in launch.edits if edit.source == source.name]
    return replace(source, text=editing.apply_edits(source, edits))


@pytest.mark.parametrize("path", CORPUS, ids=case_name)
def test_a_launch_without_errors_is_left_as_it_is(path: Path) -> None:
    report = launches.lint_file(path, ENVIRONMENTS["h200"])
    problems = [
        f for f in report.findings if (f.severity != "note" and any(fix.sets for fix in f.fixes)) or f.code == "ATN440"
    ]
    if not problems:
        assert all(not launch.edits and not launch.diff and not launch.command for launch in launches_of(report))
