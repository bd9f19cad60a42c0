"""Determinism across ranks: repeats every context-parallel scheme on a ring of n processes."""

import os
import time
from collections.abc import Callable
from dataclasses import replace

from attncheck.core import codec
from attncheck.core.report import InterruptedRun, Repeats, Report, merge_reports
from attncheck.core.snapshot import Snapshot
from attncheck.measure import determinism
from attncheck.ring.communication_check import cannot_communicate, check_communication
from attncheck.ring.group import Ring, choose_schemes, make_job, make_measured_on, raise_if_follower
from attncheck.workers.execution import ExecutionTarget, Progress
from attncheck.workers.launcher_env import read_rank_env
from attncheck.workers.pool import Event
from attncheck.workers.ranks import RankRunner


def run(
    snapshot: Snapshot,
    request: determinism.Request,
    ring: Ring,
    target: ExecutionTarget,
    report_progress: Callable[[str], None],
) -> Report:
    """Return the report of determinism across ranks. Raises `Unanswered` if nothing can be repeated."""
    began = time.monotonic()
    cases = determinism.choose_ring_cases(snapshot, request.seed, target.uses_gpu, ring.size)
    report_progress("looking for backends")
    states, chosen_states = choose_schemes(target, request.backends)
    communication_report = check_communication("determinism", snapshot, ring, target, report_progress)
    if cannot_communicate(communication_report):
        return communication_report
    items = [
        (state.name, f"{case.name}@{mode}")
        for state in chosen_states
        for case in cases
        for mode in determinism.choose_modes(state.name)
    ]
    message = {
        "task": "attncheck.ring.worker.tasks:determinism",
        "repeats": request.repeats,
        "cases": codec.to_plain(cases),
    }
    rank_job = make_job(ring, target, ring.size, items, message)
    rank_job = replace(rank_job, seconds=target.seconds * max(2.0, request.repeats / 6))
    progress = Progress(report_progress, len(items))
    measurements: list[Repeats] = []

    def on_event(event: Event) -> None:
        progress.on_event(event)
        if event.kind != "started":
            measurements.append(determinism.read_repeats(event, cases))

    runner = RankRunner(target.python, read_rank_env(os.environ))

    def report_measurements(not_reached: int = 0, interrupted: bool = False) -> Report:
        order = {state.name: index for index, state in enumerate(chosen_states)}
        measurements.sort(key=lambda repeats: (order[repeats.backend], repeats.case.layout))
        measured_on = make_measured_on(runner, ring, target, request.seed, began, "", not_reached, interrupted)
        report = determinism.make_report(snapshot, tuple(states), tuple(measurements), measured_on)
        return merge_reports("determinism", snapshot, (report, communication_report))

    try:
        runner.run(rank_job, on_event)
    except KeyboardInterrupt:
        if not measurements:
            raise
        raise InterruptedRun(report_measurements(len(items) - len(measurements), interrupted=True)) from None
    raise_if_follower(runner)
    return report_measurements()
