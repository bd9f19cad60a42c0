"""The communication check as lines of text: which ranks exchanged data, how fast, and whether the data was right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from attncheck.core.results.collectives import CollectiveResult, Communication, Operation, Route, describe_ranks
from attncheck.report import bandwidth_table
from attncheck.report.columns import GAP, Column, Row, layout_table
from attncheck.report.lines import Line, text_line
from attncheck.ring.bandwidth_map import make_map

COLUMNS = (
    Column("size", 4),
    Column("ms", 3),
    Column("GB/s", 1),
    Column("data", 1, left=True),
    Column("link", 2, left=True),
)
OPERATION_WIDTH = max(map(len, get_args(Operation)))
BANDWIDTH_NOTES = (
    "GB/s one way, as the link carries it: for the whole group nccl-tests' bus bandwidth",
    "8 MiB by gloo, in place of 64 by NCCL: this shows that ranks can talk, not how fast GPUs will",
)
LINK_NAMES = {"": "not known", "host": "host memory", "network": "network"}


def format_lines(communication: Communication, verbose: bool, width: int) -> Iterator[Line]:
    """Yield the check for a terminal `width` columns wide: the exchanges, and the bandwidth between every two."""
    yield from format_exchanges(communication, verbose, width)
    if communication.exchanges:
        yield from bandwidth_table.format_lines(communication, width)


def format_exchanges(communication: Communication, verbose: bool, width: int) -> Iterator[Line]:
    """Yield the exchanges for a terminal `width` columns wide; with `verbose` also every pair and each rank's versions.

    Pairs that a matrix shows are no rows of their own, unless something is wrong with them.
    """
    yield text_line(_describe_check(communication))
    if not communication.exchanges:
        return
    yield text_line(BANDWIDTH_NOTES[communication.transport == "gloo"])
    routes = {(route.first, route.second): route for route in communication.routes}
    exchanges = communication.exchanges if verbose else _list_shown(communication)
    rows = [_make_row(result, routes.get((result.ranks[0], result.ranks[-1]))) for result in exchanges]
    yield from layout_table(f"{'exchange':<{OPERATION_WIDTH}}{GAP}ranks", COLUMNS, rows, width)
    if verbose:
        yield from _describe_ranks(communication)


def _list_shown(communication: Communication) -> list[CollectiveResult]:
    """Return the exchanges of the whole group, and of the pairs those that the matrix does not show, or that failed."""
    if not bandwidth_table.is_drawn(make_map(communication)):
        return list(communication.exchanges)
    return [e for e in communication.exchanges if e.operation != "send_recv" or e.outcome != "ok" or e.wrong]


def _describe_check(communication: Communication) -> str:
    nodes = len({facts.node for facts in communication.ranks})
    on_nodes = f" on {nodes} node{'s' * (nodes > 1)}" if nodes else ""
    parts = [f"communication among {communication.world_size} ranks{on_nodes}", communication.transport]
    return " · ".join(filter(None, [*parts, f"{communication.seconds:.1f} s"]))


def _make_row(result: CollectiveResult, route: Route | None) -> Row:
    name = f"{result.operation:<{OPERATION_WIDTH}}{GAP}{describe_ranks(result.operation, result.ranks)}"
    if result.outcome != "ok":
        return Row(name, note=(result.outcome, "dim" if result.outcome in ("skipped", "refused") else "bold red"))
    data = ("wrong", "bold red") if result.wrong else ("right", "green")
    link = "" if route is None or result.operation != "send_recv" else LINK_NAMES.get(route.kind, route.kind)
    numbers = (_format_bytes(result.bytes), f"{result.ms:.3f}", f"{result.gb_per_s:.2f}")
    return Row(name, (*((text, "") for text in numbers), data, (link, "dim")))


def _format_bytes(count: int) -> str:
    return f"{count / (1 << 20):.0f} MiB" if count >= 1 << 20 else f"{count} B"


def _describe_ranks(communication: Communication) -> Iterator[Line]:
    yield Line()
    for facts in communication.ranks:
        parts = [facts.device, f"torch {facts.torch}", f"NCCL {facts.nccl}" if facts.nccl else ""]
        parts += [f"driver {facts.driver}" if facts.driver else "", f"Python {facts.python}"]
        parts += [f"{name} {version}" for name, version in sorted(facts.packages.items())]
        description = " · ".join(part for part in parts if part)
        yield text_line(f"rank {facts.rank} on node {facts.node}: {description}")
