"""The report as one JSON document, whose shape `attncheck/report.schema.json` fixes."""

from __future__ import annotations

from attncheck.core import codec
from attncheck.core.report import Report
from attncheck.report.formats import Renderer


def render(report: Report, verbose: bool) -> str:
    """Return the report as JSON; it always holds everything, so `verbose` changes nothing."""
    return codec.dumps(report) + "\n"


RENDERER = Renderer("json", render)
