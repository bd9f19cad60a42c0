"""An upgrade: what would move, what the trial showed, what it mends and what is not known."""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.report import Report
from attncheck.core.results.upgrade import UpgradeSection
from attncheck.report.html_page.elements import Markup, badge, bullet_list, element
from attncheck.report.html_page.panels import Panel
from attncheck.report.html_page.tables import cell, make_table, row_head, text_table
from attncheck.report.sections.upgrade import MARKS, describe_effect, describe_origin, describe_outcome, describe_stage


def show(report: Report, section: UpgradeSection) -> Iterator[Markup]:
    """Yield the packages, the outcome, the stages of the trial, and lists of the rest."""
    yield element("p", describe_outcome(section))
    packages = [(p.name, p.before or "not installed", p.after, describe_origin(p)) for p in section.packages]
    yield text_table("What would move", ("package", "installed", "would be", ""), packages)
    stages = [
        (row_head(stage.name), cell(badge(MARKS[stage.outcome])), cell(describe_stage(stage)))
        for stage in section.stages
    ]
    if stages:
        yield make_table("The trial", ("stage", "", "outcome"), stages)
    lines = (
        *(f"mends {describe_effect(effect)}" for effect in section.mends),
        *(f"refuted: {text}" for text in section.refuted),
        *(f"not known: {text}" for text in section.not_known),
        *(f"lost: {text}" for text in section.lost),
    )
    if lines:
        yield bullet_list(list(lines))


PANEL = Panel("Upgrade", show)
