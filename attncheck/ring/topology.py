"""The connections between ranks: each rank's GPU in the snapshot, and the link between every two.

Sources, read 2026-11-21: NVIDIA's pages on NVLink (A100: 12 links, 600 GB/s both ways; H100: 18 links, 900 GB/s; B200:
18 links, 1.8 TB/s), so 25 GB/s per link one way from Volta to Hopper and 50 since Blackwell; the whitepaper on Ampere
GA102 (four links of 14.0625 GB/s in each direction). PCI Express: 8 and 16 GT/s with 128b/130b, 16 lanes.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from attncheck.core.results.collectives import RankFacts, Route
from attncheck.core.snapshot import Known, Link, Snapshot, value_or
from attncheck.doctor.probes.payload import privacy

Capability = tuple[int, int]

NVLINK_GB_PER_S: dict[Capability, float] = {  # per link, one way
    (6, 0): 20.0,
    (7, 0): 25.0,
    (7, 5): 25.0,
    (8, 0): 25.0,
    (8, 6): 14.0625,
    (9, 0): 25.0,
    (10, 0): 50.0,
    (10, 3): 50.0,
}
PCIE_3_X16, PCIE_4_X16 = 15.75, 31.5
# Links below one host bridge. Beyond it (NODE, SYS) the path between processors decides; its rate is not reported.
PCIE_KINDS = ("PIX", "PXB", "PHB")


def one_way_gb_per_s(kind: str, capability: Capability) -> float:
    """Return GB/s one way of a link by its name in `nvidia-smi topo -m` ("NV18", "PIX", …), 0 if unknown.

    PCIe counts as the oldest generation of the slots that the GPU is sold for; the real slot is not reported.
    """
    links = re.fullmatch(r"NV(\d+)", kind)
    if links:
        return int(links[1]) * NVLINK_GB_PER_S.get(capability, 0.0)
    if kind in PCIE_KINDS:
        return PCIE_4_X16 if capability >= (8, 0) else PCIE_3_X16
    return 0.0


# Settings with names of hosts, addresses or files: a difference between hosts means nothing.
HOST_SPECIFIC_SETTINGS = (
    "NCCL_COMM_ID",
    "NCCL_HOSTID",
    "NCCL_DEBUG_FILE",
    "NCCL_TOPO_DUMP_FILE",
    "NCCL_GRAPH_DUMP_FILE",
)


def make_rank_facts(documents: Iterable[dict[str, Any]], snapshot: Snapshot) -> tuple[RankFacts, ...]:
    """Return each rank's facts, with hosts as numbers and its GPU's index in the snapshot."""
    documents = sorted(documents, key=lambda document: document["rank"])
    hosts = list(dict.fromkeys(document["host"] for document in documents))
    cards = list(dict.fromkeys((document["host"], document["bus"]) for document in documents if document.get("bus")))
    visible = snapshot.visible_devices()
    facts = []
    for document in documents:
        node, ordinal = hosts.index(document["host"]), document.get("gpu", -1)
        card = (document["host"], document.get("bus", ""))
        facts.append(
            RankFacts(
                document["rank"],
                node,
                document["device"],
                document["torch"],
                document["python"],
                document["nccl"],
                document["driver"],
                cards.index(card) if card in cards else -1,
                visible[ordinal].index if node == 0 and 0 <= ordinal < len(visible) else -1,
                document["packages"],
                privacy.scrub(
                    {name: value for name, value in document["environ"].items() if name not in HOST_SPECIFIC_SETTINGS}
                ),
            )
        )
    return tuple(facts)


def find_routes(pairs: Iterable[tuple[int, int]], ranks: Sequence[RankFacts], snapshot: Snapshot) -> tuple[Route, ...]:
    """Return the link of each of `pairs`, as far as the snapshot of rank 0's host shows it."""
    facts_by_rank = {facts.rank: facts for facts in ranks}
    return tuple(
        _find_route(facts_by_rank[first], facts_by_rank[second], snapshot)
        for first, second in pairs
        if first in facts_by_rank and second in facts_by_rank
    )


def _find_route(first: RankFacts, second: RankFacts, snapshot: Snapshot) -> Route:
    if first.node != second.node:
        return Route(first.rank, second.rank, "network")
    if first.device == "CPU":
        return Route(first.rank, second.rank, "host")
    link = _find_link({first.gpu, second.gpu}, snapshot)
    if link is None:
        return Route(first.rank, second.rank, "")
    if link.peer_access == Known(False):
        return Route(first.rank, second.rank, "host")  # another rule reports that
    gpus = [device for device in snapshot.visible_devices() if device.index in (link.first, link.second)]
    rate = min(
        (one_way_gb_per_s(link.kind, value_or(device.compute_capability, (0, 0))) for device in gpus), default=0.0
    )
    return Route(first.rank, second.rank, link.kind, rate)


def _find_link(gpus: set[int], snapshot: Snapshot) -> Link | None:
    if not isinstance(snapshot.topology, Known):
        return None
    return next((link for link in snapshot.topology.value.links if {link.first, link.second} == gpus), None)
