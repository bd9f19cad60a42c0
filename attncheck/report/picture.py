"""Draws the timings of a report as bars with their figures: PNG or SVG, by the file's name.

matplotlib is optional (`attncheck[picture]`) and is imported only when a picture is asked for, after everything else
has been told: it brings numpy, which nothing else here loads.
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
from attncheck.core.results.ring_timings import FLASH, RingTiming
from attncheck.report import ring_table

KINDS = {".png": "png", ".svg": "svg"}
SURE, RIGHT, WRONG, BEST = "#72a98f", "#4c78a8", "#d62728", "#333333"
COLOURS = "green: right, and the same bits every time · blue: right · red: not right, or not to be told"
SETTINGS = {"svg.hashsalt": "attncheck", "svg.fonttype": "none", "font.size": 9.0, "font.family": "sans-serif"}


@dataclass(frozen=True)
class Bar:
    """One bar: its name, length and colour, the figures written beside it, and its spread or a mark at its best."""

    name: str
    value: float
    colour: str
    figures: str
    low: float = 0.0
    high: float = 0.0
    best: float = 0.0


@dataclass(frozen=True)
class Panel:
    """One table: bars on one axis."""

    title: str
    unit: str
    bars: tuple[Bar, ...]


def check(paths: Sequence[str]) -> None:
    """Raise `BadUsage` for a file whose name tells no kind of picture, or whose folder is not there."""
    for path in paths:
        if Path(path).suffix.lower() not in KINDS:
            raise BadUsage(f"--picture {path!r} must end in {' or '.join(KINDS)}")
        if not Path(path).absolute().parent.is_dir():
            raise BadUsage(f"--picture {path!r}: there is no folder {Path(path).parent}")


def draw(report: Report, paths: Sequence[str]) -> None:
    """Write the pictures. Raises `BadUsage` without matplotlib, or where a file cannot be written."""
    try:
        matplotlib = importlib.import_module("matplotlib")
        figures = importlib.import_module("matplotlib.figure")
    except Exception as error:  # a numpy of another ABI raises what it likes
        missing = isinstance(error, ModuleNotFoundError) and error.name == "matplotlib"
        why = "matplotlib is not installed" if missing else f"matplotlib cannot be imported: {error}".splitlines()[0]
        raise BadUsage(f"no picture was drawn: {why}; pip install 'attncheck[picture]'") from None
    with matplotlib.rc_context(SETTINGS):
        for path in paths:
            figure = _figure(report, figures.Figure)  # anew: saving one moves it about
            kind = KINDS[Path(path).suffix.lower()]
            buffer = io.BytesIO()
            dated = {"Date": None} if kind == "svg" else {"Software": None}
            figure.savefig(buffer, format=kind, dpi=150, bbox_inches="tight", metadata=dated)
            try:
                Path(path).write_bytes(buffer.getvalue())
            except OSError as error:
                raise BadUsage(f"cannot write {path}: {error.strerror}") from None


def panels(report: Report) -> tuple[Panel, ...]:
    """Return what is drawn of a report: a panel for each of its tables."""
    ring, bench = report.section(RingSection), report.section(BenchSection)
    if ring is not None and ring.timings:
        return _ring_panels(ring)
    return _device_panels(bench) if bench is not None else ()


def _device_panels(section: BenchSection) -> tuple[Panel, ...]:
    from attncheck.report.sections import bench as timings

    found = []
    for title, members in timings.timing_tables(section):
        bars = []
        for timing in members:
            if timing.outcome != "ok":
                continue
            ms, _, _, rate, share, memory, _, answer = timings.cells(timing)
            parts = [f"{ms} ms", f"{rate} TFLOP/s", f"{share} of matmul" * (share != "-"), memory * (memory != "-")]
            parts += [
                f"parity: {answer}" * (answer != "pass"),
                f"{', '.join(timing.varied)} vary" * bool(timing.varied),
            ]
            colour = WRONG if answer != "pass" else SURE if timing.reproducible else RIGHT
            words = " · ".join(filter(None, parts))
            bars.append(Bar(timings.name_of(timing), timing.median_ms, colour, words, timing.p10_ms, timing.p90_ms))
        found.append(Panel(title, "ms (bars: median, whiskers: 10 % to 90 %)", tuple(bars)))
    return tuple(panel for panel in found if panel.bars)


def _ring_panels(section: RingSection) -> tuple[Panel, ...]:
    found = []
    for title, timings in ring_table.tables(section):
        bars = tuple(_ring_bar(timing) for timing in timings if timing.outcome == "ok" and timing.backend != FLASH)
        found.append(Panel(title, "% of flash-attn / ring size (mark: achievable)", bars))
    return tuple(panel for panel in found if panel.bars)


def _ring_bar(timing: RingTiming) -> Bar:
    name = f"{timing.title}, {timing.seqlen} tokens a rank"
    figures = f"{timing.iterations_per_s:.4g} it/s · {100 * timing.efficiency:.1f} %"
    figures += f" · parity: {timing.correct}" * (timing.correct != "pass")
    colour = RIGHT if timing.correct == "pass" else WRONG
    return Bar(name, 100.0 * timing.efficiency, colour, figures, best=100.0 * timing.achievable)


def _figure(report: Report, make: Any) -> Any:
    shown = panels(report)
    heights = [0.6 + 0.32 * len(panel.bars) for panel in shown] or [0.5]
    figure = make(figsize=(9.5, 1.0 + sum(heights)), layout="constrained")
    on = report.device
    ranks = f"{on.ring_size} × " if on.ring_size else ""
    figure.suptitle(f"attncheck bench · {ranks}{on.name or on.device} · torch {on.torch}", fontsize=11)
    if not shown:
        figure.text(0.5, 0.4, "nothing could be timed", ha="center")
        return figure
    every = figure.subplots(len(shown), 1, squeeze=False, height_ratios=heights)
    for axes, panel in zip(every[:, 0], shown):
        _panel(axes, panel)
    figure.supxlabel("\n".join([COLOURS, *_conclusions(report)]), fontsize=8, ha="left", x=0.01)
    return figure


def _conclusions(report: Report) -> list[str]:
    from attncheck.report.sections.bench import describe_recommendation

    ring, bench = report.section(RingSection), report.section(BenchSection)
    if ring is not None and ring.timings:
        return list(ring.conclusions)
    return [describe_recommendation(item) for item in bench.recommendations] if bench is not None else []


def _panel(axes: Any, panel: Panel) -> None:
    places = list(range(len(panel.bars)))
    longest = max(max(bar.value, bar.high, bar.best) for bar in panel.bars) or 1.0
    axes.barh(places, [bar.value for bar in panel.bars], color=[bar.colour for bar in panel.bars], height=0.7)
    for place, bar in zip(places, panel.bars):
        if bar.high:
            axes.plot([bar.low, bar.high], [place, place], color=BEST, linewidth=1.0)
        if bar.best:
            axes.plot([bar.best, bar.best], [place - 0.4, place + 0.4], color=BEST, linewidth=1.5)
        axes.text(max(bar.value, bar.high, bar.best) + longest * 0.01, place, bar.figures, va="center", fontsize=8)
    axes.set_yticks(places, [bar.name for bar in panel.bars])
    axes.invert_yaxis()
    axes.set_xlim(0.0, longest * 1.75)
    axes.set_title(panel.title, loc="left", fontsize=9)
    axes.set_xlabel(panel.unit, fontsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
