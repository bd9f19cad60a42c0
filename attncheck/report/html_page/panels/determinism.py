"""Determinism: how many different results repeated calls gave, in each mode, and what each mode costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from attncheck.core.report import Report
from attncheck.core.results.determinism import DeterminismSection
from attncheck.report.html_page.charts import Bar
from attncheck.report.html_page.elements import Markup, element, fold
from attncheck.report.html_page.panels import Panel
from attncheck.report.html_page.room import clip
from attncheck.report.html_page.tables import measured_table, text_table
from attncheck.report.sections.determinism import COLUMNS, make_row
from attncheck.report.sections.parity import format_heading


def show(report: Report, section: DeterminismSection) -> Iterator[Markup]:
    """Yield the table of repeated calls, and why some were refused."""
    yield element("p", format_heading(section.measured_on, len({verdict.case for verdict in section.verdicts})))
    shown = [repeats for repeats in section.repeats if repeats.outcome != "refused"]
    slowest = max((repeats.call_ms for repeats in shown), default=0.0)
    bars = [Bar(repeats.call_ms / slowest) if repeats.outcome == "ok" and slowest else None for repeats in shown]
    caption = (
        "Different results among the calls, bit for bit: 1 is the same every time; first: the call that first differed"
    )
    yield measured_table(caption, "backend", COLUMNS, [make_row(repeats) for repeats in shown], {"ms": bars})
    refused = Counter((r.backend, r.mode, r.reason) for r in section.repeats if r.outcome == "refused")
    if refused:
        rows = ((backend, mode, clip(reason, 400)) for backend, mode, reason in refused)
        yield fold(f"{len(refused)} refused", text_table("Refused", ("backend", "mode", "why"), rows))


PANEL = Panel("Determinism", show)
