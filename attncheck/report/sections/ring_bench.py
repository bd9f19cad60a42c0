"""A ring's speed as lines of text: the columns of ring-flash-attn's README, the bound, and what limits.

Not a format of its own: `text` prints it above the findings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attncheck.core.report import Report
from attncheck.core.results.ring_timings import FLASH, FULL, PASSES, TABLES, Passes, RingRates, RingTiming, Table
from attncheck.report.sections.parity import Row

COLUMNS = ("iter/s", "±", "of flash/n", "achievable", "reached", "hidden", "memory", "parity")
WIDTHS = (9, 9, 14, 12, 9, 8, 11, 8)
STYLES = {"pass": "green", "warn": "yellow", "fail": "bold red", "lost": "bold red"}


def rows(report: Report, width: int) -> Iterator[Row]:
    """Yield the timings of a ring for a terminal `width` columns wide."""
    on = report.measured_on
    parts = [f"{on.ring_size} × {on.name or on.device}", f"torch {on.torch}"]
    parts += ["flash-attn's kernels emulated in plain torch: times say nothing of a GPU"] * on.emulated
    parts.append(f"{on.seconds:.0f} s")
    yield Row(((" · ".join(parts), "bold"),))
    yield from _machine(report.ring_rates)
    for table in TABLES:
        for passes in PASSES:
            mine = shown(report, table, passes)
            if mine:
                yield Row()
                yield from _table(f"{table} API, {passes.replace('_', ' + ')}", mine, width)
    if report.conclusions:
        yield Row()
    for line in report.conclusions:
        yield Row(((line, ""),))


def shown(report: Report, table: Table, passes: Passes) -> list[RingTiming]:
    """Return the rows of one table: the local call and the schemes, without what only the bound needs."""
    return [t for t in report.ring_timings if t.table == table and t.passes == passes and t.backend != FULL]


def _machine(rates: RingRates) -> Iterator[Row]:
    clocks = rates.clocks
    told = [f"matmul {rates.matmul_tflops:.3g} TFLOP/s", f"copy {rates.copy_gb_per_s:.0f} GB/s"]
    told += [f"neighbours {rates.link_gb_per_s:.1f} GB/s each way"] if rates.link_gb_per_s else []
    if clocks.sm_mhz_high:
        told.append(f"{clocks.sm_mhz_low}-{clocks.sm_mhz_high} MHz, {clocks.power_w} W, {clocks.temperature_c} °C")
        told.append(f"held back by {', '.join(clocks.throttled)}" if clocks.throttled else "not held back")
    if rates.copy_gb_per_s:
        yield Row(((" · ".join(told), "dim"),))


def _table(title: str, timings: Sequence[RingTiming], width: int) -> Iterator[Row]:
    lengths = {timing.seqlen for timing in timings}
    names = [timing.title + f", {timing.seqlen} tokens" * (len(lengths) > 1) for timing in timings]
    first = max(map(len, names))
    kept = _fitting(width - first)
    heads = "".join(f"{COLUMNS[index]:>{WIDTHS[index]}}" for index in kept)
    per_rank = f" · {min(lengths)} tokens a rank" if len(lengths) == 1 else ""
    yield Row(((title + per_rank, "bold"),))
    yield Row(((f"{'':<{first}}{heads}", "bold"),))
    for name, timing in zip(names, timings):
        yield _row(f"{name:<{first}}", timing, kept)
    for name, timing in zip(names, timings):
        if timing.limited_by and timing.limited_by != "nothing":
            yield Row(((f"  {name} is limited by {timing.limited_by}", "dim"),))


def _fitting(room: int) -> list[int]:
    """Return the columns that fit, the last ones left out first."""
    kept: list[int] = []
    for index, each in enumerate(WIDTHS):
        room -= each
        if room < 0 and len(kept) >= 2:
            break
        kept.append(index)
    return kept


def _row(name: str, timing: RingTiming, kept: list[int]) -> Row:
    if timing.outcome != "ok":
        return Row(((name, ""), (f"  {timing.outcome}: {timing.reason}", "red")))
    cells = figures(timing)
    painted = [
        (f"{cells[index]:>{WIDTHS[index]}}", STYLES.get(timing.correct, "") if COLUMNS[index] == "parity" else "")
        for index in kept
    ]
    return Row(((name, ""), *painted))


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
