"""A ring's predicted performance on another cluster: a table of schemes, one of ring sizes, and the answers."""

from collections.abc import Iterator, Sequence

from attncheck.core.lists import group_values
from attncheck.core.results.prediction import Prediction, PredictionSection
from attncheck.core.results.ring_timings import PASSES
from attncheck.core.results.timings import PASSES_TITLES
from attncheck.core.shares import BEYOND_POSSIBLE, format_share
from attncheck.report.sections import Bar, Block, Bullets, Column, Report, Row, SectionView, make_table

COLUMNS = (
    Column("ms", 0),
    Column("from", 1),
    Column("to", 1),
    Column("iter/s", 3),
    Column("tokens/s", 1),
    Column("of flash/n", 2),
    Column("memory", 2),
)
LEGEND = (
    "predicted, not measured · from, to: the range from blocks, links, contention and launches · of flash/n: "
    "iterations/s as a share of a rank's own causal call / n · memory: one GPU's beyond its inputs, from its buffers"
)


BEYOND_FLASH = f"{BEYOND_POSSIBLE} of flash/n: noise, or an unmasked block is faster than two causal blocks"


def blocks(report: Report, section: PredictionSection) -> Iterator[Block]:
    """Yield the answers, the tables with the efficiency as a bar, and what the numbers are based on."""
    yield Bullets(section.conclusions)
    for title, rows in prediction_tables(section):
        bars = {"of flash/n": [Bar(row.efficiency) if row.outcome == "ok" else None for _, row in rows]}
        yield make_table(title[0].upper() + title[1:], "scheme", COLUMNS, (make_row(*row) for row in rows), bars)
        yield Bullets(tuple(describe_limits(rows)))
    yield Bullets((*describe_sources(section), *describe_signs(section)))


def describe_signs(section: PredictionSection) -> Iterator[str]:
    """Yield the meaning of the tables' columns and signs."""
    yield LEGEND
    if any(format_share(row.efficiency) == BEYOND_POSSIBLE for row in section.predictions):
        yield BEYOND_FLASH


def describe_sources(section: PredictionSection) -> Iterator[str]:
    """Yield what the predictions are based on: the device, its blocks and rates, the links."""
    measured_on = section.measured_on
    timed = f"{sum(block.outcome == 'ok' for block in section.blocks)} of {len(section.blocks)} blocks"
    yield (
        f"{measured_on.name or measured_on.device} · torch {measured_on.torch} · {timed} by "
        f"{section.backend} · copy {section.rates.copy_gb_per_s:.4g} GB/s · {measured_on.seconds:.0f} s"
    )
    for link in section.links:
        interval = f"{link.low_gb_per_s:.4g} to {link.high_gb_per_s:.4g}"
        source = "as given" if link.source == "given" else "measured here between two ranks"
        yield f"{link.name} {link.gb_per_s:.4g} GB/s one way for one GPU ({interval}), {source}"


def prediction_tables(section: PredictionSection) -> Iterator[tuple[str, list[tuple[str, Prediction]]]]:
    """Yield each table's title and its rows with their names: the requested ring size, then smaller ones."""
    largest = max((row.ring_size for row in section.predictions), default=0)
    for passes in PASSES:
        rows = [row for row in section.predictions if row.ring_size == largest and row.passes == passes]
        if rows:
            title = f"predicted · {_describe_ring(rows[0], section.gpus_per_node)} · {PASSES_TITLES[passes]}"
            yield title, [(row.title, row) for row in rows]
    smaller = list(_fastest_of_each(section.predictions, largest))
    if smaller:
        yield "predicted · fastest scheme for each smaller ring size · forward + backward", smaller


def _describe_ring(row: Prediction, gpus_per_node: int) -> str:
    nodes = f"{row.nodes} nodes × {gpus_per_node} GPUs" if row.nodes > 1 else "one node"
    ranks = f"{row.ring_size} rank{'s' * (row.ring_size > 1)}"
    return f"{ranks}, {nodes} · {row.seqlen} tokens in total, {row.seqlen // row.ring_size} per rank"


def _fastest_of_each(rows: Sequence[Prediction], largest: int) -> Iterator[tuple[str, Prediction]]:
    for size in dict.fromkeys(row.ring_size for row in rows if row.ring_size < largest):
        timed = [row for row in rows if row.ring_size == size and row.outcome == "ok"]
        if timed:
            best = min(timed, key=lambda row: row.ms)
            yield f"{size}: {best.title}", best


def describe_limits(rows: Sequence[tuple[str, Prediction]]) -> Iterator[str]:
    """Yield what limits the rows of a table, one line for each limit."""
    names = group_values((row.limited_by, name) for name, row in rows if row.outcome == "ok")
    yield from (f"limited by {limit}: {', '.join(limited)}" for limit, limited in names.items())


def make_row(name: str, row: Prediction) -> Row:
    """Return a row of the table: the cells of a prediction, or why there is none."""
    if row.outcome != "ok":
        return Row(name, note=(f"{row.outcome}: {row.reason}", "dim"))
    return Row(name, tuple((cell, "") for cell in format_cells(row)))


def format_cells(row: Prediction) -> tuple[str, ...]:
    """Return the cells of a prediction, one for each column."""
    return (
        *(f"{ms:.4g}" if ms < 1e4 else f"{ms:.0f}" for ms in (row.ms, row.low_ms, row.high_ms)),
        f"{row.iterations_per_s:.4g}",
        f"{row.tokens_per_s:.0f}",
        format_share(row.efficiency),
        f"{row.memory_bytes / (1 << 20):.0f} MiB",
    )


VIEW = SectionView("Predicted rings", blocks)
