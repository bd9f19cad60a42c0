"""Every rule fires on its planted defects, keeps silent on its clean cases, and has a page that explains it."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
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

FAMILIES = {
    path.stem: path.parent.name
    for path in (Path(__file__).parent / "rules").glob("*/*.py")
    if "FIRES" in path.read_text(encoding="utf-8")
}


def load_cases(rule: Rule) -> ModuleType:
    """Return the rule's cases; without any if there is no such file: `find_case_problems` names it."""
    name = rule.name.replace("-", "_")
    if name not in FAMILIES:
        return ModuleType(name)
    return importlib.import_module(f"tests.doctor.rules.{FAMILIES[name]}.{name}")


def find_case_problems(case_names: Iterable[str], rules: Iterable[Rule]) -> list[str]:
    """Return one line for each rule without a file of cases, and for each file whose name no rule has."""
    by_case = {rule.name.replace("-", "_"): rule for rule in rules}
    names = set(case_names)
    missing = [f"{by_case[name].code}: no file of cases, {name}.py" for name in sorted(by_case.keys() - names)]
    extra = sorted(names - by_case.keys())
    return missing + [f"{name}.py: no rule has this name; name the file after its rule" for name in extra]


def run_rule(rule: Rule, snapshot: Snapshot) -> list[Finding]:
    try:
        return [make_finding(rule, problem) for problem in rule.check(snapshot)]
    except MissingFact:
        return []


def parametrize_snapshots(which: str) -> list[object]:
    return [
        pytest.param(rule, snapshot, id=f"{rule.code}-{title}")
        for rule in CHECKED_RULES
        for title, snapshot in getattr(load_cases(rule), which, {}).items()
    ]


def test_every_file_of_cases_is_named_after_its_rule() -> None:
    assert find_case_problems(FAMILIES, CHECKED_RULES) == []


def test_a_wrong_name_of_a_file_of_cases_is_one_clear_line() -> None:
    """At fca601f such a file stopped all of tests/doctor with "No module named 'tests.doctor.rules.'"."""
    (rule,) = (rule for rule in CHECKED_RULES if rule.code == "ATN140")
    name = rule.name.replace("-", "_")
    assert find_case_problems([f"test_{name}"], [rule]) == [
        f"ATN140: no file of cases, {name}.py",
        f"test_{name}.py: no rule has this name; name the file after its rule",
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
            assert fix.title and (fix.text or fix.sets or fix.kind == "advice")
            assert fix.kind == "advice" or not LOOKS.match(fix.text), f"{fix.text!r} fixes nothing"
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
