"""Every rule fires on its planted defects, keeps silent on its clean cases, and has a page that explains it."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

from attncheck.core.facts import MissingFact
from attncheck.core.findings import Finding
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.engine import all_rules, stamp
from attncheck.doctor.rules import Rule

RULES = all_rules()[0]
JUDGING = [rule for rule in RULES if not rule.by_engine]
SECTIONS = ("What it checks:", "Why it matters:", "What to do:", "Source:")


FAMILIES = {path.stem: path.parent.name for path in (Path(__file__).parent / "rules").glob("*/*.py")}


def cases(rule: Rule) -> ModuleType:
    name = rule.name.replace("-", "_")
    return importlib.import_module(f"tests.doctor.rules.{FAMILIES.get(name, '')}.{name}")


def run(rule: Rule, snapshot: Snapshot) -> list[Finding]:
    try:
        return [stamp(rule, problem) for problem in rule.check(snapshot)]
    except MissingFact:
        return []


def pairs(which: str) -> list[object]:
    return [
        pytest.param(rule, snapshot, id=f"{rule.code}-{title}")
        for rule in JUDGING
        for title, snapshot in getattr(cases(rule), which).items()
    ]


def test_every_rule_loads() -> None:
    assert all_rules()[1] == ()


@pytest.mark.parametrize("rule", JUDGING, ids=lambda rule: rule.name)
def test_has_cases_of_both_kinds(rule: Rule) -> None:
    assert cases(rule).FIRES, f"{rule.name} has no case that makes it fire"
    assert cases(rule).SILENT, f"{rule.name} has no case that keeps it silent"


@pytest.mark.parametrize(("rule", "snapshot"), pairs("FIRES"))
def test_fires(rule: Rule, snapshot: Snapshot) -> None:
    found = run(rule, snapshot)
    assert found
    for finding in found:
        assert finding.message and "\n" not in finding.message
        assert not finding.message.endswith(".")
        for fix in finding.fixes:
            assert fix.title and (fix.text or fix.sets)
    says = getattr(cases(rule), "says", None)
    if says is not None:
        assert says(str(found))


@pytest.mark.parametrize(("rule", "snapshot"), pairs("SILENT"))
def test_keeps_silent(rule: Rule, snapshot: Snapshot) -> None:
    assert run(rule, snapshot) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_page_is_complete(rule: Rule) -> None:
    assert re.fullmatch(r"ATN[1-9]\d\d", rule.code)
    first, _, rest = rule.page.partition("\n")
    assert first.endswith(".") and rest
    for section in SECTIONS:
        assert section in rule.page, f"{rule.name} lacks {section!r}"
