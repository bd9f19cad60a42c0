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
from attncheck.doctor import rules
from attncheck.doctor.engine import all_rules, make_finding
from attncheck.doctor.rules import Rule

RULES = all_rules()[0]
CHECKED_RULES = [rule for rule in RULES if not rule.by_engine]
SECTIONS = ("What it checks:", "Why it matters:", "What to do:", "Source:")


# Commands that show something or judge again; a fix changes something.
LOOKS = re.compile(r"attncheck |nvidia-smi (topo|--query|-i \d+ --query|-q)|(sudo )?dmesg |\S+ -m pip config debug")

FAMILIES = {path.stem: path.parent.name for path in (Path(__file__).parent / "rules").glob("*/*.py")}


def load_cases(rule: Rule) -> ModuleType:
    name = rule.name.replace("-", "_")
    return importlib.import_module(f"tests.doctor.rules.{FAMILIES.get(name, '')}.{name}")


def run_rule(rule: Rule, snapshot: Snapshot) -> list[Finding]:
    try:
        return [make_finding(rule, problem) for problem in rule.check(snapshot)]
    except MissingFact:
        return []


def parametrize_snapshots(which: str) -> list[object]:
    return [
        pytest.param(rule, snapshot, id=f"{rule.code}-{title}")
        for rule in CHECKED_RULES
        for title, snapshot in getattr(load_cases(rule), which).items()
    ]


def test_every_rule_loads() -> None:
    assert all_rules()[1] == ()


def test_every_page_without_a_check_has_a_code_of_its_own() -> None:
    pages = [path.stem.replace("_", "-") for path in Path(rules.__path__[0]).glob("*/*.md")]
    assert sorted(pages) == sorted(rule.name for rule in RULES if rule.by_engine)


@pytest.mark.parametrize("rule", CHECKED_RULES, ids=lambda rule: rule.name)
def test_has_cases_of_both_kinds(rule: Rule) -> None:
    assert load_cases(rule).FIRES, f"{rule.name} has no case that makes it fire"
    assert load_cases(rule).SILENT, f"{rule.name} has no case that keeps it silent"


@pytest.mark.parametrize(("rule", "snapshot"), parametrize_snapshots("FIRES"))
def test_fires(rule: Rule, snapshot: Snapshot) -> None:
    findings = run_rule(rule, snapshot)
    assert findings
    for finding in findings:
        assert finding.message and "\n" not in finding.message
        assert not finding.message.endswith(".")
        for fix in finding.fixes:
            assert fix.title and (fix.text or fix.sets)
            assert fix.kind == "advice" or not LOOKS.match(fix.text), f"{fix.text!r} mends nothing"
    says = getattr(load_cases(rule), "says", None)
    if says is not None:
        assert says(str(findings))


@pytest.mark.parametrize(("rule", "snapshot"), parametrize_snapshots("SILENT"))
def test_keeps_silent(rule: Rule, snapshot: Snapshot) -> None:
    assert run_rule(rule, snapshot) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_page_is_complete(rule: Rule) -> None:
    assert re.fullmatch(r"ATN[1-9]\d\d", rule.code)
    first, _, rest = rule.page.partition("\n")
    assert first.endswith(".") and rest
    for section in SECTIONS:
        assert section in rule.page, f"{rule.name} lacks {section!r}"
