"""The communication check as lines of text: which ranks exchanged data, how fast, and whether the data was right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from attncheck.core.results.collectives import CollectiveResult, Communication, Operation, Route, describe_ranks
from attncheck.report.columns import GAP, Column, Row, layout_table
from attncheck.report.lines import Line, text_line

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
    """Yield the check for a terminal `width` columns wide; with `verbose` also the versions of each rank."""
    yield text_line(_describe_check(communication))
    if not communication.exchanges:
        return
    yield text_line(BANDWIDTH_NOTES[communication.transport == "gloo"])
    routes = {(route.first, route.second): route for route in communication.routes}
    rows = [_make_row(result, routes.get((result.ranks[0], result.ranks[-1]))) for result in communication.exchanges]
    yield from layout_table(f"{'exchange':<{OPERATION_WIDTH}}{GAP}ranks", COLUMNS, rows, width)
    if verbose:
        yield from _describe_ranks(communication)


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
