"""Lint: how each launch was read, its correction as a diff, and the command to copy."""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.io.outgoing import MASKED_LAUNCH
from attncheck.core.report import Report
from attncheck.core.results.lint import LintSection
from attncheck.report.html_page.elements import Markup, badge, code_block, element
from attncheck.report.html_page.panels import Panel
from attncheck.report.html_page.tables import cell, make_table, row_head
from attncheck.report.sections.lint import launch_rows, list_corrections


def show(report: Report, section: LintSection) -> Iterator[Markup]:
    """Yield the launches, then their corrections."""
    rows = ((row_head(text), cell(badge(mark))) for mark, text in launch_rows(report, section))
    yield make_table("Launches, as the installed framework reads them", ("launch", "state"), rows)
    for heading, text in list_corrections(section):
        title = heading[0].upper() + heading[1:]
        yield element("div", element("h3", title), code_block(text, heading), class_="fix")
    if any(MASKED_LAUNCH in launch.job.remarks for launch in section.launches):
        yield element("p", MASKED_LAUNCH)


PANEL = Panel("Launches", show)
