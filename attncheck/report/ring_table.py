"""A ring's speed as a table: the columns of ring-flash-attn's README, the bound, and what limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attncheck.core.results.ring import RingSection
from attncheck.core.results.ring_timings import FLASH, FULL, PASSES, TABLES, RingRates, RingTiming
from attncheck.report.lines import Line, columns, sentence, style_of

COLUMNS = ("iter/s", "±", "of flash/n", "achievable", "reached", "hidden", "memory", "parity")
WIDTHS = (9, 9, 14, 12, 9, 8, 11, 8)


def rows(section: RingSection, width: int) -> Iterator[Line]:
    """Yield the timings of a ring for a terminal `width` columns wide."""
    on = section.measured_on
    parts = [f"{on.ring_size} × {on.name or on.device}", f"torch {on.torch}"]
    parts += ["flash-attn's kernels emulated in plain torch: times say nothing of a GPU"] * on.emulated
    parts.append(f"{on.seconds:.0f} s")
    yield sentence(" · ".join(parts))
    yield from _describe_machine(section.rates)
    for title, timings in tables(section):
        yield Line()
        yield from _table(title, timings, width)
    if section.conclusions:
        yield Line()
    yield from map(sentence, section.conclusions)


def tables(section: RingSection) -> Iterator[tuple[str, list[RingTiming]]]:
    """Yield each table's title and its rows: the local call and the schemes, without what only the bound needs."""
    for table in TABLES:
        for passes in PASSES:
            timings = [
                timing
                for timing in section.timings
                if timing.table == table and timing.passes == passes and timing.backend != FULL
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
        yield sentence(" · ".join(parts))


def _table(title: str, timings: Sequence[RingTiming], width: int) -> Iterator[Line]:
    lengths = {timing.seqlen for timing in timings}
    names = [timing.title + f", {timing.seqlen} tokens" * (len(lengths) > 1) for timing in timings]
    first = max(map(len, names))
    kept = _fitting_columns(width - first)
    heads = "".join(f"{COLUMNS[index]:>{WIDTHS[index]}}" for index in kept)
    per_rank = f" · {min(lengths)} tokens a rank" if len(lengths) == 1 else ""
    yield sentence(title + per_rank)
    yield sentence(f"{'':<{first}}{heads}")
    for name, timing in zip(names, timings):
        yield _row(f"{name:<{first}}", timing, kept)
    for name, timing in zip(names, timings):
        if timing.limited_by and timing.limited_by != "nothing":
            yield sentence(f"  {name} is limited by {timing.limited_by}")


def _fitting_columns(room: int) -> list[int]:
    """Return the columns that fit, the last ones left out first."""
    kept: list[int] = []
    for index, column in enumerate(WIDTHS):
        room -= column
        if room < 0 and len(kept) >= 2:
            break
        kept.append(index)
    return kept


def _row(name: str, timing: RingTiming, kept: list[int]) -> Line:
    if timing.outcome != "ok":
        return columns((name, ""), (f"  {timing.outcome}: {timing.reason}", "red"))
    cells = figures(timing)
    painted = [
        (f"{cells[index]:>{WIDTHS[index]}}", style_of(timing.correct) if COLUMNS[index] == "parity" else "")
        for index in kept
    ]
    return columns((name, ""), *painted)


def figures(timing: RingTiming) -> tuple[str, ...]:
    """Return the cells of a timing, one for each column."""
    watch, flash = timing.watch, timing.backend == FLASH
    speed = f"{timing.iterations_per_s:.4g}"
    memory = f"{watch.peak_memory_bytes / (1 << 20):.0f} MiB" if watch.peak_memory_bytes else "-"
    spread = f"{100 * watch.interval:.1f} %"
    if flash:
        note = (
            "launches!"
            if timing.launch_bound
            else f"/{timing.ring_size} = {timing.iterations_per_s / timing.ring_size:.4g}"
        )
        return speed, spread, note, "-", "-", "-", memory, "-"
    share, most, reached = (_percent(value) for value in (timing.efficiency, timing.achievable, timing.reached))
    hidden = f"{100 * timing.overlapped:.0f} %" if timing.communication_ms and timing.watch.silent_ms else "-"
    return speed, spread, share, most, reached, hidden, memory, timing.correct


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %" if value else "-"
