"""Runs items on real gloo ranks, as parity across ranks does, without the command around it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from attncheck.core import codec
from attncheck.core.cases import Case
from attncheck.core.verdicts import Run
from attncheck.ring.group import RANK_ENTRY
from attncheck.workers.pool import Event
from attncheck.workers.ranks import RankJob, RankRunner


def run_items(ranks: int, items: Iterable[tuple[str, str]], **message: Any) -> list[Event]:
    """Return the events of one job's items in their order, without the "started" ones."""
    events: list[Event] = []
    document = {"device": "cpu", "threads": 1, "emulate": "2.8", **message}
    RankRunner(sys.executable).run(RankJob(ranks, RANK_ENTRY, document, tuple(items), 60.0), events.append)
    return [event for event in events if event.kind != "started"]


def measure_items(
    ranks: int, items: Iterable[tuple[str, str]], cases: Iterable[Case], **message: Any
) -> dict[tuple[str, str], Run]:
    """Return the run of each item, (backend, case's name)."""
    by_name = {case.name: case for case in cases}
    documents = codec.to_plain(tuple(by_name.values()))
    runs = {}
    for event in run_items(ranks, items, task="attncheck.ring.worker.tasks:parity", cases=documents, **message):
        lost_run = Run(event.job, by_name[event.item], "raised", event.reason)
        runs[event.job, event.item] = codec.read(Run, event.answer) if event.kind == "answer" else lost_run
    return runs
