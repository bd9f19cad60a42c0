"""How each section of a report is shown: one file for each section, of the same name, holding one `VIEW`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from attncheck.core.report import Report
from attncheck.report.lines import Line
from attncheck.report.testcases import TestCase


def show_nothing(*arguments: Any) -> Iterator[Any]:
    """Yield nothing: the default of a view's functions."""
    return iter(())


@dataclass(frozen=True)
class SectionView:
    """How a section is shown. Each function gets the report and the section.

    `rows(report, section, verbose, width)` yields the lines above the findings in the report of the section's own
    command; `beside`, with the same arguments, those in the report of another command, such as communication in
    parity's. `below(report, section)` yields the lines under the findings, which are to be pasted. `markdown` yields
    lines of Markdown; `testcases`, and `properties` as (name, value), are for JUnit. A section that `covers` the others
    summarises their results: in text they are shown beside it only with --verbose.
    """

    rows: Callable[[Report, Any, bool, int], Iterator[Line]] = show_nothing
    beside: Callable[[Report, Any, bool, int], Iterator[Line]] = show_nothing
    below: Callable[[Report, Any], Iterator[Line]] = show_nothing
    markdown: Callable[[Report, Any], Iterator[str]] = show_nothing
    testcases: Callable[[Report, Any], Iterator[TestCase]] = show_nothing
    properties: Callable[[Report, Any], Iterator[tuple[str, str]]] = show_nothing
    covers: bool = False


def load_view(name: str) -> SectionView:
    """Return the view of the section called `name`."""
    view: SectionView = importlib.import_module(f"{__name__}.{name}").VIEW
    return view
