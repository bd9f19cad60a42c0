"""The corpus of launches: what lint says of each in four environments, and what its corrections are worth.

`ATTNCHECK_UPDATE_GOLDEN=1` writes the expectations anew; every change of them is to be read.
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
from tests.lint import launches

EXPECTED = launches.FOLDER / "expected.json"
CORPUS = list(launches.corpus())
HERE = launches.environments()


def expected() -> dict[str, dict[str, list[str]]]:
    found: dict[str, dict[str, list[str]]] = json.loads(EXPECTED.read_text(encoding="utf-8"))
    return found


def named(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def told(report: Report) -> list[str]:
    """Return what was found, without the notes: "ATN440 error"."""
    return sorted({f"{f.code} {f.severity}" for f in report.findings if f.severity != "note"})


def test_the_corpus_is_large_and_of_every_framework() -> None:
    assert len(CORPUS) >= 40
    assert {path.parent.name.replace("_", "-") for path in CORPUS} == {f.name for f in frameworks.load()}


@pytest.mark.parametrize("path", CORPUS, ids=named)
def test_findings_are_as_expected(path: Path) -> None:
    found = {name: told(launches.linted(path, snapshot)) for name, snapshot in HERE.items()}
    if os.environ.get("ATTNCHECK_UPDATE_GOLDEN"):
        before = expected() if EXPECTED.exists() else {}
        text = json.dumps(dict(sorted({**before, named(path): found}.items())), indent=1)
        EXPECTED.write_text(text + "\n", encoding="utf-8")
    assert found == expected()[named(path)]


@pytest.mark.parametrize("path", CORPUS, ids=named)
def test_what_is_corrected_is_read_again_without_a_name_that_is_not_known(path: Path) -> None:
    for snapshot in (HERE["h200"], HERE["v100x8"]):  # the corrections differ most
        report = launches.linted(path, snapshot)
        source = launches.source(path)
        for said in launches_of(report):
            again = run.run(
                snapshot,
                run.Request((corrected(source, said),)),
                launches.read_model,
                launches.nothing,
            )
            unknown = {name.name for job in launches_of(again) for name in job.job.unknown_settings}
            before = {name.name for name in said.job.unknown_settings if not name.now}
            assert unknown <= before, "only what has no name any more may be left"
            assert len(launches_of(again)) == len(launches_of(report))


def corrected(source: Any, said: LintedLaunch) -> Any:
    from dataclasses import replace

    from attncheck.lint.files import editing

    own = [edit for edit in said.edits if edit.source == source.name]
    return replace(source, text=editing.applied(source, own))


@pytest.mark.parametrize("path", CORPUS, ids=named)
def test_a_launch_without_errors_is_left_as_it_is(path: Path) -> None:
    report = launches.linted(path, HERE["h200"])
    wrong = [
        f for f in report.findings if (f.severity != "note" and any(fix.sets for fix in f.fixes)) or f.code == "ATN440"
    ]
    if not wrong:
        assert all(not said.edits and not said.diff and not said.command for said in launches_of(report))
