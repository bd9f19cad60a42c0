"""The engine: one crash is one finding, a plugin is a rule like any other, and what matters decides what is judged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.version import Version

from attncheck.core.environment import Distribution
from attncheck.core.facts import Absent, Known, MissingFact, Unreadable, need
from attncheck.core.findings import Problem
from attncheck.core.snapshot import Snapshot
from attncheck.doctor import engine
from attncheck.doctor.profile import needs_of_profile
from attncheck.doctor.queries import covering
from attncheck.doctor.rules import Rule
from tests import snapshots as s

NO_NEEDS = frozenset[str]()


def replace_rules(monkeypatch: pytest.MonkeyPatch, *rules: Rule) -> None:
    loaded, broken = engine.all_rules()
    engine_rules = tuple(rule for rule in loaded if rule.by_engine)
    monkeypatch.setattr(engine, "all_rules", lambda: ((*rules, *engine_rules), broken))


def make_rule(code: str, check: object, **fields: object) -> Rule:
    return Rule(code, "error", check, name=code.lower(), **fields)  # type: ignore[arg-type]


def check_that_crashes(snapshot: Snapshot) -> list[Problem]:
    raise ZeroDivisionError("planted")


def check_that_fires(snapshot: Snapshot) -> list[Problem]:
    return [Problem("planted defect")]


def check_that_skips(snapshot: Snapshot) -> list[Problem]:
    need(Unreadable("it is locked"), "the file")
    return []


def test_one_crash_is_one_finding_and_the_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_rules(monkeypatch, make_rule("ATN198", check_that_crashes), make_rule("ATN199", check_that_fires))
    report = engine.run_rules(s.laptop(), frozenset())
    assert [finding.code for finding in report.findings] == ["ATN199", "ATN901"]
    assert "ZeroDivisionError: planted" in report.findings[1].evidence


def test_a_missing_fact_is_an_explained_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_rules(monkeypatch, make_rule("ATN199", check_that_skips))
    report = engine.run_rules(s.laptop(), frozenset())
    assert report.findings == ()
    assert [skip.reason for skip in report.skips] == ["the file is unreadable: it is locked"]


def test_a_prediction_is_one_step_milder(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_rules(monkeypatch, make_rule("ATN199", lambda snapshot: [Problem("perhaps", predicted=True)]))
    assert [finding.severity for finding in engine.run_rules(s.laptop(), frozenset()).findings] == ["warning"]


@pytest.mark.parametrize(
    ("select", "ignore", "count"),
    [((), (), 2), (("ATN1",), (), 1), ((), ("ATN1",), 1), (("ATN2",), ("ATN299",), 0)],
)
def test_select_and_ignore(
    monkeypatch: pytest.MonkeyPatch, select: tuple[str, ...], ignore: tuple[str, ...], count: int
) -> None:
    replace_rules(monkeypatch, make_rule("ATN199", check_that_fires), make_rule("ATN299", check_that_fires))
    report = engine.run_rules(s.laptop(), frozenset(), select, ignore)
    assert len(report.findings) == count
    assert len(report.suppressed) == 2 - count


def test_a_rule_is_judged_only_where_it_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_rules(monkeypatch, make_rule("ATN199", check_that_fires, needs=frozenset({"ring"})))
    assert engine.run_rules(s.laptop(), frozenset()).findings == ()
    assert len(engine.run_rules(s.laptop(), frozenset({"ring"})).findings) == 1


def test_auto_reads_the_needs_off_what_is_installed() -> None:
    assert needs_of_profile("auto", s.laptop()) == NO_NEEDS
    assert needs_of_profile("auto", s.h200()) == {"flash", "ring", "ulysses", "context_parallel", "liger"}
    assert needs_of_profile("auto", s.with_package(s.laptop(), "verl", "0.9.1")) == {"flash", "rl"}
    assert needs_of_profile("ring", s.laptop()) == {"flash", "ring", "ulysses", "context_parallel"}


def test_what_is_missing_is_said() -> None:
    assert need(Known(3), "the number") == 3
    with pytest.raises(MissingFact, match="the number is absent: none here"):
        need(Absent("none here"), "the number")


def test_torchs_local_version_is_kept() -> None:
    version = s.h200().version("torch")
    assert isinstance(version, Known)
    assert version.value.local == "cu130"


def test_a_version_that_is_no_version_is_unreadable() -> None:
    assert isinstance(s.with_package(s.laptop(), "transformers", "N/A").version("transformers"), Unreadable)


PLUGIN = '''"""A planted defect.

What it checks: nothing. Why it matters: it does not. What to do: nothing. Source: this test.
"""
from attncheck.core.findings import Problem
from attncheck.doctor.rules import Rule
RULE = Rule("ATN799", "error", lambda snapshot: [Problem("found by a plugin")])
'''


@pytest.mark.parametrize(
    ("source", "code", "message"),
    [
        (PLUGIN, "ATN799", "found by a plugin"),
        ("raise RuntimeError('planted')", "ATN902", "RuntimeError: planted"),
        ("RULE = 3", "ATN902", "it has no RULE"),
        (PLUGIN.replace("ATN799", "ATN201"), "ATN902", "ATN201 is driver-too-old's"),
    ],
)
def test_a_plugin_is_loaded_and_a_broken_one_is_a_finding(tmp_path: Path, source: str, code: str, message: str) -> None:
    (tmp_path / "own_rules.py").write_text(source)
    info = tmp_path / "own_rules-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-rules\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[attncheck.rules]\nplanted = own_rules\n")
    facts = s.FOLDER / "laptop.json"
    command = [sys.executable, "-m", "attncheck", "doctor", "--facts", str(facts), "--format", "json"]
    process = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
    findings = {finding["code"]: finding for finding in json.loads(process.stdout)["findings"]}
    assert message in str(findings[code])


def test_every_code_is_unique_and_every_problem_is_frozen() -> None:
    codes = [rule.code for rule in engine.all_rules()[0]]
    assert len(codes) == len(set(codes))
    with pytest.raises(AttributeError):
        replace(Problem("x"), message="y").message = "z"  # type: ignore[misc]


def check_that_is_covered(snapshot: Snapshot) -> list[Problem]:
    raise MissingFact("flash_attn cannot be imported", ("ATN104", "ATN199"))


@pytest.mark.parametrize("other", [check_that_fires, lambda snapshot: []])
def test_a_skip_names_the_findings_that_cover_it(monkeypatch: pytest.MonkeyPatch, other: object) -> None:
    replace_rules(monkeypatch, make_rule("ATN140", check_that_is_covered), make_rule("ATN199", other))
    (skip,) = engine.run_rules(s.laptop(), frozenset()).skips
    if other is check_that_fires:
        assert skip.covered_by == ("ATN199",), "ATN104 was not found: it covers nothing"
        assert skip.reason == "flash_attn cannot be imported; fix ATN199 first"
    else:
        assert skip.covered_by == () and skip.reason == "flash_attn cannot be imported"


def test_codes_that_cover_are_rules() -> None:
    codes = {rule.code for rule in engine.all_rules()[0]}
    assert {code for subject in covering.CODES.values() for code in subject} <= codes


@pytest.mark.parametrize(
    ("message", "frames", "package"),
    [
        ("x", ("ring_flash_attn/__init__.py:1 in <module>", "flash_attn/__init__.py:3 in <module>"), "flash_attn"),
        ("x", ("flash_attn/interface.py:3 in <module>", "ctypes/__init__.py:376 in __init__"), "flash_attn"),
        ("x", ("ring_flash_attn/utils.py:3 in <module>",), "ring_flash_attn"),
        ("No module named 'flash_attn.layers'", ("ring_flash_attn/utils.py:3 in <module>",), "flash_attn"),
        ("No module named 'einops'", ("flash_attn/layers.py:3 in <module>",), "flash_attn"),
        ("No module named 'flash_attn_2_cuda'", (), "flash_attn"),
        ("x", ("utils.py:3",), ""),
    ],
)
def test_an_import_fails_in_the_package_of_its_innermost_frame(
    message: str, frames: tuple[str, ...], package: str
) -> None:
    snapshot = s.with_import(s.h200(), "ring_flash_attn", "raised", message=message, frames=frames)
    outcome = snapshot.imported("ring_flash_attn")
    assert isinstance(outcome, Known)
    assert covering.find_failing_package(snapshot, outcome.value) == package


def test_of_two_versions_of_a_package_the_imported_one_counts() -> None:
    snapshot = s.h200()
    older = Distribution(name="transformers", version="4.40.0", location="~/elsewhere")
    doubled = replace(snapshot, distributions=(older, *snapshot.distributions))
    measured = s.with_import(doubled, "transformers", "ok", version="5.17.0")
    assert measured.version("transformers") == snapshot.version("transformers")
    unmeasured = replace(doubled, imports=s.Absent("not requested"))
    assert unmeasured.version("transformers") == Known(Version("4.40.0")), "the first on sys.path"
