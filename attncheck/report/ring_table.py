"""A ring's speed as a table: the columns of ring-flash-attn's README, the bound, and what limits it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attncheck.core.results.ring import RingSection
from attncheck.core.results.ring_timings import LOCAL_FLASH, LOCAL_FLASH_FULL, PASSES, TABLES, RingRates, RingTiming
from attncheck.report.lines import Line, column_line, style_of_answer, text_line

COLUMNS = ("iter/s", "±", "of flash/n", "achievable", "reached", "hidden", "memory", "parity")
WIDTHS = (9, 9, 14, 12, 9, 8, 11, 8)


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
    if section.conclusions:
        yield Line()
    yield from map(text_line, section.conclusions)


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
                yield f"{table} API, {passes.replace('_', ' + ')}", timings


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
    name_width = max(map(len, names))
    shown_columns = _fitting_columns(width - name_width)
    header = "".join(f"{COLUMNS[index]:>{WIDTHS[index]}}" for index in shown_columns)
    per_rank = f" · {min(lengths)} tokens a rank" if len(lengths) == 1 else ""
    yield text_line(title + per_rank)
    yield text_line(f"{'':<{name_width}}{header}")
    for name, timing in zip(names, timings):
        yield _format_row(f"{name:<{name_width}}", timing, shown_columns)
    for name, timing in zip(names, timings):
        if timing.limited_by and timing.limited_by != "nothing":
            yield text_line(f"  {name} is limited by {timing.limited_by}")


def _fitting_columns(room: int) -> list[int]:
    """Return the indices of the columns that fit into `room` characters; the last ones are left out first."""
    fitting: list[int] = []
    for index, width in enumerate(WIDTHS):
        room -= width
        if room < 0 and len(fitting) >= 2:
            break
        fitting.append(index)
    return fitting


def _format_row(name: str, timing: RingTiming, shown_columns: list[int]) -> Line:
    if timing.outcome != "ok":
        return column_line((name, ""), (f"  {timing.outcome}: {timing.reason}", "red"))
    cells = format_cells(timing)
    styled_cells = [
        (f"{cells[index]:>{WIDTHS[index]}}", style_of_answer(timing.correct) if COLUMNS[index] == "parity" else "")
        for index in shown_columns
    ]
    return column_line((name, ""), *styled_cells)


def format_cells(timing: RingTiming) -> tuple[str, ...]:
    """Return the cells of a timing, one for each column."""
    watch, is_flash = timing.watch, timing.backend == LOCAL_FLASH
    speed = f"{timing.iterations_per_s:.4g}"
    memory = f"{watch.peak_memory_bytes / (1 << 20):.0f} MiB" if watch.peak_memory_bytes else "-"
    spread = f"{100 * watch.interval:.1f} %"
    if is_flash:
        note = (
            "launches!"
            if timing.launch_bound
            else f"/{timing.ring_size} = {timing.iterations_per_s / timing.ring_size:.4g}"
        )
        return speed, spread, note, "-", "-", "-", memory, "-"
    share, achievable, reached = (
        _format_percent(value) for value in (timing.efficiency, timing.achievable, timing.reached)
    )
    hidden = f"{100 * timing.overlapped:.0f} %" if timing.communication_ms and timing.watch.silent_ms else "-"
    return speed, spread, share, achievable, reached, hidden, memory, timing.correct


def _format_percent(value: float) -> str:
    return f"{100 * value:.1f} %" if value else "-"
