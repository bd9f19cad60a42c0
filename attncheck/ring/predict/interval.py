"""How far a prediction may be off: each thing that is not known is moved to its ends, one at a time.

The changes add up as squares. The ends are no 95 % interval in a statistical sense: a link's are what it was given or
measured with, contention's and launching's what was seen on one kind of machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from attncheck.core.results.prediction import LinkRate
from attncheck.ring.predict.simulation import MOST_CONTENTION, Machine, PassTime

COPY_ERROR, LAUNCH_ERROR, MOST_LATENCY = 0.1, 0.25, 3.0


def bound_ms(machine: Machine, predict: Callable[[Machine], PassTime]) -> tuple[PassTime, float, float]:
    """Return what `predict` makes of the machine, and the least and the most milliseconds."""
    time = predict(machine)
    below = above = time.error_ms**2
    for best, worst in _iter_ends(machine):
        below += max(0.0, time.ms - predict(best).ms) ** 2
        above += max(0.0, predict(worst).ms - time.ms) ** 2
    return time, max(0.0, time.ms - math.sqrt(below)), time.ms + math.sqrt(above)


def _iter_ends(machine: Machine) -> Iterator[tuple[Machine, Machine]]:
    """Yield the machine at the better and at the worse end of each thing that is not known."""
    cluster = machine.cluster
    inner = [replace(cluster, inner=_at(cluster.inner, high)) for high in (True, False)]
    yield replace(machine, cluster=inner[0]), replace(machine, cluster=inner[1])
    if cluster.outer is not None:
        outer = [replace(cluster, outer=_at(cluster.outer, high)) for high in (True, False)]
        yield replace(machine, cluster=outer[0]), replace(machine, cluster=outer[1])
    if machine.contention:
        yield replace(machine, contention=0.0), replace(machine, contention=MOST_CONTENTION)
    yield replace(machine, latency=0.0), replace(machine, latency=MOST_LATENCY)
    copy_rates = [machine.copy_gb_per_s * factor for factor in (1 + COPY_ERROR, 1 - COPY_ERROR)]
    yield replace(machine, copy_gb_per_s=copy_rates[0]), replace(machine, copy_gb_per_s=copy_rates[1])
    launches = [
        {direction: ms * factor for direction, ms in machine.launch_ms.items()}
        for factor in (1 - LAUNCH_ERROR, 1 + LAUNCH_ERROR)
    ]
    yield replace(machine, launch_ms=launches[0]), replace(machine, launch_ms=launches[1])


def _at(link: LinkRate, high: bool) -> LinkRate:
    return replace(link, gb_per_s=link.high_gb_per_s if high else link.low_gb_per_s)
