"""How each section of a report is shown: one file a section, called like it, holding one `VIEW`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from attncheck.core.report import Report
from attncheck.report.lines import Line
from attncheck.report.testcases import TestCase


def nothing(*arguments: Any) -> Iterator[Any]:
    """Yield nothing."""
    return iter(())


@dataclass(frozen=True)
class SectionView:
    """How a section is shown. Each function gets the report and the section.

    `rows(report, section, verbose, width)` yields the lines above the findings of the command's own report; `beside`
    those in the report of another command, such as communication in parity's. `below(report, section)` yields lines
    under the findings: what is there to be pasted. `markdown` yields lines of Markdown, `testcases` and
    `properties`, (name, value), are JUnit's. A section
    that `covers` the others tells their results itself: in text they are shown only where it is verbose.
    """

    rows: Callable[[Report, Any, bool, int], Iterator[Line]] = nothing
    beside: Callable[[Report, Any, bool, int], Iterator[Line]] = nothing
    below: Callable[[Report, Any], Iterator[Line]] = nothing
    markdown: Callable[[Report, Any], Iterator[str]] = nothing
    testcases: Callable[[Report, Any], Iterator[TestCase]] = nothing
    properties: Callable[[Report, Any], Iterator[tuple[str, str]]] = nothing
    covers: bool = False


def load_view(name: str) -> SectionView:
    """Return the view of the section called `name`."""
    view: SectionView = importlib.import_module(f"{__name__}.{name}").VIEW
    return view
