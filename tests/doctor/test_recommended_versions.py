"""No version that a fix names has a fault that a rule knows: each is installed on paper and judged by the rules.

Every way out of every finding that the rules' own cases bring about is applied to its snapshot as a repair would (with
what has to follow it), and the rules judge what comes out. Versions that the README and the docs name are judged too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from attncheck.core.facts import Known
from attncheck.core.findings import Finding
from attncheck.core.snapshot import Snapshot
from attncheck.doctor import engine
from attncheck.doctor.fixes.install import install_packages, meet_requirements
from attncheck.doctor.knowledge.faulty_releases import FAULTY_RELEASES, list_faults
from attncheck.doctor.knowledge.frameworks import RELEVANT_DISTRIBUTIONS
from attncheck.doctor.knowledge.transformers import known_releases
from attncheck.doctor.profile import needs_of_job, needs_of_profile
from attncheck.doctor.queries import requirements
from attncheck.doctor.repair.changes import apply_steps, changed_names, forget_imports
from attncheck.doctor.repair.choices import Way, list_ways
from attncheck.doctor.repair.commands import write_steps
from attncheck.doctor.repair.plan import plan_repair
from attncheck.doctor.rules import Rule
from tests import snapshots as s
from tests.doctor.test_rules import CHECKED_RULES, load_cases, run_rule

Finder = Callable[[Rule, Snapshot], Iterable[Finding]]
ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
# (code of the finding that is fixed, code of the new one) -> why the version is recommended anyway.
ACCEPTED = {
    ("ATN100", "ATN109"): "an environment without torch: what else is missing is found once it is there",
    ("ATN101", "ATN109"): "an environment without torch: what else is missing is found once it is there",
    ("ATN141", "ATN140"): "OpenRLHF is installed, which puts the name back itself",
    ("ATN145", "ATN140"): "OpenRLHF is installed, which puts the name back itself",
    ("ATN147", "ATN140"): "OpenRLHF pins this transformers, and puts the name back itself",
    ("ATN161", "ATN119"): "of flash-attn >=2.1.1,<2.8.4 a repair on paper takes the lower end, an installer the newest",
}


@dataclass(frozen=True)
class Trouble:
    """What a rule says of an environment in which a recommended version was installed."""

    mended: str  # the finding's code
    installs: tuple[str, ...]
    code: str
    message: str


def judge(snapshot: Snapshot) -> tuple[Finding, ...]:
    """Return what the rules find, notes left out."""
    job = snapshot.job.value if isinstance(snapshot.job, Known) else None
    needs = needs_of_job(job) if job else needs_of_profile("all", snapshot)
    return tuple(finding for finding in engine.run_rules(snapshot, needs).findings if finding.severity != "note")


def name_package(finding: Finding) -> str:
    """Return the package that a finding is about, "" if it is about a model, a GPU or a setting."""
    name = requirements.canonical_name(finding.subject.partition(" ")[0])
    return name if name in RELEVANT_DISTRIBUTIONS else ""


def find_troubles(snapshot: Snapshot, finding: Finding) -> Iterator[Trouble]:
    """Yield what rules say of packages after a way to fix a finding, and did not before it."""
    for way in list_ways(finding):
        installs = tuple(text for fix in way.fixes for text in fix.installs)
        if not installs or _reinstalls(snapshot, installs) or _is_completed_by_hand(way):
            continue
        steps = plan_repair(snapshot, [replace(finding, fixes=way.fixes)], judge)[0].steps
        if not set(installs) <= {text for step in steps for text in step.installs}:
            steps = write_steps(snapshot, [way])  # the repair took another version: what the finding says is judged
        known = {*judge(snapshot), *judge(forget_imports(snapshot, changed_names(steps)))}
        broken = {name_package(each) for each in known if each.code != finding.code}
        for new in judge(apply_steps(snapshot, steps)):
            is_new = new.code not in {each.code for each in known} and name_package(new) not in {"", *broken}
            if is_new and (finding.code, new.code) not in ACCEPTED:
                yield Trouble(finding.code, installs, new.code, new.message)


def _reinstalls(snapshot: Snapshot, installs: tuple[str, ...]) -> bool:
    return all(any(f"{entry.name}=={entry.version}" == text for entry in snapshot.distributions) for text in installs)


def _is_completed_by_hand(way: Way) -> bool:
    """Return whether an edit goes with the installation, which no snapshot shows: a name that is put back."""
    return any(fix.follows and fix.kind == "edit" for fix in way.fixes)


def collect_troubles(cases: Iterable[tuple[Rule, Snapshot]], finds: Finder) -> tuple[list[Trouble], int]:
    """Return the troubles that the fixes of findings bring, and how many different fixes were judged."""
    judged: set[tuple[str, ...]] = set()
    troubles: list[Trouble] = []
    for rule, snapshot in cases:
        for finding in finds(rule, snapshot):
            installs = tuple(text for fix in finding.fixes for text in fix.installs)
            key = (finding.code, *installs)
            if installs and key not in judged:
                judged.add(key)
                troubles += find_troubles(snapshot, finding)
    return troubles, len(judged)


def list_cases(*which: str) -> Iterator[tuple[Rule, Snapshot]]:
    """Yield every rule with each of its recorded cases."""
    for rule in CHECKED_RULES:
        for name in which:
            for snapshot in getattr(load_cases(rule), name).values():
                yield rule, snapshot


def find_all(rule: Rule, snapshot: Snapshot) -> Iterable[Finding]:
    """Return what all rules find in the case of one."""
    return judge(snapshot)


TABLED = "transformers"
RING = frozenset({"ATN130", "ATN140", "ATN141", "ATN143"})


def ring_cases() -> list[tuple[Rule, Snapshot]]:
    """Return the cases of the rules whose fixes send ring-flash-attn's users to another transformers."""
    return [case for case in list_cases("FIRES") if case[0].code in RING]


def find_by_rule(rule: Rule, snapshot: Snapshot) -> Iterable[Finding]:
    """Return what a rule finds and a transformers fixes, the package that most fixes choose a release of."""
    findings = run_rule(rule, snapshot)
    return [finding for finding in findings if any(TABLED in str(fix.installs) for fix in finding.fixes)]


def test_no_fix_of_a_rule_recommends_a_transformers_that_a_rule_speaks_against() -> None:
    troubles, judged = collect_troubles(list_cases("FIRES"), find_by_rule)
    assert troubles == [] and judged > 20


@pytest.mark.nightly
def test_no_fix_of_any_finding_recommends_what_a_rule_speaks_against() -> None:
    troubles, judged = collect_troubles(list_cases("FIRES", "SILENT"), find_all)
    assert troubles == [] and judged > 150


def test_a_faulty_recommendation_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the table 5.3.0 is chosen again; the rule, which reads trainer.py or its own copy, must say so."""
    assert collect_troubles(ring_cases(), run_rule)[0] == []
    monkeypatch.setattr(requirements, "list_faults", lambda name, version: ())
    troubles = collect_troubles(ring_cases(), run_rule)[0]
    assert {trouble.code for trouble in troubles} == {"ATN457"}
    assert ("transformers==5.3.0",) in {trouble.installs for trouble in troubles}


@pytest.mark.parametrize(
    ("requirement", "code"),
    [("transformers==5.19.0", "ATN141"), ("transformers==5.3.0", "ATN457"), ("liger-kernel==0.6.3", "ATN352")],
)
def test_a_planted_recommendation_is_caught(requirement: str, code: str) -> None:
    """A release that breaks ring-flash-attn, and two that are broken themselves."""
    snapshot = s.with_package(s.with_import(s.h200(), "ring_flash_attn"), "transformers", "5.1.0")
    fix = install_packages(snapshot, requirement)
    planted = Finding("ATN999", "planted", "error", "planted", "trl 1.0.0", (), (fix,))
    assert code in {trouble.code for trouble in find_troubles(snapshot, planted)}


def test_an_install_command_leads_to_a_sound_release() -> None:
    laptop = s.laptop()
    assert install_packages(laptop, "transformers<5.4,>=4.51").installs == ("transformers==5.1.0",)
    assert install_packages(laptop, "transformers>=4.51").installs == ("transformers>=4.51",)
    assert install_packages(laptop, "./x.whl", "einops").installs == ("./x.whl", "einops")
    [pinned] = meet_requirements(laptop, "axolotl", ["transformers==5.5.0", "einops"])
    assert pinned.kind == "manual" and pinned.installs == () and "axolotl" in pinned.title
    [free] = meet_requirements(laptop, "trl", ["transformers>=4.56.2"])
    assert free.installs == ("transformers>=4.56.2",)


def test_transformers_is_chosen_for_all_that_is_installed() -> None:
    h200 = s.h200()
    assert requirements.resolve_transformers(h200, ">=4.51,<5.4") == ("transformers==5.1.0",)
    with_deepspeed = s.with_package(h200, "deepspeed", "0.18.0")
    assert requirements.resolve_transformers(with_deepspeed, ">=4.51,<5.4") == ("transformers==5.0.0",)
    older_liger = s.with_package(with_deepspeed, "liger-kernel", "0.8.4")
    assert requirements.resolve_transformers(older_liger, ">=4.52,<5.0") == ("transformers>=4.52,<5.0",)
    of_four = s.with_package(older_liger, "transformers", "4.48.0")
    assert requirements.resolve_transformers(of_four, ">=4.51,<5.4") == ("transformers==4.57.6",), "the same major"
    assert requirements.resolve_transformers(of_four, ">=5.0,<5.2") == ("transformers==5.0.0",), "no other is allowed"
    assert requirements.resolve_transformers(h200, ">=5.2,<5.5.4") == ()
    works = s.with_package(h200, "transformers", "5.1.0")
    assert requirements.resolve_transformers(works, ">=5.5") == (), "ring-flash-attn would stop working"


def test_every_row_of_the_table_is_a_rules() -> None:
    codes = {rule.code for rule in CHECKED_RULES}
    for name, faults in FAULTY_RELEASES.items():
        for specifier, code in faults.items():
            assert code in codes and specifier and name in RELEVANT_DISTRIBUTIONS
    faulty = [str(release) for release in known_releases(SpecifierSet()) if list_faults("transformers", release)]
    assert faulty == ["5.2.0", "5.3.0", "5.4.0", "5.5.0", "5.5.1", "5.5.2", "5.5.3"]


NAMED = re.compile(r"\b(transformers|liger-kernel)==(\d[\w.]*)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_names_a_faulty_release(page: Path) -> None:
    for name, version in NAMED.findall(page.read_text(encoding="utf-8")):
        assert list_faults(name, Version(version)) == (), f"{page.name} names {name}=={version}"


def test_no_launch_is_sent_to_a_faulty_release() -> None:
    """Versions that lint's own texts name, in fixes (`installs`) and in advice."""
    named = []
    for path in sorted((ROOT / "attncheck").rglob("*.py")):
        for line in re.findall(r"['\"\x60 ]((?:transformers|liger-kernel)[=<>!~][^'\"\x60 )]+)", path.read_text()):
            named.append(line.rstrip(".,;:"))
    parsed = [Requirement(line) for line in named if not re.search(r"[{}…]|[a-z]$", line)]
    assert len(parsed) > 5
    for requirement in parsed:
        assert requirements.avoid_faulty(str(requirement)) == str(requirement), requirement
