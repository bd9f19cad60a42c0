"""Measurements across ranks besides parity and determinism: timings, growth of errors, the adapter, communication."""

from collections.abc import Iterator, Sequence

from attncheck.core.results.collectives import CollectiveResult, Communication, Route, describe_ranks
from attncheck.core.results.error_growth import describe_growth
from attncheck.core.results.ring import RingSection
from attncheck.core.results.ring_timings import LOCAL_FLASH, LOCAL_FLASH_FULL, PASSES, TABLES, RingTiming
from attncheck.core.results.timings import PASSES_TITLES
from attncheck.core.shares import BEYOND_POSSIBLE, format_share
from attncheck.report import bandwidth
from attncheck.report.sections import (
    Bar,
    Block,
    Bullets,
    Column,
    Fold,
    Heading,
    Items,
    Paragraph,
    Report,
    Row,
    SectionView,
    TestCase,
    make_table,
    make_testcase,
    style_of_answer,
    timing_answer,
)
from attncheck.report.sections.bench import describe_shape
from attncheck.report.sections.parity import show_verdicts, verdict_testcases

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
LEGEND = (
    "± half the 95 % interval of the median, as a share of it · the mark in a bar shows the limit of links and device"
)
BEYOND_FLASH = (
    f"{BEYOND_POSSIBLE} is not a real efficiency: noise, ranks that share a processor, or a bound measured separately"
)
EXCHANGE_COLUMNS = (
    Column("ranks", 0, left=True),
    Column("size", 4),
    Column("ms", 3),
    Column("GB/s", 1),
    Column("data", 1, left=True),
    Column("link", 2, left=True),
)
BANDWIDTH_NOTES = (
    "GB/s one way, as carried by the link; for the whole group, nccl-tests' bus bandwidth",
    ("8 MiB over gloo instead of 64 over NCCL: this shows that ranks can communicate, not the speed of GPUs"),
)
LINK_NAMES = {"": "not known", "host": "host memory", "network": "network"}


def blocks(report: Report, section: RingSection) -> Iterator[Block]:
    """Yield the timings, growth of errors and the adapter, then communication.

    Communication is a detail if the ranks computed something, because its faults are findings.
    """
    if section.timings:
        yield from _show_timings(section)
    if section.growth:
        yield Heading(
            "Growth of errors with ring size: the worst tensor of the same problem; an ideal kernel has z_rms 1"
        )
        rows = (("", f"{growth.backend} ({growth.layout})", describe_growth(growth)) for growth in section.growth)
        yield Items(tuple(rows), ("", "backend", "errors"))
    yield from _show_adapter(section)
    if section.communication.world_size:
        shown = tuple(show_communication(section.communication))
        is_detail = bool(section.timings or report.verdicts)
        yield from [Fold("Communication", shown)] if is_detail else shown
    if section.verdicts:
        yield Fold(
            "Parity of the shape that was timed", tuple(show_verdicts(section.backends, section.verdicts, (), True))
        )


def _show_timings(section: RingSection) -> Iterator[Block]:
    """Yield the device, the conclusions from the timings, the tables, and the limits of each scheme."""
    measured_on, rates, clocks = section.measured_on, section.rates, section.rates.clocks
    emulated = "flash-attn's kernels emulated in plain torch: the times do not apply to a GPU"
    parts = [f"{measured_on.ring_size} × {measured_on.name or measured_on.device}", f"torch {measured_on.torch}"]
    parts += [describe_shape(section.runs[0].case)] if section.runs else []
    yield Paragraph(" · ".join([*parts, *[emulated] * measured_on.emulated, f"{measured_on.seconds:.0f} s"]))
    parts = [f"matmul {rates.matmul_tflops:.3g} TFLOP/s", f"copy {rates.copy_gb_per_s:.0f} GB/s"]
    parts += [f"neighbours {rates.link_gb_per_s:.1f} GB/s each way"] if rates.link_gb_per_s else []
    if clocks.sm_mhz_high:
        parts.append(f"{clocks.sm_mhz_low}-{clocks.sm_mhz_high} MHz, {clocks.power_w} W, {clocks.temperature_c} °C")
        parts.append(f"throttled by {', '.join(clocks.throttled)}" if clocks.throttled else "not throttled")
    if rates.copy_gb_per_s:
        yield Paragraph(" · ".join(parts))
    yield Bullets(section.conclusions)
    for title, timings in timing_tables(section):
        lengths = {timing.seqlen for timing in timings}
        names = [timing.title + f", {timing.seqlen} tokens" * (len(lengths) > 1) for timing in timings]
        per_rank = f" · {min(lengths)} tokens a rank" if len(lengths) == 1 else ""
        rows = [make_row(name, timing) for name, timing in zip(names, timings)]
        yield make_table(title + per_rank, "scheme", COLUMNS, rows, _make_bars(timings))
        limited = [(name, timing.limited_by) for name, timing in zip(names, timings)]
        yield Bullets(tuple(f"{name} is limited by {by}" for name, by in limited if by not in ("", "nothing")))
    cells = [cell for timing in section.timings if timing.outcome == "ok" for cell in format_cells(timing)]
    yield Bullets((LEGEND, *[BEYOND_FLASH] * (BEYOND_POSSIBLE in cells)))


def timing_tables(section: RingSection) -> Iterator[tuple[str, list[RingTiming]]]:
    """Yield each table's title and its rows: the local call and the schemes, without rows needed only for the bound."""
    for table in TABLES:
        for passes in PASSES:
            timings = [
                timing
                for timing in section.timings
                if timing.table == table and timing.passes == passes and timing.backend != LOCAL_FLASH_FULL
            ]
            if timings:
                yield f"{table} API, {PASSES_TITLES[passes]}", timings


def make_row(name: str, timing: RingTiming) -> Row:
    """Return the row of a timing under this name."""
    if timing.outcome != "ok":
        return Row(name, note=(f"{timing.outcome}: {timing.reason}", "red"))
    styles = [style_of_answer(timing.correct) if column.title == "parity" else "" for column in COLUMNS]
    return Row(name, tuple(zip(format_cells(timing), styles)))


def _make_bars(timings: Sequence[RingTiming]) -> dict[str, list[Bar | None]]:
    fastest = max((timing.iterations_per_s for timing in timings), default=0.0) or 1.0

    def make_bar(timing: RingTiming, share: float, mark: float = 0.0) -> Bar | None:
        style = "none" if timing.backend == LOCAL_FLASH else "plain" if timing.correct == "pass" else "bad"
        return Bar(share, style, mark) if timing.outcome == "ok" and share else None

    return {
        "iter/s": [make_bar(timing, timing.iterations_per_s / fastest) for timing in timings],
        "of flash/n": [make_bar(timing, timing.efficiency, timing.achievable) for timing in timings],
        "reached": [make_bar(timing, timing.reached) for timing in timings],
    }


def format_timing(timing: RingTiming) -> str:
    """Return one timing in one line, for printing as soon as it is measured."""
    parts = [timing.title, f"{timing.table} API, {PASSES_TITLES[timing.passes]}", f"{timing.seqlen} tokens a rank"]
    speed, interval, *_ = format_cells(timing)
    parts.append(f"{speed} iter/s ± {interval}" if timing.outcome == "ok" else f"{timing.outcome}: {timing.reason}")
    return " · ".join(parts)


def format_cells(timing: RingTiming) -> tuple[str, ...]:
    """Return the cells of a timing, one for each column."""
    watch, n = timing.stopwatch, timing.ring_size
    speed = f"{timing.iterations_per_s:.4g}"
    memory = f"{watch.peak_memory_bytes / (1 << 20):.0f} MiB" if watch.peak_memory_bytes else "-"
    interval = f"{100 * watch.interval:.1f} %"
    if timing.backend == LOCAL_FLASH:
        note = "launches!" if timing.launch_bound else f"/{n} = {timing.iterations_per_s / n:.4g}"
        return speed, interval, note, "-", "-", "-", memory, "-"
    shares = (format_share(value) for value in (timing.efficiency, timing.achievable, timing.reached))
    hidden = f"{100 * timing.overlapped:.0f} %" if timing.communication_ms and watch.silent_ms else "-"
    return speed, interval, *shares, hidden, memory, timing.correct


def _show_adapter(section: RingSection) -> Iterator[Block]:
    """Yield the adapter's verdicts, and the names restored in transformers so that the package could be imported."""
    if section.adapter:
        yield Heading("ring-flash-attn's Hugging Face adapter on small models, by attn_implementation")
        rows = ((v.answer, f"{v.implementation}, {v.shape.replace('_', ' ')}", v.reason) for v in section.adapter)
        yield Items(tuple(rows), ("answer", "model", "because"))
    if section.measured_on.shimmed_names and not section.timings:
        modules = ", ".join(section.measured_on.shimmed_names)
        yield Paragraph(
            f"ring-flash-attn was imported with {modules} restored in transformers, in the measuring process only"
        )


def show_communication(communication: Communication) -> Iterator[Block]:
    """Yield the exchanges, the bandwidth between every two ranks, and as details every pair and each rank's versions.

    Pairs that a matrix shows have no rows unless they failed.
    """
    nodes = len({facts.node for facts in communication.ranks})
    on_nodes = f" on {nodes} node{'s' * (nodes > 1)}" if nodes else ""
    parts = [f"communication among {communication.world_size} ranks{on_nodes}", communication.transport]
    yield Paragraph(" · ".join(filter(None, [*parts, f"{communication.seconds:.1f} s"])))
    if not communication.exchanges:
        return
    yield Paragraph(BANDWIDTH_NOTES[communication.transport == "gloo"])
    routes = {(route.first, route.second): route for route in communication.routes}

    def make_rows(exchanges: Sequence[CollectiveResult]) -> tuple[Row, ...]:
        return tuple(_make_exchange_row(e, routes.get((e.ranks[0], e.ranks[-1]))) for e in exchanges)

    shown = bandwidth.list_unmapped(communication)
    yield make_table("", "exchange", EXCHANGE_COLUMNS, make_rows(shown))
    yield from bandwidth.show_bandwidth(communication)
    details: list[Block] = []
    if len(shown) < len(communication.exchanges):
        details.append(make_table("Every exchange", "exchange", EXCHANGE_COLUMNS, make_rows(communication.exchanges)))
    details.append(Bullets(tuple(_describe_ranks(communication))))
    yield Fold("Every exchange, and each rank", tuple(details))


def _make_exchange_row(result: CollectiveResult, route: Route | None) -> Row:
    ranks = (describe_ranks(result.operation, result.ranks), "")
    if result.outcome != "ok":
        style = "dim" if result.outcome in ("skipped", "refused") else "bold red"
        return Row(result.operation, (ranks, ("", ""), ("", ""), ("", ""), (result.outcome, style), ("", "")))
    answer = ("wrong", "bold red") if result.wrong else ("right", "green")
    link = "" if route is None or result.operation != "send_recv" else LINK_NAMES.get(route.kind, route.kind)
    size = f"{result.bytes / (1 << 20):.0f} MiB" if result.bytes >= 1 << 20 else f"{result.bytes} B"
    return Row(
        result.operation,
        (ranks, (size, ""), (f"{result.ms:.3f}", ""), (f"{result.gb_per_s:.2f}", ""), answer, (link, "dim")),
    )


def _describe_ranks(communication: Communication) -> Iterator[str]:
    for facts in communication.ranks:
        parts = [facts.device, f"torch {facts.torch}", f"NCCL {facts.nccl}" if facts.nccl else ""]
        parts += [f"driver {facts.driver}" if facts.driver else "", f"Python {facts.python}"]
        parts += [f"{name} {version}" for name, version in sorted(facts.packages.items())]
        yield f"rank {facts.rank} on node {facts.node}: {' · '.join(filter(None, parts))}"


def testcases(report: Report, section: RingSection) -> Iterator[TestCase]:
    """Yield parity's test cases, then one for each timing; its time is the median call's."""
    seconds = {(run.backend, run.case.name): run.call_ms / 1000 for run in section.runs}
    yield from verdict_testcases(report, section.verdicts, seconds)
    for timing in section.timings:
        name = f"{timing.table} {timing.passes} {timing.seqlen} tokens a rank"
        text = f"{format_share(timing.efficiency)} of flash / n" if timing.efficiency else ""
        answer = timing_answer(timing.outcome, timing.correct)
        yield make_testcase(
            report, name, f"bench: {timing.title}", answer, timing.reason, text, timing.stopwatch.ms / 1000
        )


VIEW = SectionView("Across ranks", blocks, testcases=testcases)
