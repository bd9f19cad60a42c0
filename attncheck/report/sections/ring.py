"""What was measured over ranks beside parity and determinism: timings, growth of errors, the adapter, communication."""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.report import Report
from attncheck.core.results.error_growth import describe_growth
from attncheck.core.results.ring import RingSection
from attncheck.report import communication_table, ring_table
from attncheck.report.lines import Line, columns, sentence, style_of
from attncheck.report.markdown_text import escaped, table
from attncheck.report.sections import SectionView
from attncheck.report.sections.parity import verdict_testcases
from attncheck.report.testcases import TestCase, measurement, timing_answer


def beside(report: Report, section: RingSection, verbose: bool, width: int) -> Iterator[Line]:
    """Yield what a command over ranks has measured beside its own section.

    Communication is shown where nothing else was computed over the ranks; else only where it is verbose: what is amiss
    is a finding.
    """
    if section.timings:
        yield from ring_table.rows(section, width)
    yield from _growth(section)
    yield from _adapter(section)
    computed = section.timings or report.verdicts
    if section.communication.world_size and (verbose or not computed):
        yield Line()
        yield from communication_table.rows(section.communication, verbose, width)


def _growth(section: RingSection) -> Iterator[Line]:
    """Yield how errors grow with the ring."""
    if section.growth:
        yield Line()
        yield sentence("the same problem on every ring size, its worst tensor; an ideal kernel has z_rms 1")
    for growth in section.growth:
        yield columns((f"{growth.backend} ({growth.layout}) ", ""), (describe_growth(growth), "dim"))


def _adapter(section: RingSection) -> Iterator[Line]:
    """Yield what the adapter does, and what was put back so that the package could be imported at all."""
    if section.adapter:
        yield Line()
        yield sentence("ring-flash-attn's Hugging Face adapter on small models, by attn_implementation")
    for verdict in section.adapter:
        name = f"{verdict.implementation}, {verdict.shape.replace('_', ' ')}"
        yield columns((f"{verdict.answer:<8}", style_of(verdict.answer)), (f"{name:<34}", ""), (verdict.reason, "dim"))
    if section.measured_on.shimmed_names and not section.timings:
        names = ", ".join(section.measured_on.shimmed_names)
        yield Line()
        yield sentence(
            f"ring-flash-attn was imported with {names} put back into transformers, in the measuring process only"
        )


def markdown(report: Report, section: RingSection) -> Iterator[str]:
    """Yield the timings, and what they allow to say."""
    if not section.timings:
        return
    on = section.measured_on
    yield f"{on.ring_size} × {on.name or on.device} · torch {on.torch}"
    for title, timings in ring_table.tables(section):
        yield from ("", f"## {title}", "")
        yield from table(
            ("scheme", "tokens a rank", *ring_table.COLUMNS),
            [(t.title, str(t.seqlen), *(ring_table.figures(t) if t.outcome == "ok" else (t.reason,))) for t in timings],
        )
    yield ""
    yield from (f"- {escaped(line)}" for line in section.conclusions)
    yield ""


def testcases(report: Report, section: RingSection) -> Iterator[TestCase]:
    """Yield parity's test cases, then one for each timing; its time is the median call's."""
    seconds = {(run.backend, run.case.name): run.call_ms / 1000 for run in section.runs}
    yield from verdict_testcases(report, section.verdicts, seconds)
    for timing in section.timings:
        name = f"{timing.table} {timing.passes} {timing.seqlen} tokens a rank"
        text = f"efficiency {timing.efficiency:.3f}" if timing.outcome == "ok" else ""
        answer = timing_answer(timing.outcome, timing.correct)
        yield measurement(report, name, f"bench: {timing.title}", answer, timing.reason, text, timing.watch.ms / 1000)


VIEW = SectionView(beside=beside, markdown=markdown, testcases=testcases)
