"""Results of the check of communication on clusters of any size, with noise and with faults planted into rates."""

from __future__ import annotations

import random
from collections.abc import Callable

from attncheck.core.report import Report
from attncheck.core.results.collectives import CollectiveResult, Communication, RankFacts, Route, Transport
from attncheck.core.results.ring import RingSection
from attncheck.ring import communication_findings
from attncheck.ring.pairs import choose_pairs
from tests import snapshots as s

NVLINK_RATE, NETWORK_RATE = 380.0, 47.0  # GB/s one way, as one 64 MiB message reaches
Slowdown = Callable[[int, int], float]  # of the exchange between two ranks


def make_cluster(
    nodes: int,
    ranks_per_node: int,
    slowdown: Slowdown = lambda a, b: 1.0,
    noise: float = 0.1,
    seed: int = 0,
    transport: Transport = "nccl",
) -> Communication:
    """Return the result on `nodes` nodes, whose rates vary by a factor of e ** `noise` (one standard deviation)."""
    chance, world_size = random.Random(seed), nodes * ranks_per_node
    facts = tuple(
        RankFacts(r, r // ranks_per_node, "NVIDIA H200", "2.11.0", card=r, gpu=r if r < ranks_per_node else -1)
        for r in range(world_size)
    )
    exchanges, routes = [], []
    for a, b in choose_pairs(world_size, ranks_per_node):
        is_inside = a // ranks_per_node == b // ranks_per_node
        kind = "network" if not is_inside else "NV18" if b < ranks_per_node else ""  # other nodes' links are not known
        rate = (NVLINK_RATE if is_inside else NETWORK_RATE) * chance.lognormvariate(0, noise) / slowdown(a, b)
        ms = (64 << 20) / rate / 1e6
        exchanges.append(CollectiveResult("send_recv", (a, b), "ok", "", 64 << 20, ms, rate, ("uint8",), 1000))
        routes.append(Route(a, b, kind, 450.0 if kind == "NV18" else 0.0))
    ring = CollectiveResult("ring", tuple(range(world_size)), "ok", "", 64 << 20, 0.5, 140.0, ("uint8",), 1000)
    return Communication(world_size, transport, facts, (*exchanges, ring), tuple(routes), 9.7)


def make_report(communication: Communication) -> Report:
    """Return doctor's report with this check of communication."""
    findings = communication_findings.make_findings(communication)
    return Report("doctor", s.h200(), findings, sections={"ring": RingSection(communication=communication)})
