"""What was measured over ranks: the ring's speed beside its bound, growth of errors, the adapter, communication."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from attncheck.core.report import Report
from attncheck.core.results.collectives import Communication
from attncheck.core.results.ring import RingSection
from attncheck.core.results.ring_timings import LOCAL_FLASH, RingTiming
from attncheck.report import communication_table, ring_table
from attncheck.report.html_page.bandwidth import show_bandwidth
from attncheck.report.html_page.charts import Bar
from attncheck.report.html_page.elements import Markup, bullet_list, element, fold, paragraphs
from attncheck.report.html_page.panels import Panel
from attncheck.report.html_page.panels.parity import show_verdicts
from attncheck.report.html_page.tables import measured_table
from attncheck.report.lines import Line
from attncheck.report.sections import ring as ring_view

TEXT_WIDTH = 110  # columns of what is shown as a terminal shows it
MARKS = "a mark in a bar is what the links and the device allow"


def show(report: Report, section: RingSection) -> Iterator[Markup]:
    """Yield the timings with bars and what follows from them, then the rest as a terminal shows it."""
    measured_on = section.measured_on
    if measured_on.device:
        parts = [f"{measured_on.ring_size} × {measured_on.name or measured_on.device}", f"torch {measured_on.torch}"]
        parts += ["flash-attn's kernels emulated in plain torch: times say nothing of a GPU"] * measured_on.emulated
        yield element("p", " · ".join(parts))
    for title, timings in ring_table.timing_tables(section):
        rows = [ring_table.make_row(f"{t.title}, {t.seqlen} tokens a rank", t) for t in timings]
        yield measured_table(title, "scheme", ring_table.COLUMNS, rows, _make_bars(timings))
    if section.timings:
        yield bullet_list(section.conclusions)
        yield paragraphs([*ring_table.describe_signs(section), MARKS], "dim")
    without_timings = replace(section, timings=(), conclusions=(), communication=Communication())
    lines = ring_view.beside(replace(report, sections={}), without_timings, True, TEXT_WIDTH)
    yield from _show_lines(lines, "Growth of errors and the adapter")
    communication = section.communication
    if communication.world_size:
        yield from show_bandwidth(communication)
        name = "Communication: every exchange, and each rank"
        yield fold(name, *_show_lines(communication_table.format_exchanges(communication, True, TEXT_WIDTH), name))
    if section.verdicts:
        yield fold("Parity of the shape that was timed", *show_verdicts(section.backends, section.verdicts))


def _show_lines(lines: Iterable[Line], name: str) -> Iterator[Markup]:
    """Yield lines as a terminal shows them, nothing without any."""
    text = "\n".join("".join(part for part, _ in line.head) + line.text for line in lines).strip("\n")
    if text:
        yield element("pre", text, class_="scroll", tabindex=0, role="region", aria_label=name)


def _make_bars(timings: Sequence[RingTiming]) -> dict[str, list[Bar | None]]:
    fastest = max((timing.iterations_per_s for timing in timings), default=0.0) or 1.0

    def make_bar(timing: RingTiming, share: float, mark: float = 0.0) -> Bar | None:
        if timing.outcome != "ok" or not share:
            return None
        style = "none" if timing.backend == LOCAL_FLASH else "plain" if timing.correct == "pass" else "bad"
        return Bar(share, style, mark)

    return {
        "iter/s": [make_bar(timing, timing.iterations_per_s / fastest) for timing in timings],
        "of flash/n": [make_bar(timing, timing.efficiency, timing.achievable) for timing in timings],
        "reached": [make_bar(timing, timing.reached) for timing in timings],
    }


PANEL = Panel("Over ranks", show)
