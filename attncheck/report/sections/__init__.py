"""How each section of a report is shown: one file per section, with the same name and one `VIEW`."""

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from attncheck.core.report import ANSWERS, FAIL_FACTOR, Answer, BackendState, MeasuredOn, Repeats, Report, Run, Verdict
from attncheck.report.blocks import (
    Bar,
    Block,
    Bullets,
    Code,
    Curve,
    Fold,
    Heading,
    Items,
    Marks,
    Paragraph,
    Table,
    make_table,
    style_of_answer,
    text_rows,
    text_table,
)
from attncheck.report.columns import Column, Row
from attncheck.report.testcases import TestCase, make_testcase, timing_answer

__all__ = [
    "ANSWERS",
    "FAIL_FACTOR",
    "NOT_CHECKED",
    "Answer",
    "BackendState",
    "Bar",
    "Block",
    "Bullets",
    "Code",
    "Column",
    "Curve",
    "Fold",
    "Heading",
    "Items",
    "Marks",
    "MeasuredOn",
    "Paragraph",
    "Repeats",
    "Report",
    "Row",
    "Run",
    "Table",
    "TestCase",
    "Verdict",
    "make_table",
    "make_testcase",
    "style_of_answer",
    "text_rows",
    "text_table",
    "timing_answer",
]

NOT_CHECKED = "not checked: "  # in a section's verdict: without findings, the report is open


def show_nothing(*arguments: Any) -> Iterator[Any]:
    """Yield nothing: the default of a view's functions."""
    return iter(())


def leave_open(*arguments: Any) -> str:
    """Return "": the findings are the verdict."""
    return ""


@dataclass(frozen=True)
class SectionView:
    """How a section is shown, and its `title` on the page. Each function receives the report and the section.

    `blocks` yields what comes before the findings, `below` what follows them, ready to paste. `verdict` returns the
    section's answer in one sentence, for its command's report. `testcases`, and `properties` as (name, value),
    are for JUnit. A section that `covers` the others summarises them: text shows their blocks only with --verbose.
    One that `leads` is above the findings on the page too.
    """

    title: str
    blocks: Callable[[Report, Any], Iterator[Block]] = show_nothing
    below: Callable[[Report, Any], Iterator[Block]] = show_nothing
    verdict: Callable[[Report, Any], str] = leave_open
    testcases: Callable[[Report, Any], Iterator[TestCase]] = show_nothing
    properties: Callable[[Report, Any], Iterator[tuple[str, str]]] = show_nothing
    covers: bool = False
    leads: bool = False


def load_view(name: str) -> SectionView:
    """Return the view of the section called `name`."""
    view: SectionView = importlib.import_module(f"{__name__}.{name}").VIEW
    return view


def load_views(report: Report) -> tuple[tuple[SectionView, Any], ...]:
    """Return the sections of a report with their views, those that cover others first."""
    views = [(load_view(name), section) for name, section in report.sections.items()]
    return tuple(sorted(views, key=lambda pair: not pair[0].covers))
