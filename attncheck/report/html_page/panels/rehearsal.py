"""Rehearsed launches: what was asked, what ran, the answers on one page, and the launch that trains right."""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.report import Report
from attncheck.core.results.rehearsal import RehearsalSection
from attncheck.report.html_page.elements import Markup, bullet_list, code_block, element, fold
from attncheck.report.html_page.panels import Panel
from attncheck.report.html_page.panels.smoke import show_results
from attncheck.report.html_page.room import clip
from attncheck.report.sections.rehearsal import describe_launch


def show(report: Report, section: RehearsalSection) -> Iterator[Markup]:
    """Yield each launch as it was run, then the launch that trains right."""
    device = section.measured_on
    if device.device:
        yield element("p", f"{device.name or device.device} · torch {device.torch} · seed {device.seed}")
    for launch in section.launches:
        yield element("h3", clip(describe_launch(launch)))
        yield bullet_list([clip(line, 400) for line in (*launch.remarks, launch.objective)])
        yield from show_results(launch.results, f"Checks of {clip(launch.location, 100)}")
        yield fold("How it was cut", code_block(launch.diff.rstrip(), "How the launch was cut"))
    if section.mended:
        title = "The launch that trains right"
        blocks = (code_block(text.rstrip(), title) for text in section.mended)
        yield element("div", element("h3", title), *blocks, class_="fix")


PANEL = Panel("Rehearsal", show)
