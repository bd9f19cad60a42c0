"""The ring that was asked for, and what all that is measured on it shares."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from attncheck.core.errors import Following, Unanswered
from attncheck.core.results.verdicts import BackendState, MeasuredOn
from attncheck.measure import discovery
from attncheck.workers.execution import ExecutionTarget
from attncheck.workers.pool import count_cores
from attncheck.workers.ranks import RENDEZVOUS_SECONDS, RankJob, RankRunner

RANK = "attncheck.ring.worker.rank:main"  # what every process of a ring runs


EMULATED = "2.8"  # the generation of flash-attn that stands in where there is none


@dataclass(frozen=True)
class Ring:
    """The ring that was asked for; flash-attn's kernels are emulated where there is no GPU, unless `emulate` says."""

    size: int
    emulate: bool | None = None
    rendezvous: float = RENDEZVOUS_SECONDS
    communication: bool = True  # checked first
    extra_path: str = ""  # a folder of packages that ranks find before the environment's

    def emulated(self, bench: ExecutionTarget) -> bool:
        """Say whether plain torch stands in for flash-attn's kernels."""
        return not bench.uses_gpu if self.emulate is None else self.emulate


def job(
    ring: Ring, bench: ExecutionTarget, size: int, items: Sequence[tuple[str, str]], message: dict[str, object]
) -> RankJob:
    """Return the work of `size` ranks on `items`, (backend, name)."""
    whole = {
        "device": bench.device,
        "threads": 1 if bench.uses_gpu else max(1, count_cores() // size),  # one, as torchrun leaves a training rank
        "emulate": EMULATED if ring.emulated(bench) else "",
        **message,
    }
    return RankJob(size, RANK, whole, tuple(items), bench.seconds, ring.rendezvous, ring.extra_path)


def schemes(bench: ExecutionTarget, names: Sequence[str]) -> tuple[list[BackendState], list[BackendState]]:
    """Return every backend's state, and the context-parallel ones to measure. Raises `Unanswered` where none is."""
    states = discovery.list_backends(bench)
    chosen = discovery.choose_backends(states, names, ranks=True)
    if not chosen:
        missing = "; ".join(dict.fromkeys(s.missing for s in states if s.missing and s.over_ranks))
        raise Unanswered(f"no context-parallel backend can be measured here: {missing}")
    return states, chosen


def only_rank_0_speaks(ranks: RankRunner) -> None:
    """Raise `Following` on every rank but the first of a launcher outside: rank 0 reports for all."""
    if ranks.is_follower:
        raise Following("")


def measured_on(
    ranks: RankRunner,
    ring: Ring,
    bench: ExecutionTarget,
    seed: int,
    began: float,
    suite: str = "",
    not_reached: int = 0,
) -> MeasuredOn:
    """Return what was measured on, with the ring; `began` is a time.monotonic() value."""
    kind, name, torch = (str(ranks.device.get(key, "")) for key in ("kind", "name", "torch"))
    on = MeasuredOn(kind, name, torch, suite, seed, round(time.monotonic() - began, 3), not_reached)
    names = tuple(str(name) for name in ranks.device.get("shimmed_names", ()))
    return replace(on, ring_size=ring.size, emulated=ring.emulated(bench), shimmed_names=names)
