"""Runs smoke's check on a group of ranks: whether training across ranks equals training on one rank."""

import os
import time
from collections.abc import Callable
from dataclasses import replace

from attncheck.core import codec
from attncheck.core.io.errors import Unanswered
from attncheck.core.plan import Plan
from attncheck.core.results.smoke import CheckResult
from attncheck.ring import group
from attncheck.ring.group import Ring
from attncheck.smoke.trials import DEADLINE_FACTOR, PARALLEL_CHECK, read_result
from attncheck.workers.execution import ExecutionTarget
from attncheck.workers.launcher_env import read_rank_env
from attncheck.workers.pool import Event
from attncheck.workers.ranks import RankJob, RankRunner


def run_parallel_check(
    model: str, plan: Plan, ring: Ring, target: ExecutionTarget, report_progress: Callable[[str], None]
) -> CheckResult:
    """Return the result of the check across ranks; if ranks did not start or meet, it is lost, with the reason.

    Raises `Following` on every rank but the first of an external launcher.
    """
    report_progress(f"{model}: {plan.ring_size} ranks compared with one")
    began = time.monotonic()
    results: list[CheckResult] = []

    def on_event(event: Event) -> None:
        if event.kind != "started":
            results.append(read_result(event, PARALLEL_CHECK))

    ranks = RankRunner(target.python, read_rank_env(os.environ))
    try:
        ranks.run(make_rank_job(model, plan, ring, target), on_event)
    except Unanswered as error:  # an error here must not lose the other checks' results
        results.append(CheckResult(PARALLEL_CHECK, "died", str(error)))
    group.raise_if_follower(ranks)
    return replace(results[0], seconds=round(time.monotonic() - began, 3))


def make_rank_job(model: str, plan: Plan, ring: Ring, target: ExecutionTarget) -> RankJob:
    """Return the job of the plan's ranks."""
    cases = {model: {"model": model, "plan": codec.to_plain(plan)}}
    message: dict[str, object] = {"task": "attncheck.smoke.worker.ranks.parallel:smoke", "cases": cases, "shim": False}
    rank_job = group.make_job(ring, target, plan.ring_size, [(plan.scheme, model)], message)
    return replace(rank_job, seconds=rank_job.seconds * DEADLINE_FACTOR)
