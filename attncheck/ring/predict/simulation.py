"""The time of a schedule on a machine: each step takes its computing or its sending time, whichever is longer.

step = max(block + merge, exchange) + contention · min(block + merge, exchange) + unhidden transfers

A hidden exchange still uses multiprocessors and memory bandwidth, so computing takes longer meanwhile. A step never
takes less time than its launches on the host.
"""

from dataclasses import dataclass, field, replace

from attncheck.ring.predict.block_times import BlockTimes, Pass
from attncheck.ring.predict.cluster import EXCHANGE_LATENCY_MS, HOP_LATENCY_MS, Cluster
from attncheck.ring.predict.schedules import Schedule, Transfer, Work

# The share of a hidden exchange that is added to the computing time. One value was chosen for the twelve rows of ring,
# zigzag and stripe on four and eight H200, forward and both passes; each row's own value is between 0 and 1.
CONTENTION, MOST_CONTENTION = 0.4, 0.8
# Launch times per step on a GPU's host: four steps, forward and backward, took 4.5 to 7 ms on H200 at any length.
LAUNCH_MS: dict[Pass, float] = {"forward": 0.45, "backward": 0.95}


@dataclass(frozen=True)
class Machine:
    """The measurements of one device, and the cluster of such devices."""

    blocks: BlockTimes
    copy_gb_per_s: float
    cluster: Cluster
    contention: float = CONTENTION
    latency: float = 1.0  # times the usual one
    launch_ms: dict[Pass, float] = field(default_factory=lambda: dict(LAUNCH_MS))


@dataclass(frozen=True)
class PassTime:
    """Milliseconds of a pass and their parts; `ms` exceeds their sum if launching takes longer."""

    ms: float = 0.0
    compute_ms: float = 0.0
    merge_ms: float = 0.0
    exposed_ms: float = 0.0
    slowed_ms: float = 0.0
    launch_ms: float = 0.0
    error_ms: float = 0.0  # error of the blocks' times

    def __add__(self, other: "PassTime") -> "PassTime":
        """Return the sum of both passes."""
        return PassTime(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


def simulate(schedule: Schedule, machine: Machine, ring_size: int) -> PassTime:
    """Return the time of a pass over `ring_size` ranks."""
    total, steps = PassTime(), 0
    for step in schedule.steps:
        if step.count < 1:
            continue
        slowest = max((_time_work(work, schedule.direction, machine) for work in step.works), key=lambda time: time.ms)
        sent_ms = sum(transfer_ms(transfer, machine, ring_size) for transfer in step.overlapped)
        waited_ms = sum(transfer_ms(transfer, machine, ring_size) for transfer in step.waiting)
        exposed_ms = max(0.0, sent_ms - slowest.ms) + waited_ms
        slowed_ms = machine.contention * min(sent_ms, slowest.ms)
        ms = slowest.ms + exposed_ms + slowed_ms
        total += _times(step.count, replace(slowest, ms=ms, exposed_ms=exposed_ms, slowed_ms=slowed_ms))
        steps += step.count
    launch_ms = machine.launch_ms[schedule.direction] * steps if ring_size > 1 else 0.0
    return replace(total, ms=max(total.ms, launch_ms), launch_ms=launch_ms)


def _time_work(work: Work, direction: Pass, machine: Machine) -> PassTime:
    estimates = [machine.blocks.estimate(block, direction) for block in work.blocks]
    compute_ms = sum(ms for ms, _ in estimates)
    merge_ms = work.merged_bytes / machine.copy_gb_per_s / 1e6 if machine.copy_gb_per_s else 0.0
    error_ms = sum(ms * error for ms, error in estimates)
    return PassTime(compute_ms + merge_ms, compute_ms, merge_ms, error_ms=error_ms)


def _times(count: int, time: PassTime) -> PassTime:
    return PassTime(*(count * getattr(time, name) for name in time.__dataclass_fields__))


def transfer_ms(transfer: Transfer, machine: Machine, ring_size: int) -> float:
    """Return the milliseconds of a transfer; between nodes, each GPU's share of the network limits it.

    A ring waits for the neighbours that are on two nodes. In a collective each GPU receives the other nodes' data
    through all of its node's network, and its own node's data through the link within the node.
    """
    cluster = machine.cluster
    inner_rate = cluster.inner.gb_per_s
    inner_ms = transfer.bytes / inner_rate / 1e6
    latency_ms = EXCHANGE_LATENCY_MS + (HOP_LATENCY_MS * (ring_size - 1) if transfer.pattern != "neighbour" else 0.0)
    latency_ms *= machine.latency
    if cluster.count_nodes(ring_size) == 1 or cluster.outer is None:
        return inner_ms + latency_ms
    outer_rate = cluster.outer.gb_per_s
    if transfer.pattern == "neighbour":
        return transfer.bytes / min(inner_rate, outer_rate) / 1e6 + latency_ms
    outside = (ring_size - cluster.gpus_per_node) / (ring_size - 1)
    if transfer.pattern == "gather":  # a node's GPUs fetch each part once, together
        return max(inner_ms, transfer.bytes * outside / cluster.gpus_per_node / outer_rate / 1e6) + latency_ms
    return max(inner_ms * (1.0 - outside), transfer.bytes * outside / outer_rate / 1e6) + latency_ms
