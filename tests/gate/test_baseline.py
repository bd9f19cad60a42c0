"""Findings recorded once are known later; what is new still fails; a damaged file is one clear line."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from attncheck.core.findings import Finding, Problem
from attncheck.core.io.errors import BadUsage
from attncheck.core.report import Report
from attncheck.doctor.engine import make_finding_by_code
from attncheck.gate import baseline
from tests.conftest import Run
from tests.snapshots import laptop


def make_finding(code: str, message: str = "message", subject: str = "it") -> Finding:
    return make_finding_by_code(code, Problem(message, (), (), subject))


def make_report(*findings: Finding) -> Report:
    return Report("gate", laptop(), findings)


def test_known_findings_are_set_apart_and_new_ones_stay(tmp_path: Path) -> None:
    path = str(tmp_path / "known.json")
    baseline.record_baseline(
        make_report(make_finding("ATN101"), make_finding("ATN211", "cuda:0 has 3.1 GB taken")), path, "2026-11-21"
    )
    today = make_report(
        make_finding("ATN101"), make_finding("ATN211", "cuda:0 has 7.9 GB taken"), make_finding("ATN140")
    )
    applied = baseline.apply_baseline(today, path)
    assert [finding.code for finding in applied.findings] == ["ATN140"]
    assert [finding.code for finding in applied.baselined] == ["ATN101", "ATN211"]


def test_the_same_findings_write_the_same_bytes_in_any_order_and_keep_their_dates(tmp_path: Path) -> None:
    path = tmp_path / "known.json"
    findings = (make_finding("ATN211"), make_finding("ATN101"))
    baseline.record_baseline(make_report(*findings), str(path), "2026-11-21")
    first_bytes = path.read_bytes()
    change = baseline.record_baseline(make_report(*findings[::-1]), str(path), "2026-12-24")
    assert path.read_bytes() == first_bytes
    assert (change.entries, change.new, change.gone) == (2, 0, 0)
    change = baseline.record_baseline(make_report(findings[0], make_finding("ATN140")), str(path), "2026-12-24")
    assert (change.entries, change.new, change.gone) == (2, 1, 1)
    written = json.loads(path.read_text())["findings"]
    assert [(entry["code"], entry["date"]) for entry in written] == [("ATN140", "2026-12-24"), ("ATN211", "2026-11-21")]
    assert [path.name for path in tmp_path.iterdir()] == ["known.json"]


def test_known_ones_stay_known_when_it_is_written_anew(tmp_path: Path) -> None:
    path = str(tmp_path / "known.json")
    baseline.record_baseline(make_report(make_finding("ATN101")), path, "2026-11-21")
    applied = baseline.apply_baseline(make_report(make_finding("ATN101"), make_finding("ATN140")), path)
    assert baseline.record_baseline(applied, path, "2026-11-22").entries == 2


def test_a_finding_that_became_graver_is_known_still(tmp_path: Path) -> None:
    path = str(tmp_path / "known.json")
    baseline.record_baseline(make_report(replace(make_finding("ATN101"), severity="warning")), path, "2026-11-21")
    assert baseline.apply_baseline(make_report(make_finding("ATN101")), path).findings == ()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is not a baseline written by `attncheck baseline`: not JSON"),
        (b"\xff\xfe", "is not a baseline"),
        (b"[]", "expected Baseline, found list"),
        (b'{"findings": [{"code": 1}]}', "is not a baseline"),
        (b'{"findings": [], "schema_version": 9}', "was written by another attncheck"),
        (b"[" * 100_000, "is not a baseline"),
    ],
)
def test_a_damaged_baseline_is_one_line(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "known.json"
    path.write_bytes(data)
    for read_or_write in (
        lambda: baseline.apply_baseline(make_report(), str(path)),
        lambda: baseline.record_baseline(make_report(), str(path), "2026"),
    ):
        with pytest.raises(BadUsage) as caught:
            read_or_write()
        assert message in str(caught.value) and "\n" not in str(caught.value)
    assert path.read_bytes() == data


def test_the_command_says_how_the_gate_reads_the_file(attncheck: Run, tmp_path: Path) -> None:
    argv = ("baseline", "--checks", "doctor", "--target", "cpu,torch=none", "--select", "ATN101")
    first = attncheck(*argv).stderr.splitlines()
    assert first[0] == "attncheck-baseline.json: 1 finding, 1 of them new; 0 removed"
    line = re.fullmatch(r"attncheck gate reads it: with this line in attncheck\.toml, or by --baseline: (.*)", first[1])
    assert line is not None
    (tmp_path / "attncheck.toml").write_text(line[1] + "\n")
    gate = attncheck("gate", *argv[1:])
    assert gate.returncode == 0 and "1 allowed" in gate.stdout
    assert attncheck(*argv).stderr.splitlines()[1] == "attncheck gate reads it: attncheck.toml names it"
    (tmp_path / "jobs").mkdir()
    inner = attncheck(*argv, "--baseline", "inner.json", cwd=tmp_path / "jobs").stderr.splitlines()[1]
    assert inner.endswith(f"baseline = {json.dumps(str(tmp_path / 'jobs' / 'inner.json'))}")


def test_a_missing_baseline_says_how_it_is_written(tmp_path: Path) -> None:
    with pytest.raises(BadUsage, match="No such file or directory; `attncheck baseline` writes it"):
        baseline.apply_baseline(make_report(), str(tmp_path / "none.json"))
    with pytest.raises(BadUsage, match="cannot write the baseline"):
        baseline.record_baseline(make_report(), str(tmp_path / "no" / "folder.json"), "2026-11-21")
