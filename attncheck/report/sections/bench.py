"""How fast backends are on one device: a table for each kind of pass, the recommendation, what the clocks did.

The picture takes its figures, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from attncheck.core.cases import ANY, SHORT, Case
from attncheck.core.report import Report
from attncheck.core.results.bench import BenchSection
from attncheck.core.results.ring_timings import Clocks
from attncheck.core.results.timings import TITLES, Recommendation, Timing
from attncheck.report.lines import Line, columns, sentence, style_of
from attncheck.report.markdown_text import escaped, table
from attncheck.report.sections import SectionView
from attncheck.report.sections.parity import verdict_testcases
from attncheck.report.testcases import TestCase, measurement, timing_answer


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


def rows(report: Report, section: BenchSection, verbose: bool, width: int) -> Iterator[Line]:
    """Yield the timings for a terminal `width` columns wide."""
    yield from map(sentence, heading(section))
    for title, timings in timing_tables(section):
        yield Line()
        yield sentence(title)
        yield from _timing_table(timings, width)
    yield Line()
    yield sentence(
        "± half the 95 % interval of the median · bits: in repeated calls, always the same or which tensors vary"
    )
    yield from map(sentence, notes(section))
    yield Line()
    for recommendation in section.recommendations:
        yield from _recommendation_lines(recommendation)
    yield from _left_out(section, verbose)


def heading(section: BenchSection) -> Iterator[str]:
    """Yield what was measured on, and what the device does with plain work."""
    on, rates = section.measured_on, section.rates
    threads = f", {rates.threads} thread{'s' * (rates.threads > 1)}" if rates.threads else ""
    yield f"{on.name or on.device}{threads} · torch {on.torch} · {on.seconds:.0f} s"
    if rates.matmul_tflops:
        size = rates.matmul_size
        yield (
            f"plain work: {size}³ product of matrices in {SHORT.get(rates.dtype, rates.dtype)} "
            f"{rates.matmul_tflops:.3g} TFLOP/s · copy {rates.copy_gb_per_s:.4g} GB/s"
        )
    seen = describe_clocks(timing.clocks for timing in section.timings)
    if seen:
        yield seen


def describe_clocks(clocks: Iterable[Clocks]) -> str:
    """Return in words what the GPU's clocks did over all timings, "" where they were not read."""
    known = [clock for clock in clocks if clock.sm_mhz_high]
    if not known:
        return ""
    low, high = min(c.sm_mhz_low for c in known), max(c.sm_mhz_high for c in known)
    power, heat = max(c.power_w for c in known), max(c.temperature_c for c in known)
    reasons = dict.fromkeys(reason for c in known for reason in c.throttled)
    held = f"held back by {', '.join(reasons)}" if reasons else "not held back"
    return f"clocks {low}–{high} MHz · up to {power} W and {heat} °C · {held}"


def timing_tables(section: BenchSection) -> Iterator[tuple[str, list[Timing]]]:
    """Yield each table's title and its timings, the fastest first."""
    for case in dict.fromkeys(timing.case for timing in section.timings):
        timings = [timing for timing in section.timings if timing.case == case]
        layers = f" · {timings[0].layers} layers" if timings[0].layers > 1 else ""
        timed = sorted((t for t in timings if t.outcome == "ok"), key=lambda timing: timing.median_ms)
        lost = [t for t in timings if t.outcome not in ("ok", "refused")]
        yield f"{TITLES[timings[0].passes]} · {describe_shape(case)}{layers}", timed + lost


def describe_shape(case: Case) -> str:
    """Return a case's shape and mask in words."""
    kv = f"/{case.num_kv_heads}" if case.num_kv_heads != case.num_heads else ""
    size = f"{case.head_dim}/{case.v_head_dim}" if case.v_head_dim != case.head_dim else str(case.head_dim)
    parts = [f"batch {case.batch}", f"seqlen {case.seqlen_q}", f"heads {case.num_heads}{kv}", f"head_dim {size}"]
    parts += [SHORT[case.dtype], "causal" if case.causal else "full"]
    parts += [f"{len(case.seqlens_q)} documents"] * (case.layout == "packed")
    parts += ["window {},{}".format(*("any" if side == ANY else side for side in case.window_size))] * case.windowed
    return ", ".join(parts)


def name_of(timing: Timing) -> str:
    """Return a timing's backend and mode."""
    return timing.backend if timing.mode == "default" else f"{timing.backend} deterministic"


def cells(timing: Timing) -> tuple[str, ...]:
    """Return the cells of a timing, one for each column."""
    return (
        format_ms(timing.median_ms),
        f"{100 * timing.interval_ms / timing.median_ms:.1f} %" + ("" if timing.stable else " !"),
        f"{format_ms(timing.p10_ms)}–{format_ms(timing.p90_ms)}",
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


def format_ms(ms: float) -> str:
    """Return milliseconds with three or four digits that say something."""
    return f"{ms:.3f}" if ms < 10 else f"{ms:.2f}" if ms < 100 else f"{ms:.1f}"


def _timing_table(timings: list[Timing], width: int) -> Iterator[Line]:
    first = max([len(name_of(timing)) for timing in timings] + [7])
    kept = fitting_columns(width - first)
    heads = "".join(f"{COLUMNS[index].title:>{COLUMNS[index].width}}" for index in kept)
    yield columns((f"{'backend':<{first}}", "bold"), (heads, "bold"))
    for timing in timings:
        name = (f"{name_of(timing):<{first}}", "")
        if timing.outcome != "ok":
            yield columns(name, (f"  {timing.outcome}: {timing.reason}", "red"))
            continue
        texts = cells(timing)
        yield columns(name, *((f"{texts[index]:>{COLUMNS[index].width}}", _style(timing, index)) for index in kept))


def fitting_columns(room: int) -> list[int]:
    """Return the indices of the columns that fit into `room`; the first two ranks are always there."""
    kept = list(range(len(COLUMNS)))
    for index in sorted(kept, key=lambda index: -COLUMNS[index].rank):
        if sum(COLUMNS[other].width for other in kept) <= room or COLUMNS[index].rank < 2:
            break
        kept.remove(index)
    return kept


def _style(timing: Timing, index: int) -> str:
    title = COLUMNS[index].title
    if title == "parity":
        return style_of(timing.answer)
    if title == "bits":
        return "yellow" if timing.varied else "green"
    return "yellow" if title == "±" and not timing.stable else ""


def notes(section: BenchSection) -> Iterator[str]:
    """Yield what has to be known to read the times."""
    timed = [timing for timing in section.timings if timing.outcome == "ok"]
    loose = list(dict.fromkeys(name_of(timing) for timing in timed if not timing.stable))
    if loose:
        yield f"! did not settle in the time allowed: {', '.join(loose)}"
    slow = list(dict.fromkeys(name_of(timing) for timing in timed if timing.launch_bound))
    if slow:
        yield f"bound by launching, so that the times say more of the CPU than of the GPU: {', '.join(slow)}"


def describe_recommendation(item: Recommendation) -> str:
    """Return a recommendation in one sentence."""
    wanted = "correct" if item.wanted == "correct" else "deterministic"
    start = f"fastest {wanted} backend, {TITLES[item.passes]}: "
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


def _recommendation_lines(item: Recommendation) -> Iterator[Line]:
    yield sentence(describe_recommendation(item))
    if item.choice and not (item.wanted == "deterministic" and item.cost == 1.0):
        for line in item.setting.splitlines():
            yield columns(("    ", ""), (line, "bold"))


def _left_out(section: BenchSection, verbose: bool) -> Iterator[Line]:
    """Yield why a backend was not timed at all; with `verbose` also of those that are not installed."""
    timed = {timing.backend for timing in section.timings if timing.outcome == "ok"}
    reasons: dict[str, list[str]] = {}
    for timing in section.timings:
        if timing.backend not in timed and timing.outcome == "refused":
            names = reasons.setdefault(f"refuses   {timing.reason}", [])
            names += [timing.backend] * (timing.backend not in names)
    for state in section.backends:
        if verbose and state.missing and not state.over_ranks:
            reasons.setdefault(f"not here  {state.missing}", []).append(state.name)
    if reasons:
        yield Line()
    for reason, names in reasons.items():
        yield columns((f"{reason[:10]}", "dim"), (f"{', '.join(names)}: {reason[10:]}", "dim"))


def markdown(report: Report, section: BenchSection) -> Iterator[str]:
    """Yield the timings and recommendations."""
    yield from (f"{escaped(line)}  " for line in heading(section))
    for title, timings in timing_tables(section):
        yield from ("", f"## {title[0].upper()}{title[1:]}", "")
        yield from table(
            ("backend", *(column.title for column in COLUMNS)),
            [(name_of(t), *(cells(t) if t.outcome == "ok" else (t.reason,))) for t in timings],
        )
    yield ""
    yield from (f"{escaped(note)}  " for note in notes(section))
    yield from ("## Recommended", "")
    for item in section.recommendations:
        yield f"- {escaped(describe_recommendation(item))}"
        yield from (f"  - `{line}`" for line in item.setting.splitlines())
    yield ""


def testcases(report: Report, section: BenchSection) -> Iterator[TestCase]:
    """Yield parity's test cases, then one for each timing; its time is the median call's."""
    seconds = {(run.backend, run.case.name): run.call_ms / 1000 for run in section.runs}
    yield from verdict_testcases(report, section.verdicts, seconds)
    for timing in section.timings:
        name = f"{timing.case.name} {timing.passes}" + (" deterministic" if timing.mode == "deterministic" else "")
        answer = timing_answer(timing.outcome, timing.answer)
        text = f"median {timing.median_ms:.4g} ms, {timing.tflops:.3g} TFLOP/s" if timing.outcome == "ok" else ""
        reason = timing.reason or timing.answer_reason
        yield measurement(report, name, f"bench: {timing.backend}", answer, reason, text, timing.median_ms / 1000)


VIEW = SectionView(rows=rows, markdown=markdown, testcases=testcases)
