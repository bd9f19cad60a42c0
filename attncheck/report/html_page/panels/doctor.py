"""Doctor: what mattered to it, and what could not be looked at; what it saw is the page's environment."""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.report import Report
from attncheck.core.results.doctor import DoctorSection
from attncheck.report.html_page.elements import Markup, bullet_list, element
from attncheck.report.html_page.panels import Panel
from attncheck.report.html_page.room import clip


def show(report: Report, section: DoctorSection) -> Iterator[Markup]:
    """Yield the needs that rules judged by, and what was lost."""
    needs = ", ".join(section.needs) or "nothing in particular"
    yield element("p", f"judged for what this environment is for: {needs}")
    if section.lost:
        yield element("p", "could not be looked at, so that nothing was found there means nothing:")
        yield bullet_list(clip(line) for line in section.lost)


PANEL = Panel("Doctor", show)
