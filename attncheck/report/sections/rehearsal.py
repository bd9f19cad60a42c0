"""A rehearsed launch: what was run in place of what was written, the answers, and the launch that trains right."""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.report import Report
from attncheck.core.results.rehearsal import RehearsalSection, RehearsedLaunch
from attncheck.core.results.smoke import deciding_reason, judge_result
from attncheck.report.lines import Line, column_line, text_line
from attncheck.report.markdown_text import escape_line, escape_markdown, format_code_block, format_table
from attncheck.report.sections import SectionView
from attncheck.report.sections.smoke import (
    describe_layers,
    describe_result,
    format_check_name,
    format_result,
    list_unjudged,
)
from attncheck.report.testcases import TestCase, make_testcase

MAX_PATHS = 5  # of files that are named in a line


def rows(report: Report, section: RehearsalSection, verbose: bool, width: int) -> Iterator[Line]:
    """Yield each launch that was run, for a terminal `width` columns wide."""
    for number, launch in enumerate(section.launches):
        if number:
            yield Line()
        yield text_line(describe_launch(launch))
        for remark in (*launch.remarks, *describe_isolation(launch)):
            yield text_line(f"  {remark}")
        for line in (*_summarize_layers(launch), launch.objective):
            yield column_line(("  ", ""), (line, "dim"))
        for result in launch.results:
            yield from format_result(result, verbose, width)
        if verbose:
            yield from (column_line(("    ", ""), (line, "dim")) for line in launch.diff.splitlines())


def describe_launch(launch: RehearsedLaunch) -> str:
    """Return a launch and how it was run, in one line."""
    parts = [
        f"{launch.location}: {' '.join(filter(None, (launch.framework, launch.version, launch.trainer)))}",
        f"the whole {launch.model}" if launch.full_model else f"a small {launch.model}",
        *(["its own data"] * launch.real_data),
        f"{launch.ranks} {'rank' if launch.ranks == 1 else 'ranks'}",
        f"{launch.steps} steps",
        f"{launch.seconds:.0f} s",
        *([f"with {launch.tried}"] * bool(launch.tried)),
    ]
    return " · ".join(parts)


def describe_isolation(launch: RehearsedLaunch) -> Iterator[str]:
    """Yield how the launch was isolated, and what it wrote outside its folder, or tried to."""
    isolation = launch.isolation
    if launch.command:  # it was run
        yield isolation.text
    for what, paths in (
        ("wrote outside its folder, kept from your files", isolation.written),
        ("removed outside its folder, kept from your files", isolation.removed),
        ("tried to write, denied", isolation.denied),
    ):
        if paths:
            more = f" and {len(paths) - MAX_PATHS} more" if len(paths) > MAX_PATHS else ""
            yield f"{what}: {', '.join(paths[:MAX_PATHS])}{more}"


def _summarize_layers(launch: RehearsedLaunch) -> Iterator[str]:
    """Yield what the layers were asked to run and what ran, layers alike on one line."""
    counts: dict[str, int] = {}
    for result in launch.results:
        for line in describe_layers(result):
            what = line.partition(": ")[2]
            counts[what] = counts.get(what, 0) + 1
    for what, count in counts.items():
        yield f"attention, requested → dispatched → ran: {what} in {count} {'layer' if count == 1 else 'layers'}"


def below(report: Report, section: RehearsalSection) -> Iterator[Line]:
    """Yield the launch that trains right, to paste."""
    if section.mended:
        yield Line()
        yield text_line("the launch that trains right, run the same way:")
        for text in section.mended:
            for line in text.splitlines():
                yield column_line(("    ", ""), (line, ""))


def markdown(report: Report, section: RehearsalSection) -> Iterator[str]:
    """Yield each launch with its answers, how it was cut, and the launch that trains right."""
    for launch in section.launches:
        yield from (f"## {escape_markdown(describe_launch(launch))}", "")
        for line in (*launch.remarks, *describe_isolation(launch), *_summarize_layers(launch), launch.objective):
            yield from (escape_line(line), "")
        results = [
            (
                format_check_name(result),
                judge_result(result),
                "; ".join((describe_result(result), *list_unjudged(result))),
            )
            for result in launch.results
        ]
        yield from format_table(("question", "answer", "because"), results)
        yield from ("", "How it was cut:", "", *format_code_block(launch.diff.rstrip(), "diff"), "")
    for text in section.mended:
        yield from ("## The launch that trains right", "", *format_code_block(text.rstrip()), "")


def testcases(report: Report, section: RehearsalSection) -> Iterator[TestCase]:
    """Yield a test case for each check of each launch."""
    for launch in section.launches:
        for result in launch.results:
            text = "\n".join((*result.violations[1:], *result.reservations, *result.notes))
            name = f"rehearsal: {launch.location}{f' with {launch.tried}' if launch.tried else ''}"
            yield make_testcase(
                report, result.check, name, judge_result(result), deciding_reason(result), text, result.seconds
            )


VIEW = SectionView(rows=rows, beside=rows, below=below, markdown=markdown, testcases=testcases)
