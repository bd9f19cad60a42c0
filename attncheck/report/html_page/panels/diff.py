"""Two environments: both sides, and the facts that differ, the likeliest explanation first."""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.report import Report
from attncheck.core.results.diff import DiffSection
from attncheck.report.html_page.elements import Markup, bullet_list, element
from attncheck.report.html_page.panels import Panel
from attncheck.report.html_page.tables import text_table
from attncheck.report.sections.diff import describe_outcome, describe_side, describe_subject


def show(report: Report, section: DiffSection) -> Iterator[Markup]:
    """Yield the sides, the outcome, and what differs."""
    yield bullet_list([f"A: {describe_side(section.a)}", f"B: {describe_side(section.b)}"])
    yield element("p", describe_outcome(section))
    rows = [(describe_subject(d), d.a, d.b, ", ".join(d.explains) or d.relation) for d in section.differences]
    if rows:
        yield text_table("Facts that differ", ("what differs", "A", "B", "named by"), rows)
    left_out = [*(f"not judged: {text}" for text in section.not_judged), *(f"lost: {t}" for t in section.lost)]
    if left_out:
        yield bullet_list(left_out)


PANEL = Panel("Two environments", show)
