"""The report as one JSON document; `attncheck schema` prints its schema."""

from attncheck.report import document
from attncheck.report.formats import Format, Report


def render(report: Report, verbose: bool) -> str:
    """Return the report as JSON; it always contains everything, so `verbose` changes nothing."""
    return document.dumps(report) + "\n"


FORMAT = Format(render, "json")
