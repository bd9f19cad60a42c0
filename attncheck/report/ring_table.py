"""A ring's speed as a table: the columns of ring-flash-attn's README, the bound, and what limits it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attncheck.core.results.ring import RingSection
from attncheck.core.results.ring_timings import LOCAL_FLASH, LOCAL_FLASH_FULL, PASSES, TABLES, RingRates, RingTiming
from attncheck.core.results.timings import PASSES_TITLES
from attncheck.core.shares import BEYOND_POSSIBLE, format_share
from attncheck.report.columns import Column, Row, layout_table
from attncheck.report.lines import Line, style_of_answer, text_line

COLUMNS = (
    Column("iter/s", 0),
    Column("±", 4),
    Column("of flash/n", 2),
    Column("achievable", 3),
    Column("reached", 3),
    Column("hidden", 6),
    Column("memory", 5),
    Column("parity", 1),
)
LEGEND = "± half the 95 % interval of the median, as a share of it"
BEYOND_FLASH = (
    f"{BEYOND_POSSIBLE} is no efficiency: noise, overlap of ranks that share a processor, or a bound measured apart"
)


def format_lines(section: RingSection, width: int) -> Iterator[Line]:
    """Yield the timings of a ring for a terminal `width` columns wide."""
    measured_on = section.measured_on
    parts = [f"{measured_on.ring_size} × {measured_on.name or measured_on.device}", f"torch {measured_on.torch}"]
    parts += ["flash-attn's kernels emulated in plain torch: times say nothing of a GPU"] * measured_on.emulated
    parts.append(f"{measured_on.seconds:.0f} s")
    yield text_line(" · ".join(parts))
    yield from _describe_machine(section.rates)
    for title, timings in timing_tables(section):
        yield Line()
        yield from _format_table(title, timings, width)
    yield Line()
    yield from map(text_line, describe_signs(section))
    if section.conclusions:
        yield Line()
    yield from map(text_line, section.conclusions)


def describe_signs(section: RingSection) -> Iterator[str]:
    """Yield what the signs in the tables mean."""
    yield LEGEND
    cells = (cell for timing in section.timings if timing.outcome == "ok" for cell in format_cells(timing))
    if BEYOND_POSSIBLE in cells:
        yield BEYOND_FLASH


def timing_tables(section: RingSection) -> Iterator[tuple[str, list[RingTiming]]]:
    """Yield each table's title and its rows: the local call and the schemes, without what only the bound needs."""
    for table in TABLES:
        for passes in PASSES:
            timings = [
                timing
                for timing in section.timings
                if timing.table == table and timing.passes == passes and timing.backend != LOCAL_FLASH_FULL
            ]
            if timings:
                yield f"{table} API, {PASSES_TITLES[passes]}", timings


def _describe_machine(rates: RingRates) -> Iterator[Line]:
    clocks = rates.clocks
    parts = [f"matmul {rates.matmul_tflops:.3g} TFLOP/s", f"copy {rates.copy_gb_per_s:.0f} GB/s"]
    parts += [f"neighbours {rates.link_gb_per_s:.1f} GB/s each way"] if rates.link_gb_per_s else []
    if clocks.sm_mhz_high:
        parts.append(f"{clocks.sm_mhz_low}-{clocks.sm_mhz_high} MHz, {clocks.power_w} W, {clocks.temperature_c} °C")
        parts.append(f"held back by {', '.join(clocks.throttled)}" if clocks.throttled else "not held back")
    if rates.copy_gb_per_s:
        yield text_line(" · ".join(parts))


def _format_table(title: str, timings: Sequence[RingTiming], width: int) -> Iterator[Line]:
    lengths = {timing.seqlen for timing in timings}
    names = [timing.title + f", {timing.seqlen} tokens" * (len(lengths) > 1) for timing in timings]
    per_rank = f" · {min(lengths)} tokens a rank" if len(lengths) == 1 else ""
    yield text_line(title + per_rank)
    yield from layout_table("", COLUMNS, [make_row(name, timing) for name, timing in zip(names, timings)], width)
    for name, timing in zip(names, timings):
        if timing.limited_by and timing.limited_by != "nothing":
            yield text_line(f"  {name} is limited by {timing.limited_by}")


def make_row(name: str, timing: RingTiming) -> Row:
    """Return the row of a timing, under this name."""
    if timing.outcome != "ok":
        return Row(name, note=(f"{timing.outcome}: {timing.reason}", "red"))
    styles = [style_of_answer(timing.correct) if column.title == "parity" else "" for column in COLUMNS]
    return Row(name, tuple(zip(format_cells(timing), styles)))


def format_timing(timing: RingTiming) -> str:
    """Return one timing in one line, as soon as it is there."""
    parts = [timing.title, f"{timing.table} API, {PASSES_TITLES[timing.passes]}", f"{timing.seqlen} tokens a rank"]
    speed, interval, *_ = format_cells(timing)
    parts.append(f"{speed} iter/s ± {interval}" if timing.outcome == "ok" else f"{timing.outcome}: {timing.reason}")
    return " · ".join(parts)


def format_cells(timing: RingTiming) -> tuple[str, ...]:
    """Return the cells of a timing, one for each column."""
    watch, is_flash = timing.watch, timing.backend == LOCAL_FLASH
    speed = f"{timing.iterations_per_s:.4g}"
    memory = f"{watch.peak_memory_bytes / (1 << 20):.0f} MiB" if watch.peak_memory_bytes else "-"
    interval = f"{100 * watch.interval:.1f} %"
    if is_flash:
        note = (
            "launches!"
            if timing.launch_bound
            else f"/{timing.ring_size} = {timing.iterations_per_s / timing.ring_size:.4g}"
        )
        return speed, interval, note, "-", "-", "-", memory, "-"
    share, achievable, reached = (
        format_share(value) for value in (timing.efficiency, timing.achievable, timing.reached)
    )
    hidden = f"{100 * timing.overlapped:.0f} %" if timing.communication_ms and timing.watch.silent_ms else "-"
    return speed, interval, share, achievable, reached, hidden, memory, timing.correct
