"""A comparison with a lock: what moved since it was written."""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.report import Report
from attncheck.core.results.lock import LockSection
from attncheck.report.html_page.elements import Markup, badge, bullet_list, element
from attncheck.report.html_page.panels import Panel
from attncheck.report.html_page.tables import cell, make_table, row_head
from attncheck.report.sections.lock import describe_comparison, describe_move, mark_move


def show(report: Report, section: LockSection) -> Iterator[Markup]:
    """Yield what was compared, what moved, and what could not be compared."""
    yield element("p", describe_comparison(section))
    rows = [
        (row_head(move.subject), cell(badge(mark_move(report, move))), cell(move.code), cell(describe_move(move)))
        for move in section.moves
    ]
    if rows:
        yield make_table("What moved since the lock", ("what", "severity", "code", "moved"), rows)
    left_out = [*(f"not compared: {text}" for text in section.not_compared), *(f"lost: {t}" for t in section.lost)]
    if left_out:
        yield bullet_list(left_out)


PANEL = Panel("Lock", show)
