"""The effects of other package versions."""

from collections.abc import Iterator

from attncheck.core.results.upgrade import ChangedPackage, TrialStage, UpgradeEffect, UpgradeSection
from attncheck.report.sections import Block, Items, Paragraph, Report, SectionView, TestCase

NOT_KNOWN = "unknown: "  # prefix of lost items if no table knows the packages
MARKS = {"same": "ok", "worse": "fail", "not_run": "-"}
STAGE_WORDS = {"same": "as before", "worse": "worse", "not_run": "not run"}
BASIS_WORDS = {
    "predicted": "predicted from tables and metadata; nothing was run",
    "read": "read from the new code; nothing was run",
    "tried": "tried in a temporary folder; the environment is unchanged",
}


def blocks(report: Report, section: UpgradeSection) -> Iterator[Block]:
    """Yield what would change, how it was judged, the stages of a trial, what is fixed and what is unknown."""
    rows = [("", package.name, describe_package(package)) for package in section.packages]
    yield Items(tuple(rows), ("", "package", "change"))
    if not any(text.startswith(NOT_KNOWN) for text in section.lost):
        yield Paragraph(describe_outcome(section))
    stages = [(MARKS[stage.outcome], stage.name, describe_stage(stage)) for stage in section.stages]
    lines = [
        *(("ok", "fixed", describe_effect(effect)) for effect in section.fixes),
        *(("-", "refuted", text) for text in section.refuted),
        *(("-", "unknown", text) for text in section.unknown),
        *(("lost", "lost", text) for text in section.lost if not text.startswith(NOT_KNOWN)),
    ]
    if stages or lines:
        yield Items((*stages, *lines), ("", "part", "outcome"))


def verdict(report: Report, section: UpgradeSection) -> str:
    """Return what the upgrade breaks; or that nothing was judged because no table knows the packages."""
    changes = ", ".join(f"{package.name} {package.after}" for package in section.packages if package.named)
    if unknown := next((text for text in section.lost if text.startswith(NOT_KNOWN)), ""):
        return unknown
    count = len(section.breaks)
    basis = BASIS_WORDS[section.basis]
    if all(package.before == package.after for package in section.packages):
        return "nothing would change"
    if not count:
        return f"{changes}: no new problems ({basis})"
    return f"{changes}: {count} new problem{'s' * (count != 1)} ({basis})"


def testcases(report: Report, section: UpgradeSection) -> Iterator[TestCase]:
    """Yield a test case for each stage of a trial that broke nothing; findings are separate test cases."""
    for stage in section.stages:
        if stage.outcome != "worse":
            outcome = "passed" if stage.outcome == "same" else "skipped"
            yield TestCase(stage.name, "upgrade", outcome, "" if outcome == "passed" else stage.detail, stage.detail)


def describe_package(package: ChangedPackage) -> str:
    """Return a package's change in a line: "5.17.0 → 5.23.0 (transformers-5.23.0-py3-none-any.whl)"."""
    origin = describe_origin(package)
    if package.before == package.after:
        return f"{package.after} is already installed"
    return f"{package.before or 'not installed'} → {package.after}" + (f" ({origin})" if origin else "")


def describe_origin(package: ChangedPackage) -> str:
    """Return the wheel that was read, or that the package changes only because of another one."""
    return package.wheel if package.named else "changes with it"


def describe_outcome(section: UpgradeSection) -> str:
    """Return in a line what happens to the present findings; the verdict states the new ones."""
    return f"findings of today: {len(section.fixes)} fixed, {section.unchanged} unchanged"


def describe_stage(stage: TrialStage) -> str:
    """Return the outcome of a stage of the trial in a line."""
    if stage.name == "install" and stage.outcome == "same":
        return stage.detail
    return f"{STAGE_WORDS[stage.outcome]}: {stage.detail}"


def describe_effect(effect: UpgradeEffect) -> str:
    """Return a finding that the upgrade fixes, in a line."""
    return f"{effect.code} {effect.message}"


VIEW = SectionView("Upgrade", blocks, verdict=verdict, testcases=testcases)
