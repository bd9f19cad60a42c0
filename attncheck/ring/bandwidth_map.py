"""The measured bandwidth between every two ranks or nodes, and the members that are slow with all others.

A link is compared only with links of the same kind (NV18, PIX, network, …), by medians. A rank or node is called slow
if it has at least three exchanges and each reaches at most half of the median of the exchanges without it. Noise of 15
% rarely slows one exchange that much. It never slows three exchanges of one rank, which are spread over the check.
"""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from attncheck.core.lists import group_values
from attncheck.core.results.collectives import CollectiveResult, Communication, Route

Unit = Literal["rank", "node"]
Grade = Literal["ok", "low", "slow", "wrong", "lost"]

# A message of 64 MiB must reach this share of a link's documented rate; below it, another link carries the data.
NVLINK_SHARE, PCIE_SHARE, GROUP_SHARE = 0.25, 0.40, 0.10
LOW_SHARE = 0.67  # a link below this share of the median of its kind is marked in the map
SLOW_SHARE = 1 / 3  # a single link below this share is a finding
OUTLIER_SHARE = 0.5  # every link of a slow rank or node is below this share
MIN_LINKS = 3  # links that a rank or node needs before it is judged, and that the others need for the comparison
MAX_SLOW_PART = 0.25  # if a larger part of a kind's links is slow, the kind is really two kinds
MAX_UNITS_BY_RANK = 2  # with more nodes than this, the map shows nodes instead of ranks


@dataclass(frozen=True)
class LinkBandwidth:
    """A pair of ranks or nodes. `exchange` is the slowest exchange between them, or one that failed."""

    first: int
    second: int
    exchange: CollectiveResult
    kind: str = ""  # the kind of its route
    share: float = 0.0  # rate as a share of the median of other links of its kind; 0: too few of them
    rated_share: float = 0.0  # rate as a share of the link's documented rate; 0: unknown
    grade: Grade = "ok"


@dataclass(frozen=True)
class Outlier:
    """A rank or node that is slow with every other; rates in GB/s one way."""

    unit: Unit
    number: int
    kind: str
    peers: int  # number of members that it was measured with
    is_sampled: bool  # whether some members were not measured with it
    own_rates: tuple[float, ...]
    other_rates: tuple[float, ...]  # rates of the exchanges of this kind that do not involve it


@dataclass(frozen=True)
class BandwidthMap:
    """The links between ranks or between nodes, slowest first, and the number of pairs in all."""

    unit: Unit
    members: tuple[int, ...]
    links: tuple[LinkBandwidth, ...]

    @property
    def pairs(self) -> int:
        """The number of pairs of members, measured or not."""
        return len(self.members) * (len(self.members) - 1) // 2


@dataclass(frozen=True)
class _Link:
    """One correct exchange between two ranks."""

    ranks: tuple[int, int]
    nodes: tuple[int, int]
    kind: str
    gb_per_s: float

    def get_ends(self, unit: Unit) -> tuple[int, int]:
        return self.ranks if unit == "rank" else self.nodes


def make_map(communication: Communication, unit: Unit | None = None) -> BandwidthMap:
    """Return the map between ranks; with more than two nodes, between nodes."""
    nodes = {facts.rank: facts.node for facts in communication.ranks}
    if unit is None:
        unit = "node" if len(set(nodes.values())) > MAX_UNITS_BY_RANK else "rank"
    routes = {(route.first, route.second): route for route in communication.routes}
    exchanges: dict[tuple[int, int], CollectiveResult] = {}
    members: set[int] = set()
    for exchange in list_pairs(communication):
        a, b = exchange.ranks
        ends = (a, b) if unit == "rank" else (nodes.get(a, -1), nodes.get(b, -1))
        members.update(ends)
        if ends[0] != ends[1] and min(ends) >= 0:
            ends = (min(ends), max(ends))
            exchanges[ends] = min(exchanges.get(ends, exchange), exchange, key=_order_exchange)
    links = list(_compare_links(exchanges, routes))
    return BandwidthMap(unit, tuple(sorted(members - {-1})), tuple(sorted(links, key=_order_link)))


def list_pairs(communication: Communication) -> tuple[CollectiveResult, ...]:
    """Return the exchanges between two ranks."""
    return tuple(e for e in communication.exchanges if e.operation == "send_recv" and len(e.ranks) == 2)


def _order_exchange(exchange: CollectiveResult) -> tuple[bool, float]:
    return (exchange.outcome == "ok" and not exchange.wrong, exchange.gb_per_s)


def _order_link(link: LinkBandwidth) -> tuple[bool, float, int, int]:
    return (link.grade not in ("lost", "wrong"), link.exchange.gb_per_s, link.first, link.second)


def _compare_links(
    exchanges: Mapping[tuple[int, int], CollectiveResult], routes: Mapping[tuple[int, int], Route]
) -> Iterator[LinkBandwidth]:
    """Yield each link with its share of the others' median and of its documented rate."""
    routes_by_ends = {ends: _get_route(exchange, routes) for ends, exchange in exchanges.items()}
    rates_by_kind = group_values(
        (routes_by_ends[ends].kind, exchange.gb_per_s) for ends, exchange in exchanges.items() if _is_measured(exchange)
    )
    medians = {kind: statistics.median(rates) for kind, rates in rates_by_kind.items() if len(rates) > MIN_LINKS}
    for ends, exchange in exchanges.items():
        route = routes_by_ends[ends]
        measured = _is_measured(exchange)
        share = exchange.gb_per_s / medians[route.kind] if measured and route.kind in medians else 0.0
        rated_share = exchange.gb_per_s / route.gb_per_s if measured and route.gb_per_s > 0 else 0.0
        grade = _grade_link(exchange, share, rated_share, route)
        yield LinkBandwidth(*ends, exchange, route.kind, share, rated_share, grade)


def _get_route(exchange: CollectiveResult, routes: Mapping[tuple[int, int], Route]) -> Route:
    first, second = exchange.ranks
    return routes.get((first, second)) or Route(first, second, "")


def _is_measured(exchange: CollectiveResult) -> bool:
    return exchange.outcome == "ok" and not exchange.wrong and exchange.gb_per_s > 0


def _grade_link(exchange: CollectiveResult, share: float, rated_share: float, route: Route) -> Grade:
    if exchange.outcome != "ok":
        return "lost"
    if exchange.wrong:
        return "wrong"
    if 0 < rated_share < required_share(route.kind) or 0 < share <= SLOW_SHARE:
        return "slow"
    return "low" if 0 < share < LOW_SHARE else "ok"


def required_share(kind: str) -> float:
    """Return the share of its documented rate that one message over a link of `kind` must reach."""
    return NVLINK_SHARE if kind.startswith("NV") else PCIE_SHARE


def describe_link(link: LinkBandwidth) -> str:
    """Return how a link compares, in numbers: "3-11: 1.2 GB/s, 10 % of the median over the network"."""
    share = f", {100 * link.share:.0f} % of the median {name_kind(link.kind)}" if link.share else ""
    rated = f", {100 * link.rated_share:.0f} % of the documented rate" if link.rated_share else ""
    return f"{link.first}-{link.second}: {link.exchange.gb_per_s:.3g} GB/s{share}{rated}"


def name_kind(kind: str) -> str:
    """Return the words for a kind of link within a sentence."""
    return {"network": "over the network", "host": "through host memory"}.get(kind, f"over {kind}")


def describe_outlier(outlier: Outlier) -> str:
    """Return which links of an outlier are slow: "node 3 is slow with every other node over the network"."""
    unit, kind = outlier.unit, name_kind(outlier.kind)
    peers = f"all {outlier.peers} {unit}s tried" if outlier.is_sampled else f"every other {unit}"
    return f"{unit} {outlier.number} is slow with {peers} {kind}"


def find_outliers(communication: Communication) -> tuple[Outlier, ...]:
    """Return the nodes that are slow with every other node, then such ranks of the remaining nodes.

    With gloo only nodes are judged, because on one host gloo's speed is that of the processors.
    """
    links = list(_list_links(communication))
    outliers = list(_find_unit_outliers("node", [link for link in links if link.nodes[0] != link.nodes[1]]))
    if communication.transport != "nccl":
        return tuple(outliers)
    nodes = {outlier.number for outlier in outliers}
    node_of = {rank: node for link in links for rank, node in zip(link.ranks, link.nodes)}
    ranks = _find_unit_outliers("rank", links)
    return (*outliers, *(outlier for outlier in ranks if node_of[outlier.number] not in nodes))


def find_slow_links(communication: Communication, outliers: Iterable[Outlier]) -> tuple[LinkBandwidth, ...]:
    """Return single links between ranks, with NCCL, that reach at most a third of the median of their kind.

    Links of slow ranks or nodes are left out. Returns none if a quarter of the links are slow: then there are two kinds
    of links, such as links within and beyond one switch.
    """
    if communication.transport != "nccl":
        return ()
    nodes = {facts.rank: facts.node for facts in communication.ranks}
    slow_ranks = {outlier.number for outlier in outliers if outlier.unit == "rank"}
    slow_nodes = {outlier.number for outlier in outliers if outlier.unit == "node"}
    links = make_map(communication, "rank").links
    slow = [
        link
        for link in links
        if link.kind
        and 0 < link.share <= SLOW_SHARE
        and not slow_ranks & {link.first, link.second}
        and not slow_nodes & {nodes.get(link.first), nodes.get(link.second)}
    ]
    counts = {kind: sum(link.kind == kind for link in links) for kind in {link.kind for link in slow}}
    return tuple(
        link for link in slow if sum(other.kind == link.kind for other in slow) <= MAX_SLOW_PART * counts[link.kind]
    )


def _list_links(communication: Communication) -> Iterator[_Link]:
    nodes = {facts.rank: facts.node for facts in communication.ranks}
    routes = {(route.first, route.second): route for route in communication.routes}
    for exchange in list_pairs(communication):
        first, second = exchange.ranks
        kind = _get_route(exchange, routes).kind
        if kind and _is_measured(exchange) and first in nodes and second in nodes:
            yield _Link((first, second), (nodes[first], nodes[second]), kind, exchange.gb_per_s)


def _find_unit_outliers(unit: Unit, links: Sequence[_Link]) -> Iterator[Outlier]:
    for kind in dict.fromkeys(link.kind for link in links):
        of_kind = [link for link in links if link.kind == kind]
        fastest = max(link.gb_per_s for link in of_kind)
        links_by_member = group_values((member, link) for link in of_kind for member in set(link.get_ends(unit)))
        for member, own in sorted(links_by_member.items()):
            # most members are not slow, so their median is not needed
            if max(link.gb_per_s for link in own) <= OUTLIER_SHARE * fastest:
                peers = {end for link in own for end in link.get_ends(unit)} - {member}
                others = [link.gb_per_s for link in of_kind if member not in link.get_ends(unit)]
                if len(peers) < MIN_LINKS or len(others) < MIN_LINKS:
                    continue
                rates = tuple(link.gb_per_s for link in own)
                if max(rates) <= OUTLIER_SHARE * statistics.median(others):
                    is_sampled = len(peers) < len(links_by_member) - 1
                    yield Outlier(unit, member, kind, len(peers), is_sampled, rates, tuple(others))
