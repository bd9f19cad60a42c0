"""What other versions of packages would do."""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.report import Report
from attncheck.core.results.upgrade import ChangedPackage, TrialStage, UpgradeEffect, UpgradeSection
from attncheck.report.lines import STYLES, Line, text_line
from attncheck.report.markdown_text import escape_line, format_table
from attncheck.report.sections import SectionView
from attncheck.report.testcases import TestCase

MARKS = {"same": "ok", "worse": "fail", "not_run": "-"}
STAGE_WORDS = {"same": "as before", "worse": "worse", "not_run": "not run"}
BASIS_WORDS = {
    "predicted": "predicted from tables and metadata; nothing was run",
    "read": "read in the new code; nothing was run",
    "tried": "tried in a temporary folder; the environment is as it was",
}


def rows(report: Report, section: UpgradeSection, verbose: bool, width: int) -> Iterator[Line]:
    """Yield what would move, how that was judged, the stages of a trial, what is mended and what is not known."""
    for package in section.packages:
        yield Line(((f"{package.name}  ", "bold"),), describe_package(package))
    yield text_line(describe_outcome(section))
    for stage in section.stages:
        mark = MARKS[stage.outcome]
        yield Line(((f"{mark:<8}", STYLES[mark]), (f"{stage.name:<10}", "bold")), describe_stage(stage))
    for effect in section.mends:
        yield Line((("mends  ", "bold green"),), describe_effect(effect))
    for text in section.refuted:
        yield Line((("refuted  ", "dim"),), text)
    for text in section.not_known:
        yield Line((("not known  ", "dim"),), text)
    for text in section.lost:
        yield Line((("lost  ", STYLES["lost"]),), text)


def markdown(report: Report, section: UpgradeSection) -> Iterator[str]:
    """Yield the same as a table and lists."""
    yield from format_table(
        ("package", "installed", "would be", ""),
        [(p.name, p.before or "not installed", p.after, describe_origin(p)) for p in section.packages],
    )
    yield from ("", escape_line(describe_outcome(section)), "")
    lines = (
        *(f"{stage.name}: {describe_stage(stage)}" for stage in section.stages),
        *(f"mends {describe_effect(effect)}" for effect in section.mends),
        *(f"refuted: {text}" for text in section.refuted),
        *(f"not known: {text}" for text in section.not_known),
        *(f"lost: {text}" for text in section.lost),
    )
    yield from (f"- {escape_line(line)}" for line in lines)
    yield ""


def testcases(report: Report, section: UpgradeSection) -> Iterator[TestCase]:
    """Yield a test case for each stage of a trial that broke nothing; findings are test cases of their own."""
    for stage in section.stages:
        if stage.outcome != "worse":
            outcome = "passed" if stage.outcome == "same" else "skipped"
            yield TestCase(stage.name, "upgrade", outcome, "" if outcome == "passed" else stage.detail, stage.detail)


def describe_package(package: ChangedPackage) -> str:
    """Return in a line how a package would move: "5.17.0 → 5.23.0 (transformers-5.23.0-py3-none-any.whl)"."""
    origin = describe_origin(package)
    if package.before == package.after:
        return f"{package.after} is installed already"
    return f"{package.before or 'not installed'} → {package.after}" + (f" ({origin})" if origin else "")


def describe_origin(package: ChangedPackage) -> str:
    """Return the wheel that was read, or that a package only moves along."""
    return package.wheel if package.named else "moves along"


def describe_outcome(section: UpgradeSection) -> str:
    """Return in a line what was found, and by which means."""
    if all(package.before == package.after for package in section.packages):
        return "nothing would change"
    count = len(section.breaks)
    breaks = f"{count} finding{'s' * (count != 1)} that {'are' if count != 1 else 'is'} not there today"
    others = f"{len(section.mends)} mended, {section.kept} as today"
    return f"{breaks if count else 'no finding that is not there today'} · {others} · {BASIS_WORDS[section.basis]}"


def describe_stage(stage: TrialStage) -> str:
    """Return in a line how a stage of the trial came out."""
    if stage.name == "install" and stage.outcome == "same":
        return stage.detail
    return f"{STAGE_WORDS[stage.outcome]}: {stage.detail}"


def describe_effect(effect: UpgradeEffect) -> str:
    """Return a finding that goes, in a line."""
    return f"{effect.code} {effect.message}"


VIEW = SectionView(rows=rows, markdown=markdown, testcases=testcases)
