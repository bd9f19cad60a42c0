"""The gate: its checks, and how each ended."""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.report import Report
from attncheck.core.results.gate import GateSection
from attncheck.report.html_page.elements import Markup, badge, element
from attncheck.report.html_page.panels import Panel
from attncheck.report.html_page.tables import cell, make_table, row_head
from attncheck.report.sections.gate import describe_level, stage_rows


def show(report: Report, section: GateSection) -> Iterator[Markup]:
    """Yield the level, if there is one, and the checks."""
    if section.level:
        yield element("p", describe_level(section))
    rows = ((row_head(check), cell(badge(mark)), cell(text)) for mark, check, text in stage_rows(report, section))
    yield make_table("Checks of the gate", ("check", "state", "how it ended"), rows)


PANEL = Panel("Gate", show)
