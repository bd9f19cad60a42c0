"""One repair for a whole report: no two fixes contradict each other, and the rules find what it fixes no more."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
from packaging.specifiers import SpecifierSet

from attncheck.core.findings import Finding, Fix
from attncheck.core.job import LintedLaunch
from attncheck.core.report import Report, merge_reports
from attncheck.core.results.lint import LintSection
from attncheck.core.results.repair import RepairSection, RepairStep
from attncheck.core.snapshot import Snapshot
from attncheck.doctor import engine
from attncheck.doctor.profile import needs_of_job, needs_of_profile
from attncheck.doctor.queries.requirements import have_common_version
from attncheck.doctor.repair import plan
from attncheck.doctor.repair.choices import join_specifiers, list_demands, parse_requirement, removed_names
from attncheck.doctor.repair.plan import add_repair
from attncheck.report.formats import load_format
from tests import snapshots as s

Change = Callable[[Snapshot], Snapshot]


def judge(snapshot: Snapshot) -> Report:
    return engine.run_rules(snapshot, needs_of_profile("all", snapshot))


def repair_of(report: Report) -> RepairSection:
    section = report.section(RepairSection)
    assert section is not None
    return section


def codes_of(report: Report) -> set[str]:
    return {finding.code for finding in report.findings if finding.severity != "note"}


def without_einops(snapshot: Snapshot) -> Snapshot:
    return replace(
        s.without_packages(snapshot, "einops"), imports=s.Absent("not asked"), interfaces=s.Absent("not asked")
    )


def with_requirer(name: str, version: str, *requires: str) -> Change:
    return lambda snapshot: s.with_package(snapshot, name, version, requires=requires)


def with_versions(*packages: str) -> Change:
    def change(snapshot: Snapshot) -> Snapshot:
        for package in packages:
            name, _, version = package.partition("==")
            snapshot = s.with_package(snapshot, name, version)
        return snapshot

    return change


# Faults of packages, each a change of the recorded machine (on which ring-flash-attn is broken from the start: ATN140).
FAULTS: dict[str, Change] = {
    "einops no longer exists": without_einops,
    "flash-attn and einops no longer exist": lambda x: s.without_packages(without_einops(x), "flash-attn"),
    "openrlhf pins 5.15.0": with_requirer("openrlhf", "0.11.2", "transformers==5.15.0"),
    "trl pins below 5": with_requirer("trl", "1.0.0", "transformers<5", "datasets>=3"),
    "kernels are old": with_versions("kernels==0.9.1"),
    "transformers 5.4.0": with_versions("transformers==5.4.0"),
    "transformers 5.23.0": with_versions("transformers==5.23.0"),
    "transformers 4.57.6 under liger 0.8.5": with_versions("transformers==4.57.6"),
    "ring 0.1.3": with_versions("ring-flash-attn==0.1.3"),
    "torch is a CPU build": lambda x: s.with_torch(x, version="2.13.0+cpu", cuda=s.Absent(), hip=s.Absent()),
    "torch is old": lambda x: s.with_torch(x, version="2.4.0+cu124", cuda=s.Known("12.4")),
    "vllm wants another torch": with_requirer("vllm", "0.29.0", "torch==2.12.0"),
    "triton no longer exists": lambda x: s.without_packages(x, "triton"),
    "torchvision is old": with_requirer("torchvision", "0.24.0", "torch==2.9.0"),
    "deterministic without cuBLAS": lambda x: s.with_env(x, FLASH_ATTENTION_DETERMINISTIC="1"),
    "verl on a release it excludes": with_requirer("verl", "0.9.1", "transformers!=5.6.0,<5.11,>=5.5.3"),
}


def find_contradiction(report: Report) -> str:
    """Return two commands of a report that want what cannot hold at once, or ""."""
    fixes = [fix for finding in report.findings for fix in finding.fixes if fix.kind in ("command", "env")]
    steps = [Fix(step.title, "command", step.command, installs=step.installs) for step in repair_steps(report)]
    for first, second in itertools.combinations([*fixes, *steps], 2):
        for (name, wanted), (other, wanted_too) in itertools.product(_pins(first), _pins(second)):
            if name == other and not _both_hold(name, wanted, wanted_too):
                return f"{first.text} / {second.text}"
    return ""


def repair_steps(report: Report) -> tuple[RepairStep, ...]:
    section = report.section(RepairSection)
    return section.steps if section is not None else ()


def _pins(fix: Fix) -> list[tuple[str, str]]:
    removed = [
        (name, "!") for name in removed_names(fix) if name not in {parse_requirement(i)[0] for i in fix.installs}
    ]
    env = [demand for demand in list_demands(fix) if demand[0].startswith("$")]
    return [*(parse_requirement(text) for text in fix.installs if parse_requirement(text)[0]), *removed, *env]


def _both_hold(name: str, first: str, second: str) -> bool:
    if name.startswith("$") or "!" in (first, second):
        return first == second
    return have_common_version([SpecifierSet(first), SpecifierSet(second)])


NIGHTLY = pytest.mark.nightly


@pytest.mark.parametrize(
    ("size", "every"), [(1, 1), (2, 4), pytest.param(2, 1, marks=NIGHTLY), pytest.param(3, 3, marks=NIGHTLY)]
)
def test_no_two_fixes_of_a_report_contradict_each_other(size: int, every: int) -> None:
    tried = contradicted_before = proven = 0
    for names in list(itertools.combinations(FAULTS, size))[::every]:
        snapshot = s.h200()
        for name in names:
            snapshot = FAULTS[name](snapshot)
        report = judge(snapshot)
        joined = add_repair(report)
        tried += 1
        contradicted_before += bool(find_contradiction(report))
        assert find_contradiction(joined) == "", names
        assert {f.code for f in joined.findings} == {f.code for f in report.findings}, "no finding is lost"
        proven += bool(joined.section(RepairSection) and repair_of(joined).proven)
    print(f"{tried} sets of {size}: {contradicted_before} contradicted themselves without it, {proven} proven")
    assert contradicted_before and proven > tried // 3


def test_the_proof_is_what_the_rules_find_in_the_changed_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    report = judge(without_einops(s.h200()))
    assert set(repair_of(add_repair(report)).proven) == {"ATN140", "ATN170"}
    monkeypatch.setattr(plan, "apply_steps", lambda snapshot, steps: snapshot)  # as if no command did anything
    section = repair_of(add_repair(report))
    assert section.proven == () and set(section.remaining) == {"ATN140", "ATN170"}


def test_what_only_an_import_showed_is_not_called_proven() -> None:
    raised = s.with_import(
        s.with_package(s.h200(), "transformers", "5.3.0"),
        "flash_attn",
        "raised",
        exception="ModuleNotFoundError",
        message="No module named 'einops'",
    )
    report = add_repair(judge(s.without_packages(raised, "einops")))
    section = repair_of(report)
    assert "ATN108" in section.unproven and "ATN108" not in section.proven
    assert not any(fix.proven for finding in report.findings if finding.code == "ATN108" for fix in finding.fixes)


def test_a_package_without_its_extension_is_built_again_without_the_variable_that_omits_it() -> None:
    missing = ("flash_attn_2_cuda (flash_attn/flash_attn_interface.py:15)",)
    section = repair_of(add_repair(judge(s.with_package(s.h200(), "flash-attn", "2.8.3", missing_modules=missing))))
    [step] = (step for step in section.steps if "ATN178" in step.codes)
    assert step.command.startswith("env -u FLASH_ATTENTION_SKIP_CUDA_BUILD ") and "flash-attn" in step.installs[0]
    assert "ATN178" in section.unproven and "ATN178" not in (*section.proven, *section.remaining)


def test_joined_bounds_are_the_tightest() -> None:
    assert join_specifiers([">=5.5.4", ">=5.6,<6", "", "<5.9,!=5.7"]) == "!=5.7,<5.9,>=5.6"


def test_a_fix_that_causes_the_next_fault_brings_its_fix_along() -> None:
    report = judge(s.h200())
    [broken] = report.findings
    bare = Fix("install it", "command", "pip install", installs=())
    flash = replace(
        bare, text=broken.fixes[0].text.replace("transformers==5.1.0", "trl==1.0.0"), installs=("trl==1.0.0",)
    )
    with_pin = replace(broken, fixes=(flash,))
    calls = []

    def run(snapshot: Snapshot) -> tuple[Finding, ...]:
        calls.append(snapshot)
        if not snapshot.has("trl"):
            return (with_pin,)
        fix = replace(flash, text=flash.text.replace("trl==1.0.0", "datasets"), installs=("datasets",))
        return () if snapshot.has("datasets") else (replace(broken, code="ATN170", fixes=(fix,)),)

    section, joined, _ = plan.plan_repair(s.h200(), [with_pin], run)
    assert set(joined) == {"trl", "datasets"} and len(section.steps) == 1
    assert section.remaining == () and len(calls) < 10


def lint_report(snapshot: Snapshot) -> Report:
    """Return what lint says of an OpenRLHF launch without the names put back."""
    with_job = s.with_job(snapshot, requires=("transformers==5.15.0",))
    assert isinstance(with_job.job, s.Known)
    job = with_job.job.value
    report = engine.run_rules(with_job, needs_of_job(job))
    return replace(report, command="lint", sections={"lint": LintSection((LintedLaunch(job, "", "", (), ()),))})


def test_the_issues_own_report_agrees_with_itself() -> None:
    """ATN140 said transformers==5.1.0 and ATN453, of the same report, transformers==5.15.0."""
    snapshot = s.h200()
    both = merge_reports("gate", snapshot, (judge(snapshot), lint_report(snapshot)))
    assert {"ATN140", "ATN453"} <= codes_of(both) and find_contradiction(both)
    joined = add_repair(both)
    assert find_contradiction(joined) == ""
    text = load_format("text").render(joined, False)
    assert "transformers==5.15.0" in text and "5.1.0" not in text and "restore the name" in text


def test_lint_alone_takes_the_pin_of_the_launchs_framework_into_account() -> None:
    fixes = [fix.text for finding in lint_report(s.h200()).findings for fix in finding.fixes]
    assert fixes and not any("transformers==5.1.0" in text for text in fixes)


def test_where_nothing_satisfies_all_the_graver_goes_first_and_the_other_is_no_command() -> None:
    error, warning = make_pair("transformers==5.1.0", "transformers==5.15.0")
    section, joined, ways = plan.plan_repair(s.laptop(), [error, warning], lambda snapshot: (error, warning))
    assert joined == {"transformers": "transformers==5.1.0"} and section.targets == ("ATN140",)
    [conflict] = section.conflicts
    assert "ATN147 needs transformers==5.15.0, which ATN140 excludes" in conflict and "more severe" in conflict
    agreed = plan._agree(warning, joined, set(), ways, section)
    assert [fix.kind for fix in agreed.fixes] == ["manual"] and conflict in agreed.fixes[0].text


def test_another_kind_of_fix_is_preferred_to_a_conflict() -> None:
    error, warning = make_pair("transformers==5.1.0", "transformers==5.15.0")
    shim = Fix("put it back", "edit", "x = y", allows=("transformers>=5.5,<5.19",))
    error = replace(error, fixes=(*error.fixes, shim))
    section, joined, _ = plan.plan_repair(s.laptop(), [error, warning], lambda snapshot: (error, warning))
    assert joined == {"transformers": "transformers==5.15.0"}
    assert (section.targets, section.by_hand, section.conflicts) == (("ATN147",), ("ATN140",), ())


def make_pair(first: str, second: str) -> tuple[Finding, Finding]:
    def finding(code: str, severity: str, requirement: str) -> Finding:
        fix = Fix(f"install {requirement}", "command", f"pip install {requirement}", installs=(requirement,))
        return Finding(code, "name", severity, "message", "", (), (fix,))  # type: ignore[arg-type]

    return finding("ATN140", "error", first), finding("ATN147", "warning", second)


def test_removal_and_variables_are_part_of_it() -> None:
    wanted = (
        Fix("a", "env", "export A=1"),
        Fix("b", "env", "export A=2"),
        Fix("c", "command", "pip uninstall -y kernels"),
    )
    findings = [
        Finding(code, "n", "error", "m", "", (), (fix,))
        for code, fix in zip(("ATN211", "ATN212", "ATN149"), wanted, strict=True)
    ]
    section, _, _ = plan.plan_repair(s.laptop(), findings, lambda snapshot: ())
    assert [step.command for step in section.steps] == ["pip uninstall -y kernels", "export A=1"]
    assert "ATN212 needs 2, which ATN211 excludes" in section.conflicts[0]


def test_it_is_shown_once_and_only_where_it_joins_something() -> None:
    alone = add_repair(judge(s.h200()))
    assert "repair" in alone.sections
    assert "To fix everything" not in load_format("text").render(alone, False)
    joined = add_repair(judge(without_einops(s.h200())))
    text, markdown = (load_format(name).render(joined, False) for name in ("text", "markdown"))
    assert text.count("\nTo fix everything, run 2 commands in order (they fix ATN140, ATN170):\n    # 1. ATN140: ") == 1
    assert text.index("ATN170 error") < text.index("\nTo fix everything") and "and nothing new" in text
    assert markdown.count("## To fix everything") == 1


def test_a_clean_report_has_none_and_costs_nothing() -> None:
    clean = judge(s.laptop())
    assert add_repair(clean) is clean
