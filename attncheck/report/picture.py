"""Draws the timings of a report as labelled bars: PNG or SVG, by the file's name.

matplotlib is optional (`attncheck[picture]`) and is imported only when a picture is asked for, after the report has
been written: it brings numpy, which nothing else here loads.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attncheck.core.errors import BadUsage
from attncheck.core.report import Report
from attncheck.core.results.bench import BenchSection
from attncheck.core.results.ring import RingSection
from attncheck.core.results.ring_timings import LOCAL_FLASH, RingTiming
from attncheck.core.shares import format_share
from attncheck.report import ring_table

FILE_FORMATS = {".png": "png", ".svg": "svg"}
REPRODUCIBLE_COLOUR, CORRECT_COLOUR, WRONG_COLOUR, MARK_COLOUR = "#72a98f", "#4c78a8", "#d62728", "#333333"
LEGEND = "green: right, and the same bits every time · blue: right · red: not right, or not to be told"
MATPLOTLIB_SETTINGS = {
    "svg.hashsalt": "attncheck",
    "svg.fonttype": "none",
    "font.size": 9.0,
    "font.family": "sans-serif",
}


@dataclass(frozen=True)
class Bar:
    """One bar: its name, length and colour, the label beside it, and its spread or a mark at what is achievable."""

    name: str
    value: float
    colour: str
    label: str
    low: float = 0.0
    high: float = 0.0
    achievable: float = 0.0


@dataclass(frozen=True)
class Panel:
    """One table: bars on one axis."""

    title: str
    unit: str
    bars: tuple[Bar, ...]


def check_paths(paths: Sequence[str]) -> None:
    """Raise `BadUsage` for a file whose ending is no picture format's, or whose folder is not there."""
    for path in paths:
        if Path(path).suffix.lower() not in FILE_FORMATS:
            raise BadUsage(f"--picture {path!r} must end in {' or '.join(FILE_FORMATS)}")
        if not Path(path).absolute().parent.is_dir():
            raise BadUsage(f"--picture {path!r}: there is no folder {Path(path).parent}")


def draw(report: Report, paths: Sequence[str]) -> None:
    """Write the pictures. Raises `BadUsage` without matplotlib, or where a file cannot be written."""
    try:
        matplotlib = importlib.import_module("matplotlib")
        figure_module = importlib.import_module("matplotlib.figure")
    except Exception as error:  # a numpy of another ABI raises what it likes
        missing = isinstance(error, ModuleNotFoundError) and error.name == "matplotlib"
        reason = "matplotlib is not installed" if missing else f"matplotlib cannot be imported: {error}".splitlines()[0]
        raise BadUsage(f"no picture was drawn: {reason}; pip install 'attncheck[picture]'") from None
    with matplotlib.rc_context(MATPLOTLIB_SETTINGS):
        for path in paths:
            figure = _draw_figure(report, figure_module.Figure)  # anew: saving one moves it about
            file_format = FILE_FORMATS[Path(path).suffix.lower()]
            buffer = io.BytesIO()
            metadata = {"Date": None} if file_format == "svg" else {"Software": None}
            figure.savefig(buffer, format=file_format, dpi=150, bbox_inches="tight", metadata=metadata)
            try:
                Path(path).write_bytes(buffer.getvalue())
            except OSError as error:
                raise BadUsage(f"cannot write {path}: {error.strerror}") from None


def make_panels(report: Report) -> tuple[Panel, ...]:
    """Return a panel for each of a report's tables of timings."""
    ring_section, bench_section = report.section(RingSection), report.section(BenchSection)
    if ring_section is not None and ring_section.timings:
        return _make_ring_panels(ring_section)
    return _make_device_panels(bench_section) if bench_section is not None else ()


def _make_device_panels(section: BenchSection) -> tuple[Panel, ...]:
    from attncheck.report.sections import bench

    panels = []
    for title, timings in bench.timing_tables(section):
        bars = []
        for timing in timings:
            if timing.outcome != "ok":
                continue
            ms, _, _, rate, share, memory, _, answer = bench.format_cells(timing)
            parts = [f"{ms} ms", f"{rate} TFLOP/s", f"{share} of matmul" * (share != "-"), memory * (memory != "-")]
            parts += [
                f"parity: {answer}" * (answer != "pass"),
                f"{', '.join(timing.varied)} vary" * bool(timing.varied),
            ]
            colour = (
                WRONG_COLOUR if answer != "pass" else REPRODUCIBLE_COLOUR if timing.reproducible else CORRECT_COLOUR
            )
            label = " · ".join(filter(None, parts))
            bars.append(Bar(bench.format_name(timing), timing.median_ms, colour, label, timing.p10_ms, timing.p90_ms))
        panels.append(Panel(title, "ms (bars: median, whiskers: 10 % to 90 %)", tuple(bars)))
    return tuple(panel for panel in panels if panel.bars)


def _make_ring_panels(section: RingSection) -> tuple[Panel, ...]:
    panels = []
    for title, timings in ring_table.timing_tables(section):
        bars = tuple(
            _make_ring_bar(timing) for timing in timings if timing.outcome == "ok" and timing.backend != LOCAL_FLASH
        )
        panels.append(Panel(title, "% of flash-attn / ring size (mark: achievable)", bars))
    return tuple(panel for panel in panels if panel.bars)


def _make_ring_bar(timing: RingTiming) -> Bar:
    name = f"{timing.title}, {timing.seqlen} tokens a rank"
    label = f"{timing.iterations_per_s:.4g} it/s · {format_share(timing.efficiency)}"
    label += f" · parity: {timing.correct}" * (timing.correct != "pass")
    colour = CORRECT_COLOUR if timing.correct == "pass" else WRONG_COLOUR
    return Bar(name, 100.0 * timing.efficiency, colour, label, achievable=100.0 * timing.achievable)


def _draw_figure(report: Report, figure_class: Any) -> Any:
    panels = make_panels(report)
    heights = [0.6 + 0.32 * len(panel.bars) for panel in panels] or [0.5]
    figure = figure_class(figsize=(9.5, 1.0 + sum(heights)), layout="constrained")
    measured_on = report.device
    ranks = f"{measured_on.ring_size} × " if measured_on.ring_size else ""
    figure.suptitle(
        f"attncheck bench · {ranks}{measured_on.name or measured_on.device} · torch {measured_on.torch}", fontsize=11
    )
    if not panels:
        figure.text(0.5, 0.4, "nothing could be timed", ha="center")
        return figure
    subplots = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)
    for axes, panel in zip(subplots[:, 0], panels):
        _draw_panel(axes, panel)
    figure.supxlabel("\n".join([LEGEND, *_list_conclusions(report)]), fontsize=8, ha="left", x=0.01)
    return figure


def _list_conclusions(report: Report) -> list[str]:
    from attncheck.report.sections.bench import describe_recommendation

    ring_section, bench_section = report.section(RingSection), report.section(BenchSection)
    if ring_section is not None and ring_section.timings:
        return list(ring_section.conclusions)
    if bench_section is None:
        return []
    return [describe_recommendation(recommendation) for recommendation in bench_section.recommendations]


def _draw_panel(axes: Any, panel: Panel) -> None:
    positions = list(range(len(panel.bars)))
    longest = max(max(bar.value, bar.high, bar.achievable) for bar in panel.bars) or 1.0
    axes.barh(positions, [bar.value for bar in panel.bars], color=[bar.colour for bar in panel.bars], height=0.7)
    for position, bar in zip(positions, panel.bars):
        if bar.high:
            axes.plot([bar.low, bar.high], [position, position], color=MARK_COLOUR, linewidth=1.0)
        if bar.achievable:
            axes.plot(
                [bar.achievable, bar.achievable], [position - 0.4, position + 0.4], color=MARK_COLOUR, linewidth=1.5
            )
        axes.text(
            max(bar.value, bar.high, bar.achievable) + longest * 0.01, position, bar.label, va="center", fontsize=8
        )
    axes.set_yticks(positions, [bar.name for bar in panel.bars])
    axes.invert_yaxis()
    axes.set_xlim(0.0, longest * 1.75)
    axes.set_title(panel.title, loc="left", fontsize=9)
    axes.set_xlabel(panel.unit, fontsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
