"""How fast backends are on one device: a table for each kind of pass, the recommendation, what the clocks did.

Not a format of its own: `text` prints it above the findings; `markdown` and the picture take its figures.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from attncheck.core.cases import ANY, SHORT, Case
from attncheck.core.report import Report
from attncheck.core.results.ring_timings import Clocks
from attncheck.core.results.timings import TITLES, Recommendation, Timing
from attncheck.report.sections.parity import Row

STYLES = {"pass": "green", "warn": "yellow", "fail": "bold red", "lost": "bold red"}


@dataclass(frozen=True)
class Column:
    """A column of the table; where they do not all fit, those with the highest `rank` are left out first."""

    title: str
    width: int
    rank: int


COLUMNS = (
    Column("ms", 10, 0),
    Column("±", 8, 3),
    Column("p10–p90", 17, 6),
    Column("TFLOP/s", 9, 2),
    Column("of matmul", 10, 5),
    Column("memory", 10, 4),
    Column("bits", 7, 3),
    Column("parity", 8, 1),
)


def rows(report: Report, verbose: bool, width: int) -> Iterator[Row]:
    """Yield the timings of a report for a terminal `width` columns wide."""
    for index, line in enumerate(heading(report)):
        yield Row(((line, "dim" if index else "bold"),))
    for title, timings in tables(report):
        yield Row()
        yield Row(((title, "bold"),))
        yield from _table(timings, width)
    yield Row()
    legend = "± half the 95 % interval of the median · bits: in repeated calls, always the same or which tensors vary"
    yield Row(((legend, "dim"),))
    for note in notes(report):
        yield Row(((note, ""),))
    yield Row()
    for recommendation in report.recommendations:
        yield from _recommended(recommendation)
    yield from _left_out(report, verbose)


def heading(report: Report) -> Iterator[str]:
    """Yield what was measured on, and what the device does with plain work."""
    on, rates = report.measured_on, report.rates
    threads = f", {rates.threads} thread{'s' * (rates.threads > 1)}" if rates.threads else ""
    yield f"{on.name or on.device}{threads} · torch {on.torch} · {on.seconds:.0f} s"
    if rates.matmul_tflops:
        size = rates.matmul_size
        yield (
            f"plain work: {size}³ product of matrices in {SHORT.get(rates.dtype, rates.dtype)} "
            f"{rates.matmul_tflops:.3g} TFLOP/s · copy {rates.copy_gb_per_s:.4g} GB/s"
        )
    told = clocks(timing.clocks for timing in report.timings)
    if told:
        yield told


def clocks(seen: Iterable[Clocks]) -> str:
    """Return in words what the GPU's clocks did over all timings, "" where nothing was told."""
    known = [each for each in seen if each.sm_mhz_high]
    if not known:
        return ""
    low, high = min(c.sm_mhz_low for c in known), max(c.sm_mhz_high for c in known)
    power, heat = max(c.power_w for c in known), max(c.temperature_c for c in known)
    reasons = dict.fromkeys(reason for c in known for reason in c.throttled)
    held = f"held back by {', '.join(reasons)}" if reasons else "not held back"
    return f"clocks {low}–{high} MHz · up to {power} W and {heat} °C · {held}"


def tables(report: Report) -> Iterator[tuple[str, list[Timing]]]:
    """Yield each table's title and its timings, the fastest first."""
    for case in dict.fromkeys(timing.case for timing in report.timings):
        mine = [timing for timing in report.timings if timing.case == case]
        layers = f" · {mine[0].layers} layers" if mine[0].layers > 1 else ""
        timed = sorted((t for t in mine if t.outcome == "ok"), key=lambda timing: timing.median_ms)
        lost = [t for t in mine if t.outcome not in ("ok", "refused")]
        yield f"{TITLES[mine[0].passes]} · {shape(case)}{layers}", timed + lost


def shape(case: Case) -> str:
    """Return a case's shape and mask in words."""
    kv = f"/{case.num_kv_heads}" if case.num_kv_heads != case.num_heads else ""
    size = f"{case.head_dim}/{case.v_head_dim}" if case.v_head_dim != case.head_dim else str(case.head_dim)
    parts = [f"batch {case.batch}", f"seqlen {case.seqlen_q}", f"heads {case.num_heads}{kv}", f"head_dim {size}"]
    parts += [SHORT[case.dtype], "causal" if case.causal else "full"]
    parts += [f"{len(case.seqlens_q)} documents"] * (case.layout == "packed")
    parts += ["window {},{}".format(*("any" if side == ANY else side for side in case.window_size))] * case.windowed
    return ", ".join(parts)


def who(timing: Timing) -> str:
    """Return a timing's backend and mode."""
    return timing.backend if timing.mode == "default" else f"{timing.backend} deterministic"


def cells(timing: Timing) -> tuple[str, ...]:
    """Return the cells of a timing, one for each column."""
    return (
        number(timing.median_ms),
        f"{100 * timing.interval_ms / timing.median_ms:.1f} %" + ("" if timing.stable else " !"),
        f"{number(timing.p10_ms)}–{number(timing.p90_ms)}",
        f"{timing.tflops:.3g}",
        f"{100 * timing.matmul_share:.1f} %" if timing.matmul_share else "-",
        f"{timing.peak_memory_bytes / (1 << 20):.0f} MiB" if timing.peak_memory_bytes else "-",
        _bits(timing),
        timing.answer,
    )


def _bits(timing: Timing) -> str:
    """Return "same", or which tensors' bits changed, or how many tensors' where their names are too long."""
    names = ",".join(timing.varied)
    return "same" if not names else names if len(names) <= 6 else f"{len(timing.varied)} vary"


def number(ms: float) -> str:
    """Return milliseconds with three or four digits that say something."""
    return f"{ms:.3f}" if ms < 10 else f"{ms:.2f}" if ms < 100 else f"{ms:.1f}"


def _table(timings: list[Timing], width: int) -> Iterator[Row]:
    first = max([len(who(timing)) for timing in timings] + [7])
    kept = fitting(width - first)
    heads = "".join(f"{COLUMNS[index].title:>{COLUMNS[index].width}}" for index in kept)
    yield Row(((f"{'backend':<{first}}", "bold"), (heads, "bold")))
    for timing in timings:
        name = (f"{who(timing):<{first}}", "")
        if timing.outcome != "ok":
            yield Row((name, (f"  {timing.outcome}: {timing.reason}", "red")))
            continue
        told = cells(timing)
        yield Row((name, *((f"{told[index]:>{COLUMNS[index].width}}", _style(timing, index)) for index in kept)))


def fitting(room: int) -> list[int]:
    """Return the indices of the columns that fit into `room`; the first two ranks are always there."""
    kept = list(range(len(COLUMNS)))
    for index in sorted(kept, key=lambda index: -COLUMNS[index].rank):
        if sum(COLUMNS[each].width for each in kept) <= room or COLUMNS[index].rank < 2:
            break
        kept.remove(index)
    return kept


def _style(timing: Timing, index: int) -> str:
    title = COLUMNS[index].title
    if title == "parity":
        return STYLES.get(timing.answer, "dim")
    if title == "bits":
        return "yellow" if timing.varied else "green"
    return "yellow" if title == "±" and not timing.stable else ""


def notes(report: Report) -> Iterator[str]:
    """Yield what has to be known to read the times."""
    timed = [timing for timing in report.timings if timing.outcome == "ok"]
    loose = list(dict.fromkeys(who(timing) for timing in timed if not timing.stable))
    if loose:
        yield f"! did not settle in the time allowed: {', '.join(loose)}"
    slow = list(dict.fromkeys(who(timing) for timing in timed if timing.launch_bound))
    if slow:
        yield f"bound by launching, so that the times say more of the CPU than of the GPU: {', '.join(slow)}"


def recommended(item: Recommendation) -> str:
    """Return a recommendation in one sentence."""
    wanted = "correct" if item.wanted == "correct" else "deterministic"
    start = f"fastest {wanted} backend, {TITLES[item.passes]}: "
    if not item.choice:
        return f"{start}no choice, {item.reason}" if item.tied else f"{start}none, {item.reason}"
    if item.wanted == "deterministic" and item.cost == 1.0:
        return f"{start}the same, {item.choice}"
    mode = " (deterministic)" if item.mode == "deterministic" else ""
    parts = [f"{item.choice}{mode}, {number(item.ms)} ms", item.reason]
    if item.wanted == "deterministic":
        parts.append(f"{item.cost:.2f} × the time of the fastest correct one")
    if item.peak_memory_bytes:
        parts.append(f"{item.peak_memory_bytes / (1 << 20):.0f} MiB beyond its inputs")
    return start + ", ".join(parts)


def _recommended(item: Recommendation) -> Iterator[Row]:
    yield Row(((recommended(item), ""),))
    if item.choice and not (item.wanted == "deterministic" and item.cost == 1.0):
        for line in item.setting.splitlines():
            yield Row((("    ", ""), (line, "bold")))


def _left_out(report: Report, verbose: bool) -> Iterator[Row]:
    """Say of each backend that was not timed at all why; `verbose` says it of those that are not installed too."""
    timed = {timing.backend for timing in report.timings if timing.outcome == "ok"}
    reasons: dict[str, list[str]] = {}
    for timing in report.timings:
        if timing.backend not in timed and timing.outcome == "refused":
            names = reasons.setdefault(f"refuses   {timing.reason}", [])
            names += [timing.backend] * (timing.backend not in names)
    for state in report.backends:
        if verbose and state.missing and not state.over_ranks:
            reasons.setdefault(f"not here  {state.missing}", []).append(state.name)
    if reasons:
        yield Row()
    for reason, names in reasons.items():
        yield Row(((f"{reason[:10]}", "dim"), (f"{', '.join(names)}: {reason[10:]}", "dim")))
