"""Predicted rings: what they rest on, the schemes with their times, the answers."""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.report import Report
from attncheck.core.results.prediction import PredictionSection
from attncheck.report.html_page.charts import Bar
from attncheck.report.html_page.elements import Markup, bullet_list
from attncheck.report.html_page.panels import Panel
from attncheck.report.html_page.tables import measured_table
from attncheck.report.sections.prediction import (
    COLUMNS,
    describe_limits,
    describe_signs,
    describe_sources,
    make_row,
    prediction_tables,
)


def show(report: Report, section: PredictionSection) -> Iterator[Markup]:
    """Yield the answers, the tables with the efficiency as a bar, and what the numbers mean."""
    yield bullet_list(section.conclusions)
    for title, rows in prediction_tables(section):
        bars = {"of flash/n": [Bar(row.efficiency) if row.outcome == "ok" else None for _, row in rows]}
        yield measured_table(title, "scheme", COLUMNS, [make_row(name, row) for name, row in rows], bars)
        yield bullet_list([line.strip() for line in describe_limits(rows)])
    yield bullet_list([*describe_sources(section), *describe_signs(section)])


PANEL = Panel("Predicted rings", show)
