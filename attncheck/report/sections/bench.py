"""Bench on one device: a table of timings for each kind of pass, the recommendation, the behaviour of the clocks."""

from collections.abc import Iterable, Iterator, Sequence

from attncheck.core.cases import DTYPE_ABBREVIATIONS, UNBOUNDED, Case
from attncheck.core.results.bench import BenchSection
from attncheck.core.results.ring_timings import Clocks
from attncheck.core.results.timings import PASSES_TITLES, Recommendation, Timing
from attncheck.core.shares import BEYOND_POSSIBLE, format_share
from attncheck.report.sections import (
    Bar,
    Block,
    Bullets,
    Code,
    Column,
    Fold,
    Paragraph,
    Report,
    Row,
    SectionView,
    TestCase,
    Verdict,
    make_table,
    make_testcase,
    style_of_answer,
    timing_answer,
)
from attncheck.report.sections.parity import list_unmeasured, show_verdicts, verdict_testcases

COLUMNS = (
    Column("ms", 0),
    Column("±", 3),
    Column("p10–p90", 6),
    Column("TFLOP/s", 2),
    Column("of matmul", 5),
    Column("memory", 4),
    Column("bits", 3),
    Column("parity", 1),
)
LEGEND = (
    "± half the 95 % interval of the median, as a share of it · p10–p90 the spread of single "
    "calls · bits: whether repeated calls are identical, or which tensors vary"
)
ORDER_ONLY = "no recommendation: a CPU was timed, and neither its times nor their order apply to a GPU"
BEYOND_MATMUL = f"{BEYOND_POSSIBLE} of matmul is not a real efficiency: noise, a device that sped up, or skipped work"


def blocks(report: Report, section: BenchSection) -> Iterator[Block]:
    """Yield the device, the recommendation, the tables, their limits, and why other backends were not timed."""
    yield from map(Paragraph, describe_device(section))
    if is_order_only(section):
        yield Paragraph(ORDER_ONLY)
    for item in section.recommendations:
        sentence = describe_recommendation(item)
        yield Paragraph(sentence[:1].upper() + sentence[1:], strong=True)
        if item.choice and item.setting and not (item.wanted == "deterministic" and item.cost == 1.0):
            yield Code("", item.setting)
    if section.published:
        yield Bullets(tuple(item.description for item in section.published))
    for title, timings in timing_tables(section):
        title = title[0].upper() + title[1:]
        yield make_table(title, "backend", COLUMNS, map(make_row, timings), _make_bars(timings))
    yield Bullets((LEGEND, *describe_caveats(section)))
    refused = (
        Verdict("parity", timing.backend, "", "", "refused", timing.reason)
        for timing in section.timings
        if timing.outcome == "refused"
    )
    timed = (Verdict("parity", t.backend, "", "", "pass", "") for t in section.timings if t.outcome != "refused")
    yield from list_unmeasured(section.backends, (*timed, *refused), False)
    if section.verdicts:
        title = "Parity of the cases that were timed"
        yield Fold(title, tuple(show_verdicts(section.backends, section.verdicts, section.runs)))


def verdict(report: Report, section: BenchSection) -> str:
    """Return the first recommendation, or that nothing is recommended."""
    if is_order_only(section):
        return "no recommendation: only a CPU was timed"
    if section.recommendations:
        return describe_recommendation(section.recommendations[0])
    timed = sum(timing.outcome == "ok" for timing in section.timings)
    return f"{timed} of {len(section.timings)} calls timed, no recommendation"


def _make_bars(timings: Sequence[Timing]) -> dict[str, list[Bar | None]]:
    slowest = max((timing.median_ms for timing in timings if timing.outcome == "ok"), default=0.0)

    def make_bar(timing: Timing, share: float) -> Bar | None:
        style = "bad" if timing.answer != "pass" else "ok" if timing.reproducible else "plain"
        return Bar(share, style) if timing.outcome == "ok" and share else None

    return {
        "ms": [make_bar(timing, timing.median_ms / slowest if slowest else 0.0) for timing in timings],
        "of matmul": [make_bar(timing, timing.matmul_share) for timing in timings],
    }


def describe_device(section: BenchSection) -> Iterator[str]:
    """Yield lines on the measured device, its rates on simple work, and its clocks."""
    measured_on, rates = section.measured_on, section.rates
    threads = f", {rates.threads} thread{'s' * (rates.threads > 1)}" if rates.threads else ""
    yield f"{measured_on.name or measured_on.device}{threads} · torch {measured_on.torch} · {measured_on.seconds:.0f} s"
    if len(shapes := list_shapes(section)) == 1:
        yield shapes[0]
    if rates.matmul_tflops:
        size = rates.matmul_size
        yield (
            f"reference work: {size}³ matrix product in "
            f"{DTYPE_ABBREVIATIONS.get(rates.dtype, rates.dtype)} {rates.matmul_tflops:.3g} TFLOP/s · "
            f"copy {rates.copy_gb_per_s:.4g} GB/s"
        )
    clocks = describe_clocks(timing.clocks for timing in section.timings)
    if clocks:
        yield clocks


def describe_clocks(clocks: Iterable[Clocks]) -> str:
    """Return how the GPU's clocks behaved during all timings, "" if they were not read."""
    readings = [clock for clock in clocks if clock.sm_mhz_high]
    if not readings:
        return ""
    low, high = min(c.sm_mhz_low for c in readings), max(c.sm_mhz_high for c in readings)
    power, heat = max(c.power_w for c in readings), max(c.temperature_c for c in readings)
    reasons = dict.fromkeys(reason for c in readings for reason in c.throttled)
    throttling = f"throttled by {', '.join(reasons)}" if reasons else "not throttled"
    return f"clocks {low}–{high} MHz · up to {power} W and {heat} °C · {throttling}"


def timing_tables(section: BenchSection) -> Iterator[tuple[str, list[Timing]]]:
    """Yield each table's title and its timings, the fastest first."""
    for case in dict.fromkeys(timing.case for timing in section.timings):
        timings = [timing for timing in section.timings if timing.case == case]
        layers = f" · {timings[0].layers} layers" if timings[0].layers > 1 else ""
        timed = sorted((t for t in timings if t.outcome == "ok"), key=lambda timing: timing.median_ms)
        unmeasured = [t for t in timings if t.outcome not in ("ok", "refused")]
        shape = f" · {describe_shape(case)}" * (len(list_shapes(section)) > 1)
        yield f"{PASSES_TITLES[timings[0].passes]}{shape}{layers}", timed + unmeasured


def list_shapes(section: BenchSection) -> list[str]:
    """Return the distinct shapes that were timed."""
    return list(dict.fromkeys(describe_shape(timing.case) for timing in section.timings))


def describe_shape(case: Case) -> str:
    """Return a case's shape and mask in words."""
    kv = f"/{case.num_kv_heads}" if case.num_kv_heads != case.num_heads else ""
    size = f"{case.head_dim}/{case.v_head_dim}" if case.v_head_dim != case.head_dim else str(case.head_dim)
    parts = [f"batch {case.batch}", f"seqlen {case.seqlen_q}", f"heads {case.num_heads}{kv}", f"head_dim {size}"]
    parts += [DTYPE_ABBREVIATIONS[case.dtype], "causal" if case.causal else "full"]
    parts += [f"{len(case.seqlens_q)} documents"] * (case.layout == "packed")
    parts += [
        "window {},{}".format(*("any" if side == UNBOUNDED else side for side in case.window_size))
    ] * case.windowed
    return ", ".join(parts)


def format_name(timing: Timing) -> str:
    """Return a timing's backend and mode."""
    return timing.backend if timing.mode == "default" else f"{timing.backend} deterministic"


def format_timing(timing: Timing) -> str:
    """Return one timing in one line, for printing as soon as it is measured."""
    parts = [format_name(timing), PASSES_TITLES[timing.passes]]
    parts += [f"window {timing.case.window_size[0]},{timing.case.window_size[1]}"] * timing.case.windowed
    if timing.outcome != "ok":
        return " · ".join([*parts, f"{timing.outcome}: {timing.reason}"])
    ms, interval, *_ = format_cells(timing)
    return " · ".join([*parts, f"{ms} ms ± {interval}", f"parity {timing.answer}"])


def format_cells(timing: Timing) -> tuple[str, ...]:
    """Return the cells of a timing, one for each column."""
    return (
        format_ms(timing.median_ms),
        f"{100 * timing.interval_ms / timing.median_ms:.1f} %" + ("" if timing.stable else " !"),
        f"{format_ms(timing.p10_ms)}–{format_ms(timing.p90_ms)}",
        f"{timing.tflops:.3g}",
        format_share(timing.matmul_share),
        f"{timing.peak_memory_bytes / (1 << 20):.0f} MiB" if timing.peak_memory_bytes else "-",
        _format_bits(timing),
        timing.answer,
    )


def _format_bits(timing: Timing) -> str:
    """Return "same", or the tensors whose bits changed, or their number if the names are too long."""
    names = ",".join(timing.varied)
    return "same" if not names else names if len(names) <= 6 else f"{len(timing.varied)} vary"


def format_ms(ms: float) -> str:
    """Return milliseconds with three or four significant digits."""
    return f"{ms:.3f}" if ms < 10 else f"{ms:.2f}" if ms < 100 else f"{ms:.1f}"


def make_row(timing: Timing) -> Row:
    """Return the row of a timing in its table."""
    if timing.outcome != "ok":
        return Row(format_name(timing), note=(f"{timing.outcome}: {timing.reason}", "red"))
    cells = enumerate(format_cells(timing))
    return Row(format_name(timing), tuple((cell, _style_of_cell(timing, index)) for index, cell in cells))


def _style_of_cell(timing: Timing, index: int) -> str:
    title = COLUMNS[index].title
    if title == "parity":
        return style_of_answer(timing.answer)
    if title == "bits":
        return "yellow" if timing.varied else "green"
    return "yellow" if title == "±" and not timing.stable else ""


def describe_caveats(section: BenchSection) -> Iterator[str]:
    """Yield what limits the meaning of the times: timings that did not settle, or that launching limits."""
    timed = [timing for timing in section.timings if timing.outcome == "ok"]
    if any(format_share(timing.matmul_share) == BEYOND_POSSIBLE for timing in timed):
        yield BEYOND_MATMUL
    unstable = list(dict.fromkeys(format_name(timing) for timing in timed if not timing.stable))
    if unstable:
        yield f"! did not settle in the time allowed: {', '.join(unstable)}"
    launch_bound = list(dict.fromkeys(format_name(timing) for timing in timed if timing.launch_bound))
    if launch_bound:
        yield f"limited by kernel launches, so the times reflect the CPU more than the GPU: {', '.join(launch_bound)}"


def is_order_only(section: BenchSection) -> bool:
    """Return whether these timings allow no recommendation."""
    return any(item.order_only for item in section.recommendations)


def describe_recommendation(item: Recommendation) -> str:
    """Return a recommendation in one sentence."""
    kind = "correct" if item.wanted == "correct" else "deterministic"
    start = f"fastest {kind} backend{' on this CPU' * item.order_only}, {PASSES_TITLES[item.passes]}: "
    if not item.choice:
        return f"{start}no choice, {item.reason}" if item.tied else f"{start}none, {item.reason}"
    if item.wanted == "deterministic" and item.cost == 1.0:
        return f"{start}the same, {item.choice}"
    mode = " (deterministic)" if item.mode == "deterministic" else ""
    parts = [f"{item.choice}{mode}, {format_ms(item.ms)} ms", item.reason]
    if item.wanted == "deterministic":
        parts.append(f"{item.cost:.2f} × the time of the fastest correct one")
    if item.peak_memory_bytes:
        parts.append(f"{item.peak_memory_bytes / (1 << 20):.0f} MiB beyond its inputs")
    return start + ", ".join(parts)


def testcases(report: Report, section: BenchSection) -> Iterator[TestCase]:
    """Yield parity's test cases, then one for each timing; its time is the median call's."""
    seconds = {(run.backend, run.case.name): run.call_ms / 1000 for run in section.runs}
    yield from verdict_testcases(report, section.verdicts, seconds)
    for timing in section.timings:
        name = f"{timing.case.name} {timing.passes}" + (" deterministic" if timing.mode == "deterministic" else "")
        answer = timing_answer(timing.outcome, timing.answer)
        text = f"median {timing.median_ms:.4g} ms, {timing.tflops:.3g} TFLOP/s" if timing.outcome == "ok" else ""
        reason = timing.reason or timing.answer_reason
        yield make_testcase(report, name, f"bench: {timing.backend}", answer, reason, text, timing.median_ms / 1000)


VIEW = SectionView("Bench", blocks, verdict=verdict, testcases=testcases)
