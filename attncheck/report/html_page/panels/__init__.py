"""How each section of a report is shown on the page: one file for each section, of the same name, with its `PANEL`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from attncheck.core.report import Report
from attncheck.report.html_page.elements import Markup


@dataclass(frozen=True)
class Panel:
    """The title of a section, and what yields it: `show(report, section)`, blocks that each stand for themselves."""

    title: str
    show: Callable[[Report, Any], Iterator[Markup]]


def load_panel(name: str) -> Panel:
    """Return the panel of the section called `name`."""
    panel: Panel = importlib.import_module(f"{__name__}.{name}").PANEL
    return panel
