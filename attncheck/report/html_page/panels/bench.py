"""Bench: a table of timings with bars for each kind of pass, and the recommendation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attncheck.core.report import Report
from attncheck.core.results.bench import BenchSection
from attncheck.core.results.timings import Timing
from attncheck.report.html_page.charts import Bar
from attncheck.report.html_page.elements import Markup, code_block, element, fold, paragraphs
from attncheck.report.html_page.panels import Panel
from attncheck.report.html_page.panels.parity import show_verdicts
from attncheck.report.html_page.tables import measured_table
from attncheck.report.sections.bench import (
    COLUMNS,
    LEGEND,
    ORDER_ONLY,
    describe_caveats,
    describe_device,
    describe_recommendation,
    is_order_only,
    make_row,
    timing_tables,
)

BARS = "bars: green is right and the same bits every time, blue is right, red is not right or not to be told"


def show(report: Report, section: BenchSection) -> Iterator[Markup]:
    """Yield the recommendation, the tables, what limits them, and parity's verdicts on the cases."""
    yield paragraphs(describe_device(section))
    if is_order_only(section):
        yield element("p", ORDER_ONLY)
    for item in section.recommendations:
        sentence = describe_recommendation(item)
        setting = [code_block(item.setting, sentence)] if item.choice and item.setting else []
        yield element(
            "div", element("p", sentence[:1].upper() + sentence[1:], class_="message"), *setting, class_="fix"
        )
    for title, timings in timing_tables(section):
        rows = [make_row(timing) for timing in timings]
        yield measured_table(title[0].upper() + title[1:], "backend", COLUMNS, rows, _make_bars(timings))
    yield paragraphs([LEGEND, BARS, *describe_caveats(section)], "dim")
    if section.verdicts:
        yield fold("Parity of the cases that were timed", *show_verdicts(section.backends, section.verdicts))


def _make_bars(timings: Sequence[Timing]) -> dict[str, list[Bar | None]]:
    slowest = max((timing.median_ms for timing in timings if timing.outcome == "ok"), default=0.0)

    def make_bar(timing: Timing, share: float) -> Bar | None:
        return Bar(share, style_of_timing(timing)) if timing.outcome == "ok" and share else None

    return {
        "ms": [make_bar(timing, timing.median_ms / slowest if slowest else 0.0) for timing in timings],
        "of matmul": [make_bar(timing, timing.matmul_share) for timing in timings],
    }


def style_of_timing(timing: Timing) -> str:
    """Return the class of a timing's bars."""
    if timing.answer != "pass":
        return "bad"
    return "ok" if timing.reproducible else "plain"


PANEL = Panel("Bench", show)
