"""Determinism's measurements: how many different results repeated calls gave, and since which call."""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.report import Report
from attncheck.core.results.determinism import DeterminismSection
from attncheck.core.verdicts import Repeats
from attncheck.report.columns import Column, Row, layout_table
from attncheck.report.lines import Line, column_line, text_line
from attncheck.report.sections import SectionView
from attncheck.report.sections.parity import format_heading, missing_backends, verdict_table, verdict_testcases
from attncheck.report.testcases import TestCase

MODES = {"default": "", "deterministic": "deterministic", "warn_only": "warn_only=True"}
TENSORS = ("out", "dq", "dk", "dv")
COLUMNS = (
    *(Column(tensor, 1) for tensor in TENSORS),
    Column("calls", 3),
    Column("first", 2),
    Column("ms", 4),
    Column("memory", 5),
    Column("in a batch", 1, left=True),
)


def rows(report: Report, section: DeterminismSection, verbose: bool, width: int) -> Iterator[Line]:
    """Yield the measurements for a terminal."""
    yield text_line(format_heading(section.measured_on, len({verdict.case for verdict in section.verdicts})))
    yield Line()
    yield from _repeats_table(section, verbose, width)
    yield from missing_backends(section.backends, section.verdicts, section.measured_on.ring_size > 0)


def _repeats_table(section: DeterminismSection, verbose: bool, width: int) -> Iterator[Line]:
    shown = [repeats for repeats in section.repeats if verbose or repeats.outcome != "refused"]
    yield text_line("different results among the calls, bit for bit; first: the call that first differed")
    yield from layout_table("backend", COLUMNS, [make_row(repeats) for repeats in shown], width)
    if not verbose:
        yield from _format_refusals(section)


def _format_refusals(section: DeterminismSection) -> Iterator[Line]:
    """Yield, once each, why a backend refused to be repeated."""
    ran = {repeats.backend for repeats in section.repeats if repeats.outcome != "refused"}
    reasons = {repeats.backend: repeats.reason for repeats in section.repeats if repeats.backend not in ran}
    if reasons:
        yield Line()
    for backend, reason in reasons.items():
        yield column_line(("refuses   ", "dim"), (f"{backend}: {reason}", "dim"))


def _format_name(repeats: Repeats) -> str:
    return " ".join(part for part in (repeats.backend, repeats.case.layout, MODES[repeats.mode]) if part)


def make_row(repeats: Repeats) -> Row:
    """Return the row of a case that was repeated."""
    if repeats.outcome != "ok":
        return Row(_format_name(repeats), note=(f"{repeats.outcome}: {repeats.reason}", "dim"))
    by_tensor = {difference.tensor: difference for difference in repeats.differences}
    cells: list[tuple[str, str]] = []
    for tensor in TENSORS:
        difference = by_tensor.get(tensor)
        text = str(difference.distinct) if difference else "-"
        cells.append((text, "green" if difference and difference.distinct == 1 else "yellow"))
    first_differing = [difference.first_differing for difference in repeats.differences if difference.first_differing]
    memory = f"{repeats.memory_bytes / (1 << 20):.0f} MiB" if repeats.memory_bytes else "-"
    numbers = (str(repeats.repeats), str(min(first_differing, default="-")), f"{repeats.call_ms:.2f}", memory)
    varied = [difference.tensor for difference in repeats.batch if difference.distinct > 1]
    batch = "" if not repeats.batch else f"changes {', '.join(varied)}" if varied else "invariant"
    cells += [(text, "") for text in numbers]
    return Row(_format_name(repeats), (*cells, (batch, "yellow" if varied else "dim")))


def markdown(report: Report, section: DeterminismSection) -> Iterator[str]:
    """Yield each backend's verdicts, counted."""
    yield from verdict_table(section.measured_on, section.verdicts)


def testcases(report: Report, section: DeterminismSection) -> Iterator[TestCase]:
    """Yield a test case for each verdict; its time is that of all repeats in all modes."""
    seconds: dict[tuple[str, str], float] = {}
    for repeats in section.repeats:
        key = (repeats.backend, repeats.case.name)
        seconds[key] = seconds.get(key, 0.0) + repeats.call_ms * repeats.repeats / 1000
    yield from verdict_testcases(report, section.verdicts, seconds)


VIEW = SectionView(rows=rows, markdown=markdown, testcases=testcases)
