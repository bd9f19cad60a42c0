"""The report as one HTML page that opens from disk: verdict, findings with fixes to copy, charts, environment."""

from attncheck.report.formats import Format, Report


def render(report: Report, verbose: bool) -> str:
    """Return the page; `verbose` also lists the inconclusive rules."""
    from attncheck.report.html_page.page import make_page

    return make_page(report, verbose)


FORMAT = Format(render, "xml")
