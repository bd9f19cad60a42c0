"""Determinism over ranks: every scheme of context parallelism, repeated on a ring of n processes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace

from attncheck.core import codec
from attncheck.core.report import Report, merge
from attncheck.core.results.verdicts import Repeats
from attncheck.core.snapshot import Snapshot
from attncheck.measure import determinism
from attncheck.ring.communication_check import cannot_communicate, check_communication
from attncheck.ring.group import Ring, job, measured_on, only_rank_0_speaks, schemes
from attncheck.workers.execution import ExecutionTarget, Progress
from attncheck.workers.launcher_env import read_rank_env
from attncheck.workers.pool import Event
from attncheck.workers.ranks import RankRunner


def run(
    snapshot: Snapshot, request: determinism.Request, ring: Ring, bench: ExecutionTarget, say: Callable[[str], None]
) -> Report:
    """Return the report of determinism over ranks. Raises `Unanswered` where nothing can be repeated."""
    began = time.monotonic()
    cases = determinism.ring_cases(snapshot, request.seed, bench.uses_gpu, ring.size)
    say("looking for backends")
    states, chosen = schemes(bench, request.backends)
    checked = check_communication("determinism", snapshot, ring, bench, say)
    if cannot_communicate(checked):
        return checked
    items = [
        (state.name, f"{case.name}@{mode}")
        for state in chosen
        for case in cases
        for mode in determinism.modes(state.name)
    ]
    message = {
        "task": "attncheck.ring.worker.tasks:determinism",
        "repeats": request.repeats,
        "cases": codec.plain(cases),
    }
    work = job(ring, bench, ring.size, items, message)
    work = replace(work, seconds=bench.seconds * max(2.0, request.repeats / 6))
    progress = Progress(say, len(items))
    found: list[Repeats] = []

    def tell(event: Event) -> None:
        progress.on_event(event)
        if event.kind != "started":
            found.append(determinism.repeats_of(event, cases))

    ranks = RankRunner(bench.python, read_rank_env(os.environ))
    ranks.run(work, tell)
    only_rank_0_speaks(ranks)
    order = {state.name: index for index, state in enumerate(chosen)}
    found.sort(key=lambda item: (order[item.backend], item.case.layout))
    on = measured_on(ranks, ring, bench, request.seed, began)
    measured = determinism.report(snapshot, tuple(states), tuple(found), on)
    return merge("determinism", snapshot, (measured, checked))
