"""Checks communication among ranks, pair by pair and all at once, before anything is computed across them.

Each exchange is an item with its own deadline. A rank that hangs, dies or raises is therefore named, and the other
exchanges continue in another group.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

from attncheck.core import codec
from attncheck.core.io.errors import Following
from attncheck.core.report import Report
from attncheck.core.results.collectives import CollectiveResult, Communication, Operation, Transport
from attncheck.core.results.ring import RingSection
from attncheck.core.snapshot import Snapshot
from attncheck.doctor import engine
from attncheck.ring import communication_findings, topology
from attncheck.ring.group import RANK_ENTRY, Ring
from attncheck.ring.pairs import choose_pairs, count_ranks_per_node
from attncheck.workers import execution
from attncheck.workers.execution import ExecutionTarget
from attncheck.workers.launcher_env import read_rank_env
from attncheck.workers.pool import Event
from attncheck.workers.processors import share_cores
from attncheck.workers.ranks import RENDEZVOUS_SECONDS, RankJob, RankRunner

EXCHANGE_SECONDS = 30.0  # deadline of one exchange
ALL_RANKS = "all"
TRANSPORTS: dict[str, Transport] = {"cuda": "nccl", "cpu": "gloo"}
GROUP_OPERATIONS: tuple[Operation, ...] = ("ring", "all_gather", "reduce_scatter")


def make_job(
    world_size: int,
    target: ExecutionTarget,
    seconds: float = EXCHANGE_SECONDS,
    rendezvous_seconds: float = RENDEZVOUS_SECONDS,
) -> RankJob:
    """Return the job with the exchanges of `world_size` ranks: items ("send_recv", "0-1") and ("ring", "all")."""
    pairs = choose_pairs(world_size, count_ranks_per_node(os.environ, world_size))
    items: list[tuple[str, str]] = [("send_recv", f"{a}-{b}") for a, b in pairs]
    if world_size > 1:
        items += [(operation, ALL_RANKS) for operation in GROUP_OPERATIONS]
    message = {
        "task": "attncheck.ring.worker.communication:communication",
        "device": target.device,
        "threads": share_cores(world_size, os.environ),
    }
    return RankJob(world_size, RANK_ENTRY, message, tuple(items), seconds, rendezvous_seconds)


def run(
    world_size: int,
    target: ExecutionTarget,
    snapshot: Snapshot,
    report_progress: Callable[[str], None],
    seconds: float = EXCHANGE_SECONDS,
    rendezvous_seconds: float = RENDEZVOUS_SECONDS,
) -> Communication:
    """Return the result of every exchange; under an external launcher, all ranks except the first return none.

    Raises `Unanswered` if the ranks cannot start or meet.
    """
    began = time.monotonic()
    job = make_job(world_size, target, seconds, rendezvous_seconds)
    exchanges: list[CollectiveResult] = []

    def on_event(event: Event) -> None:
        report_progress(f"communication · {len(exchanges)} of {len(job.items)} exchanges · {event.job} {event.item}")
        if event.kind != "started":
            exchanges.append(_read_exchange(event, world_size))

    runner = RankRunner(target.python, read_rank_env(os.environ))
    runner.run(job, on_event)
    return make_communication(world_size, runner, tuple(exchanges), snapshot, time.monotonic() - began)


def make_communication(
    world_size: int, runner: RankRunner, exchanges: tuple[CollectiveResult, ...], snapshot: Snapshot, seconds: float
) -> Communication:
    """Return the exchanges with each rank's facts and the links between ranks that the snapshot shows."""
    facts = topology.make_rank_facts(runner.facts, snapshot)
    transport: Transport = TRANSPORTS.get(str(runner.device.get("kind", "")), "")
    pairs = [(e.ranks[0], e.ranks[1]) for e in exchanges if e.operation == "send_recv"]
    routes = topology.find_routes(pairs, facts, snapshot)
    return Communication(world_size, transport, facts, exchanges, routes, round(seconds, 3))


def _read_exchange(event: Event, world_size: int) -> CollectiveResult:
    if event.kind == "answer":
        return codec.read(CollectiveResult, event.answer)
    ranks = range(world_size) if event.item == ALL_RANKS else map(int, event.item.split("-"))
    return CollectiveResult(cast(Operation, event.job), tuple(ranks), execution.unmeasured_outcome(event), event.reason)


def check_communication(
    command: str, snapshot: Snapshot, ring: Ring, target: ExecutionTarget, report_progress: Callable[[str], None]
) -> Report:
    """Return the report of `command` with the communication check, which runs before anything is computed."""
    report = Report(command, snapshot)
    if not ring.checks_communication or ring.size == 1:
        return report
    result = run(ring.size, target, snapshot, report_progress, rendezvous_seconds=ring.rendezvous_seconds)
    return report.with_section(RingSection(communication=result), findings=communication_findings.make_findings(result))


def add_communication(
    report: Report,
    ring: Ring,
    target: ExecutionTarget,
    select: Sequence[str],
    ignore: Sequence[str],
    report_progress: Callable[[str], None],
) -> Report:
    """Return doctor's report with the findings of communication among ranks."""
    communication_report = check_communication(report.command, report.snapshot, ring, target, report_progress)
    if read_rank_env(os.environ) is not None and not list_exchanges(communication_report):
        raise Following("")
    merged = replace(report, sections={**report.sections, **communication_report.sections})
    return engine.add_findings(merged, communication_report.findings, select, ignore)


def list_exchanges(report: Report) -> tuple[CollectiveResult, ...]:
    """Return the exchanges among ranks in a report."""
    section = report.section(RingSection)
    return section.communication.exchanges if section is not None else ()


def cannot_communicate(report: Report) -> bool:
    """Return whether ranks cannot exchange data, which makes anything that they compute together meaningless."""
    return any(finding.code in ("ATN520", "ATN521") for finding in report.findings)
