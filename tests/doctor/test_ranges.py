"""A rule's answer about a range of versions holds in each release that the range allows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
from packaging.version import Version

from attncheck.core.report import Report
from attncheck.core.snapshot import PackageGaps, Snapshot, Unreadable
from attncheck.doctor.engine import run_rules
from attncheck.doctor.knowledge.frameworks import RELEVANT_DISTRIBUTIONS
from attncheck.doctor.ranges import list_versions
from attncheck.doctor.rules import Known, Rule
from attncheck.doctor.target import with_version
from tests.doctor.rules.launch.accumulation_averages_batches import accumulating
from tests.doctor.test_rules import CHECKED_RULES, RULES, load_cases

RANGED = sorted(RELEVANT_DISTRIBUTIONS)
FEWEST_PAIRS = 20  # how many the rules' cases give at least, so that the test below tests something
# Faults of a kernel. Whether these packages are installed at all decides if it is loaded.
LOADS_A_KERNEL = {
    ("ATN104", "transformers"),
    ("ATN225", "kernels"),
    ("ATN225", "transformers"),
    ("ATN313", "transformers"),
}
ALL_NEEDS = frozenset(need for rule in RULES for need in rule.needs)


def judge(snapshot: Snapshot, code: str) -> Report:
    needs = ALL_NEEDS - next(rule.unless for rule in RULES if rule.code == code)
    general = next(rule.general for rule in RULES if rule.code == code)
    return run_rules(snapshot, needs - {"job"} if general else needs, select=(code,))


def finds(snapshot: Snapshot, code: str) -> bool:
    return any(finding.code == code for finding in judge(snapshot, code).findings)


def list_straddles() -> Iterator[tuple[Rule, Snapshot, str, str]]:
    """Yield each planted snapshot of a rule with a range whose one end has the fault and whose other end has not."""
    for rule in CHECKED_RULES:
        pairs = set()
        for snapshot, name in product(load_cases(rule).FIRES.values(), RANGED):
            package = snapshot.package(name)
            if name in pairs or not isinstance(package, Known) or not package.value.version:
                continue
            faulty = package.value.version.partition("+")[0]
            forgotten = with_version(snapshot, name, "", ">=0")  # its files are not known for a range
            if not finds(with_version(forgotten, name, faulty), rule.code):
                continue
            for sound in ("0.0.1", "999"):
                if not judge(with_version(snapshot, name, sound), rule.code).passed:
                    continue
                low, high = sorted((faulty, sound), key=Version)
                pairs.add(name)
                yield rule, with_version(snapshot, name, "", f">={low},<={high}"), name, faulty


def test_no_rule_passes_if_a_range_has_faulty_and_sound_versions() -> None:
    straddles = list(list_straddles())
    assert len(straddles) >= FEWEST_PAIRS
    wrong = []
    for rule, snapshot, name, _ in straddles:
        if finds(snapshot, rule.code) or not judge(snapshot, rule.code).skips:
            wrong.append((rule.code, name))
    assert wrong == []


def test_a_range_of_one_faulty_version_is_as_wrong_as_the_version() -> None:
    wrong = []
    for rule, snapshot, name, faulty in list_straddles():
        if not finds(with_version(snapshot, name, "", f">={faulty},<={faulty}"), rule.code):
            wrong.append((rule.code, name))
    assert wrong == []


def test_no_rule_passes_if_a_version_that_decides_is_unknown() -> None:
    wrong = []
    for rule, snapshot, name, _ in list_straddles():
        rest = tuple(item for item in snapshot.distributions if item.name != name)
        torch = Unreadable("not known") if name == "torch" else snapshot.torch
        unknown = replace(snapshot, distributions=rest, torch=torch, gaps=PackageGaps("it is not named"))
        if judge(unknown, rule.code).passed:
            wrong.append((rule.code, name))
    assert set(wrong) <= LOADS_A_KERNEL


@pytest.mark.parametrize(
    ("allowed", "answer"),
    [
        ("<=4.43.4,>=4.41.2", "found"),
        ("<4.46", "found"),
        (">=4.41.2", "inconclusive"),
        ("it is not pinned", "inconclusive"),
        ("!=4.46.1,<4.47,>=4.45", "inconclusive"),
        (">=4.46", "passed"),
    ],
)
def test_a_range_is_judged_by_its_releases(allowed: str, answer: str) -> None:
    report = judge(with_version(accumulating("4.45.2"), "transformers", "", allowed), "ATN429")
    found = [finding for finding in report.findings if finding.code == "ATN429"]
    assert (bool(found), bool(report.skips), report.passed == ("ATN429",)) == (
        answer == "found",
        answer == "inconclusive",
        answer == "passed",
    )
    assert all(f"transformers {allowed}" in finding.message for finding in found)


def test_two_ranges_are_judged_together() -> None:
    """A rule needs an old LLaMA-Factory and a new transformers: the answer depends on both."""
    rule = next(rule for rule in CHECKED_RULES if rule.name == "neat-packing-broken")
    planted = next(iter(load_cases(rule).FIRES.values()))
    both = with_version(with_version(planted, "llamafactory", "", ">=0.0.1"), "transformers", "", ">=4.40")
    assert judge(both, rule.code).passed == ()


def test_versions_are_from_everywhere_in_a_range() -> None:
    assert set(list_versions("transformers", ">=4.44.1,<4.46")) == {"4.44.1", "4.44.2", "4.45.0", "4.45.1", "4.45.2"}
    assert list_versions("transformers", ">5")[1] == "9999"
    assert "2.9.1" in list_versions("torch", ">=2.0")
    assert "0.0.1" in list_versions("torch", "<2.0")
