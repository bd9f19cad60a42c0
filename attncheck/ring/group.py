"""The requested ring, and what all measurements on it share."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from attncheck.core.io.errors import Following, Unanswered
from attncheck.core.verdicts import BackendState, MeasuredOn
from attncheck.measure import discovery
from attncheck.workers.execution import ExecutionTarget
from attncheck.workers.processors import share_cores
from attncheck.workers.ranks import RENDEZVOUS_SECONDS, RankJob, RankRunner

RANK_ENTRY = "attncheck.ring.worker.rank:main"  # the entry function of every process of a ring


EMULATED_GENERATION = "2.8"  # the generation of flash-attn that is emulated if none is installed


@dataclass(frozen=True)
class Ring:
    """The requested ring; without a GPU flash-attn's kernels are emulated, unless `emulate` decides otherwise."""

    size: int
    emulate: bool | None = None
    rendezvous_seconds: float = RENDEZVOUS_SECONDS
    checks_communication: bool = True  # whether communication is checked before anything is measured
    extra_path: str = ""  # a folder of packages that ranks import from before the environment's own

    def is_emulated(self, target: ExecutionTarget) -> bool:
        """Return whether plain torch replaces flash-attn's kernels."""
        return not target.uses_gpu if self.emulate is None else self.emulate


def make_job(
    ring: Ring, target: ExecutionTarget, size: int, items: Sequence[tuple[str, str]], message: dict[str, object]
) -> RankJob:
    """Return the job in which `size` ranks run `items`, (backend, name)."""
    full_message = {
        "device": target.device,
        # one thread, as torchrun sets for a training rank
        "threads": 1 if target.uses_gpu else share_cores(size, os.environ),
        "emulate": EMULATED_GENERATION if ring.is_emulated(target) else "",
        **message,
    }
    return RankJob(
        size,
        RANK_ENTRY,
        full_message,
        tuple(items),
        target.seconds,
        ring.rendezvous_seconds,
        ring.extra_path or target.extra_path,
    )


def choose_schemes(target: ExecutionTarget, names: Sequence[str]) -> tuple[list[BackendState], list[BackendState]]:
    """Return the state of every backend, and the context-parallel ones to measure. Raises `Unanswered` without any."""
    states = discovery.list_backends(target)
    chosen_states = discovery.choose_backends(states, names, over_ranks=True)
    if not chosen_states:
        missing = "; ".join(dict.fromkeys(s.missing for s in states if s.missing and s.over_ranks))
        raise Unanswered(f"no context-parallel backend can be measured here: {missing}")
    return states, chosen_states


def raise_if_follower(runner: RankRunner) -> None:
    """Raise `Following` on every rank except the first of an external launcher: rank 0 reports for all."""
    if runner.is_follower:
        raise Following("")


def make_measured_on(
    runner: RankRunner,
    ring: Ring,
    target: ExecutionTarget,
    seed: int,
    began: float,
    suite: str = "",
    not_reached: int = 0,
    interrupted: bool = False,
) -> MeasuredOn:
    """Return the record of device, torch, suite, seed, seconds and ring; `began` is a time.monotonic() value."""
    kind, name, torch = (str(runner.device.get(key, "")) for key in ("kind", "name", "torch"))
    record = MeasuredOn(kind, name, torch, suite, seed, round(time.monotonic() - began, 3), not_reached, interrupted)
    names = tuple(str(name) for name in runner.device.get("shimmed_names", ()))
    return replace(record, ring_size=ring.size, emulated=ring.is_emulated(target), shimmed_names=names)
