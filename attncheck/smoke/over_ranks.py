"""The question of smoke that takes a group of ranks: model and plan -> ranks -> proof that parallel equals single."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace

from attncheck.core import codec
from attncheck.core.errors import Unanswered
from attncheck.core.plan import Plan
from attncheck.core.results.smoke import CheckResult
from attncheck.ring import group
from attncheck.ring.group import Ring
from attncheck.smoke.trials import OVER_RANKS, PATIENCE
from attncheck.workers import execution
from attncheck.workers.execution import ExecutionTarget
from attncheck.workers.launcher_env import read_rank_env
from attncheck.workers.pool import Event
from attncheck.workers.ranks import RankJob, RankRunner


def measure(model: str, plan: Plan, ring: Ring, bench: ExecutionTarget, say: Callable[[str], None]) -> CheckResult:
    """Return the proof of a plan on its ring; one of ranks that did not start or meet is lost, with the reason.

    Raises `Following` on every rank but the first of a launcher outside.
    """
    say(f"{model}: {plan.ring_size} ranks against one")
    began = time.monotonic()
    found: list[CheckResult] = []

    def tell(event: Event) -> None:
        if event.kind != "started":
            found.append(proof_of(event))

    ranks = RankRunner(bench.python, read_rank_env(os.environ))
    try:
        ranks.run(job(model, plan, ring, bench), tell)
    except Unanswered as error:  # what other questions found is not lost over it
        found.append(CheckResult(OVER_RANKS, "died", str(error)))
    group.only_rank_0_speaks(ranks)
    return replace(found[0], seconds=round(time.monotonic() - began, 3))


def job(model: str, plan: Plan, ring: Ring, bench: ExecutionTarget) -> RankJob:
    """Return the work of the plan's ranks."""
    cases = {model: {"model": model, "plan": codec.plain(plan)}}
    message: dict[str, object] = {"task": "attncheck.smoke.worker.ranks.parallel:smoke", "cases": cases, "shim": False}
    whole = group.job(ring, bench, plan.ring_size, [(plan.scheme, model)], message)
    return replace(whole, seconds=whole.seconds * PATIENCE)


def proof_of(event: Event) -> CheckResult:
    """Return what came of the item: the proof, or how it was lost."""
    if event.kind == "answer":
        return codec.read(CheckResult, event.answer)
    return CheckResult(OVER_RANKS, execution.unmeasured_outcome(event), event.reason)
