"""The check of communication as lines of text: which ranks exchanged data, how fast, and whether it was right."""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.results.collectives import CollectiveResult, Communication, Route, describe_ranks
from attncheck.report.lines import Line, columns, sentence

NARROW = 76  # columns below which size, time and link are left out
NOTES = (
    "GB/s one way, as the link carries it: for the whole group nccl-tests' bus bandwidth",
    "8 MiB by gloo, in place of 64 by NCCL: this shows that ranks can talk, not how fast GPUs will",
)
LINKS = {"": "not known", "host": "host memory", "network": "network"}


def rows(communication: Communication, verbose: bool, width: int) -> Iterator[Line]:
    """Yield the check for a terminal `width` columns wide; with `verbose` also the versions of each rank."""
    yield sentence(_heading(communication))
    if not communication.exchanges:
        return
    yield sentence(NOTES[communication.transport == "gloo"])
    yield _heads(width)
    routes = {(route.first, route.second): route for route in communication.routes}
    for exchange in communication.exchanges:
        yield _row(exchange, routes.get((exchange.ranks[0], exchange.ranks[-1])), width)
    if verbose:
        yield from _ranks(communication)


def _heading(communication: Communication) -> str:
    nodes = len({facts.node for facts in communication.ranks})
    where = f" on {nodes} node{'s' * (nodes > 1)}" if nodes else ""
    parts = [f"communication among {communication.world_size} ranks{where}", communication.transport]
    return " · ".join(filter(None, [*parts, f"{communication.seconds:.1f} s"]))


def _heads(width: int) -> Line:
    heads = f"{'size':>9}{'ms':>10}{'GB/s':>9}  data   link" if width >= NARROW else f"{'GB/s':>9}  data"
    return columns((f"{'exchange':<15}{'ranks':<11} ", "bold"), (heads, "bold"))


def _row(exchange: CollectiveResult, route: Route | None, width: int) -> Line:
    who = (f"{exchange.operation:<15}{describe_ranks(exchange.operation, exchange.ranks):<11} ", "")
    if exchange.outcome != "ok":
        return columns(who, (exchange.outcome, "dim" if exchange.outcome in ("skipped", "refused") else "bold red"))
    data = ("wrong", "bold red") if exchange.wrong else ("right", "green")
    if width < NARROW:
        return columns(who, (f"{exchange.gb_per_s:>9.2f}  ", ""), data)
    middle = f"{_size(exchange.bytes):>9}{exchange.ms:>10.3f}{exchange.gb_per_s:>9.2f}  "
    link = "" if route is None or exchange.operation != "send_recv" else LINKS.get(route.kind, route.kind)
    return columns(who, (middle, ""), data, (f"  {link}", "dim"))


def _size(count: int) -> str:
    return f"{count / (1 << 20):.0f} MiB" if count >= 1 << 20 else f"{count} B"


def _ranks(communication: Communication) -> Iterator[Line]:
    yield Line()
    for facts in communication.ranks:
        parts = [facts.device, f"torch {facts.torch}", f"NCCL {facts.nccl}" if facts.nccl else ""]
        parts += [f"driver {facts.driver}" if facts.driver else "", f"Python {facts.python}"]
        parts += [f"{name} {version}" for name, version in sorted(facts.packages.items())]
        line = " · ".join(part for part in parts if part)
        yield sentence(f"rank {facts.rank} on node {facts.node}: {line}")
