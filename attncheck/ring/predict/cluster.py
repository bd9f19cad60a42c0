"""The named cluster: GPUs in nodes, and the link rates within a node and between nodes."""

import re
from dataclasses import dataclass

from attncheck.core.io.errors import BadUsage
from attncheck.core.results.prediction import LinkRate

INNER_LINKS, OUTER_LINKS = ("nvlink", "pcie", "host"), ("ib", "roce", "network")
# An exchange with a neighbour reached 136 of NVLink's documented 450 GB/s on four H200.
LEAST_REACHED = 0.3
EXCHANGE_LATENCY_MS, HOP_LATENCY_MS = 0.02, 0.003  # latency of one exchange, and of each further rank in a collective
GPUS_PER_NODE = 8
EXAMPLE = "nvlink=450,ib=50"


@dataclass(frozen=True)
class Cluster:
    """Nodes with `gpus_per_node` GPUs each; `outer` is None if there is only one node."""

    gpus_per_node: int
    inner: LinkRate
    outer: LinkRate | None = None

    def count_nodes(self, ring_size: int) -> int:
        """Return the number of nodes that a ring of this size needs, with its ranks placed node by node."""
        return -(-ring_size // self.gpus_per_node)


def parse_links(text: str) -> tuple[LinkRate, ...]:
    """Return the links in "nvlink=450,ib=50" or "nvlink=136+-14". Raises `BadUsage`."""
    links: list[LinkRate] = []
    for word in text.split(","):
        name, _, value = word.strip().partition("=")
        if name not in INNER_LINKS + OUTER_LINKS:
            known = ", ".join(INNER_LINKS + OUTER_LINKS)
            raise BadUsage(f"--link {name or word!r} is not one of {known}; write --link {EXAMPLE}")
        match = re.fullmatch(r"(\d+(?:\.\d+)?)(?:(?:\+-|±)(\d+(?:\.\d+)?))?", value.strip())
        rate = float(match[1]) if match else 0.0
        if match is None or rate <= 0:
            raise BadUsage(f"--link {word.strip()!r} has no rate in GB/s, one way for one GPU; write --link {EXAMPLE}")
        if match[2] is None:
            low, high = LEAST_REACHED * rate, rate
        else:
            low, high = rate - float(match[2]), rate + float(match[2])
        if low <= 0:
            raise BadUsage(f"--link {word.strip()!r}: the uncertainty {match[2]} is not below the rate itself")
        links.append(LinkRate(name, rate, low, high))
    for kind in (INNER_LINKS, OUTER_LINKS):
        names = [link.name for link in links if link.name in kind]
        if len(names) > 1:
            raise BadUsage(f"--link names {' and '.join(names)}: name at most one of {', '.join(kind)}")
    return tuple(links)


def find_link(links: tuple[LinkRate, ...], names: tuple[str, ...]) -> LinkRate | None:
    """Return the link with one of these names, None if there is none."""
    return next((link for link in links if link.name in names), None)
