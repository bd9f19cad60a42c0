"""The check of communication among ranks: pair by pair and all at once, before anything is computed over them.

Each exchange is an item with its own deadline, so that a rank that hangs, dies or raises is named, and the rest goes on
in another group.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import cast

from attncheck.core import codec
from attncheck.core.results.collectives import CollectiveResult, Communication, Operation, Transport
from attncheck.core.snapshot import Snapshot
from attncheck.ring import topology
from attncheck.ring.group import RANK
from attncheck.workers import execution
from attncheck.workers.execution import ExecutionTarget
from attncheck.workers.launcher_env import read_rank_env
from attncheck.workers.pool import Event, count_cores
from attncheck.workers.ranks import RENDEZVOUS_SECONDS, RankJob, RankRunner

SECONDS = 30.0  # for one exchange
WHOLE = 4  # ranks up to which every pair is tried
CENTRE = 64  # ranks up to which rank 0 is paired with all: each pair costs it a communicator's memory
ALL = "all"
TRANSPORTS: dict[str, Transport] = {"cuda": "nccl", "cpu": "gloo"}
GROUP: tuple[Operation, ...] = ("ring", "all_gather", "reduce_scatter")


def pairs(world_size: int) -> tuple[tuple[int, int], ...]:
    """Return the pairs to try: all of up to 4 ranks; of more, neighbours on the ring, and rank 0 with each of 64."""
    if world_size <= WHOLE:
        return tuple((a, b) for a in range(world_size) for b in range(a + 1, world_size))
    neighbours = [(rank, rank + 1) for rank in range(world_size - 1)]
    others = [(0, rank) for rank in range(2, world_size)] if world_size <= CENTRE else [(0, world_size - 1)]
    return (*neighbours, *others)


def job(
    world_size: int, bench: ExecutionTarget, seconds: float = SECONDS, rendezvous: float = RENDEZVOUS_SECONDS
) -> RankJob:
    """Return the exchanges of `world_size` ranks as work: items ("send_recv", "0-1") and ("ring", "all")."""
    items: list[tuple[str, str]] = [("send_recv", f"{a}-{b}") for a, b in pairs(world_size)]
    if world_size > 1:
        items += [(operation, ALL) for operation in GROUP]
    message = {
        "task": "attncheck.ring.worker.communication:communication",
        "device": bench.device,
        "threads": max(1, count_cores() // world_size),
    }
    return RankJob(world_size, RANK, message, tuple(items), seconds, rendezvous)


def run(
    world_size: int,
    bench: ExecutionTarget,
    snapshot: Snapshot,
    say: Callable[[str], None],
    seconds: float = SECONDS,
    rendezvous: float = RENDEZVOUS_SECONDS,
) -> Communication:
    """Return what came of every exchange. Under a launcher outside, all ranks but the first return one without any.

    Raises `Unanswered` where the ranks cannot start or meet.
    """
    began = time.monotonic()
    work = job(world_size, bench, seconds, rendezvous)
    found: list[CollectiveResult] = []

    def tell(event: Event) -> None:
        say(f"communication · {len(found)} of {len(work.items)} exchanges · {event.job} {event.item}")
        if event.kind != "started":
            found.append(_exchange(event, world_size))

    ranks = RankRunner(bench.python, read_rank_env(os.environ))
    ranks.run(work, tell)
    return assembled(world_size, ranks, tuple(found), snapshot, time.monotonic() - began)


def assembled(
    world_size: int, ranks: RankRunner, exchanges: tuple[CollectiveResult, ...], snapshot: Snapshot, seconds: float
) -> Communication:
    """Return the check as data, with what `ranks` told of themselves and how the snapshot says they are joined."""
    facts = topology.ranks_of(ranks.facts, snapshot)
    transport: Transport = TRANSPORTS.get(str(ranks.device.get("kind", "")), "")
    joined = topology.routes(pairs(world_size), facts, snapshot)
    return Communication(world_size, transport, facts, exchanges, joined, round(seconds, 3))


def _exchange(event: Event, world_size: int) -> CollectiveResult:
    if event.kind == "answer":
        return codec.read(CollectiveResult, event.answer)
    ranks = range(world_size) if event.item == ALL else map(int, event.item.split("-"))
    return CollectiveResult(cast(Operation, event.job), tuple(ranks), execution.unmeasured_outcome(event), event.reason)
