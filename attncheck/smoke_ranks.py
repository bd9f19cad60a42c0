"""The question of smoke that takes a group of ranks: model and plan -> ranks -> proof that parallel equals single."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace

from attncheck import codec, context_parallel, measured
from attncheck.attempting import OVER_RANKS, PATIENCE
from attncheck.context_parallel import Ring
from attncheck.errors import Unanswered
from attncheck.launch.place import place
from attncheck.launch.ranks import Ranks, RanksJob
from attncheck.launch.worker import Event
from attncheck.measured import Bench
from attncheck.plan import Plan
from attncheck.proofs import Proof


def measure(model: str, plan: Plan, ring: Ring, bench: Bench, say: Callable[[str], None]) -> Proof:
    """Return the proof of a plan on its ring; one of ranks that did not start or meet is lost, with the reason.

    Raises `Following` on every rank but the first of a launcher outside.
    """
    say(f"{model}: {plan.ring_size} ranks against one")
    began = time.monotonic()
    found: list[Proof] = []

    def tell(event: Event) -> None:
        if event.kind != "started":
            found.append(proof_of(event))

    ranks = Ranks(bench.python, place(os.environ))
    try:
        ranks.run(job(model, plan, ring, bench), tell)
    except Unanswered as error:  # what other questions found is not lost over it
        found.append(Proof(OVER_RANKS, "died", str(error)))
    context_parallel.only_rank_0_speaks(ranks)
    return replace(found[0], seconds=round(time.monotonic() - began, 3))


def job(model: str, plan: Plan, ring: Ring, bench: Bench) -> RanksJob:
    """Return the work of the plan's ranks."""
    cases = {model: {"model": model, "plan": codec.plain(plan)}}
    message: dict[str, object] = {"task": "smoke", "cases": cases}
    whole = context_parallel.job(ring, bench, plan.ring_size, [(plan.scheme, model)], message)
    return replace(whole, seconds=whole.seconds * PATIENCE)


def proof_of(event: Event) -> Proof:
    """Return what came of the item: the proof, or how it was lost."""
    if event.kind == "answer":
        return codec.read(Proof, event.answer)
    return Proof(OVER_RANKS, measured.outcome(event), event.reason)
