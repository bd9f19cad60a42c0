"""Measurements over ranks beside parity and determinism: timings, growth of errors, the adapter, communication."""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.report import Report
from attncheck.core.results.error_growth import describe_growth
from attncheck.core.results.ring import RingSection
from attncheck.core.shares import format_share
from attncheck.report import bandwidth_table, communication_table, ring_table
from attncheck.report.lines import Line, column_line, style_of_answer, text_line
from attncheck.report.markdown_text import escape_line, escape_markdown, format_table
from attncheck.report.sections import SectionView
from attncheck.report.sections.parity import verdict_testcases
from attncheck.report.testcases import TestCase, make_testcase, timing_answer


def beside(report: Report, section: RingSection, verbose: bool, width: int) -> Iterator[Line]:
    """Yield the measurements that a command over ranks makes beside its own section.

    Communication is shown where nothing else was computed over the ranks; else only with --verbose, because its faults
    are findings.
    """
    if section.timings:
        yield from ring_table.format_lines(section, width)
    yield from _format_growth(section)
    yield from _format_adapter(section)
    computed = section.timings or report.verdicts
    if section.communication.world_size and (verbose or not computed):
        yield Line()
        yield from communication_table.format_lines(section.communication, verbose, width)


def _format_growth(section: RingSection) -> Iterator[Line]:
    """Yield how errors grow with the ring size."""
    if section.growth:
        yield Line()
        yield text_line("the same problem on every ring size, its worst tensor; an ideal kernel has z_rms 1")
    for growth in section.growth:
        yield column_line((f"{growth.backend} ({growth.layout}) ", ""), (describe_growth(growth), "dim"))


def _format_adapter(section: RingSection) -> Iterator[Line]:
    """Yield the adapter's verdicts, and the names put back into transformers so that the package could be imported."""
    if section.adapter:
        yield Line()
        yield text_line("ring-flash-attn's Hugging Face adapter on small models, by attn_implementation")
    names = [f"{verdict.implementation}, {verdict.shape.replace('_', ' ')}" for verdict in section.adapter]
    name_width = max(map(len, names), default=0) + 2
    for name, verdict in zip(names, section.adapter):
        yield column_line(
            (f"{verdict.answer:<9}", style_of_answer(verdict.answer)),
            (f"{name:<{name_width}}", ""),
            (verdict.reason, "dim"),
        )
    if section.measured_on.shimmed_names and not section.timings:
        modules = ", ".join(section.measured_on.shimmed_names)
        yield Line()
        yield text_line(
            f"ring-flash-attn was imported with {modules} put back into transformers, in the measuring process only"
        )


def markdown(report: Report, section: RingSection) -> Iterator[str]:
    """Yield the timings as tables and the conclusions from them, then the bandwidth between ranks or nodes."""
    if section.timings:
        yield from _write_timings(section)
    yield from bandwidth_table.markdown(section.communication)


def _write_timings(section: RingSection) -> Iterator[str]:
    measured_on = section.measured_on
    device = f"{measured_on.ring_size} × {measured_on.name or measured_on.device}"
    yield escape_line(f"{device} · torch {measured_on.torch}")
    for title, timings in ring_table.timing_tables(section):
        yield from ("", f"## {escape_markdown(title)}", "")
        yield from format_table(
            ("scheme", "tokens a rank", *(column.title for column in ring_table.COLUMNS)),
            [
                (t.title, str(t.seqlen), *(ring_table.format_cells(t) if t.outcome == "ok" else (t.reason,)))
                for t in timings
            ],
        )
    yield ""
    yield from (f"{escape_line(line)}  " for line in ring_table.describe_signs(section))
    yield ""
    yield from (f"- {escape_line(line)}" for line in section.conclusions)
    yield ""


def testcases(report: Report, section: RingSection) -> Iterator[TestCase]:
    """Yield parity's test cases, then one for each timing; its time is the median call's."""
    seconds = {(run.backend, run.case.name): run.call_ms / 1000 for run in section.runs}
    yield from verdict_testcases(report, section.verdicts, seconds)
    for timing in section.timings:
        name = f"{timing.table} {timing.passes} {timing.seqlen} tokens a rank"
        text = f"{format_share(timing.efficiency)} of flash / n" if timing.efficiency else ""
        answer = timing_answer(timing.outcome, timing.correct)
        yield make_testcase(report, name, f"bench: {timing.title}", answer, timing.reason, text, timing.watch.ms / 1000)


VIEW = SectionView(beside=beside, markdown=markdown, testcases=testcases)
