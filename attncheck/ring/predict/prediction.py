"""Predicts what every scheme reaches for one shape on one cluster, row by row, or why a scheme refuses.

The uncertainties are added as squares. The interval is not a statistical 95 % interval: a link's bounds are given or
measured, and those for contention and launching come from one kind of machine.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from attncheck.attention.backend import Device
from attncheck.core.cases import BYTES_PER_ELEMENT, Case, Dtype
from attncheck.core.results.prediction import LinkRate, Prediction
from attncheck.core.results.ring_timings import PASSES, Passes
from attncheck.measure import discovery
from attncheck.ring.predict.memory import estimate_memory
from attncheck.ring.predict.schedules import LLAMA3, make_schedule
from attncheck.ring.predict.simulation import MOST_CONTENTION, Machine, PassTime, simulate
from attncheck.ring.roofline import Shape

COPY_ERROR, LAUNCH_ERROR, MOST_LATENCY = 0.1, 0.25, 3.0


def bound_ms(machine: Machine, predict: Callable[[Machine], PassTime]) -> tuple[PassTime, float, float]:
    """Return `predict` for the machine, and its least and most milliseconds."""
    time = predict(machine)
    below = above = time.error_ms**2
    for best, worst in _iter_ends(machine):
        below += max(0.0, time.ms - predict(best).ms) ** 2
        above += max(0.0, predict(worst).ms - time.ms) ** 2
    return time, max(0.0, time.ms - math.sqrt(below)), time.ms + math.sqrt(above)


def _iter_ends(machine: Machine) -> Iterator[tuple[Machine, Machine]]:
    """Yield the machine at the better and the worse end of each uncertain value."""
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


SMALL_LOSS = 0.05  # losses below this share of the time are not a bottleneck


@dataclass(frozen=True)
class Question:
    """The question: a causal row of `seqlen` tokens in all, its heads, the schemes, and the largest ring."""

    seqlen: int
    ring_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: Dtype
    schemes: tuple[str, ...]

    def share(self, ring_size: int) -> Shape:
        """Return the shape of a rank's share on a ring of this size."""
        bytes_per_element = BYTES_PER_ELEMENT[self.dtype]
        return Shape(self.seqlen // ring_size, self.num_heads, self.num_kv_heads, self.head_dim, bytes_per_element)

    @property
    def strides(self) -> tuple[int, ...]:
        """The values of heads_k_stride that divide the kv heads."""
        return tuple(stride for stride in range(1, self.num_kv_heads + 1) if self.num_kv_heads % stride == 0)

    @property
    def ring_sizes(self) -> tuple[int, ...]:
        """The ring size, and its halves down to two."""
        sizes = [self.ring_size]
        while sizes[-1] % 2 == 0 and sizes[-1] > 2:
            sizes.append(sizes[-1] // 2)
        return tuple(sizes)


def predict_all(question: Question, machine: Machine) -> tuple[Prediction, ...]:
    """Return every scheme on the requested ring size, with every stride, and on its halves."""
    rows = [
        predict_scheme(question, machine, scheme, passes, question.ring_size, stride)
        for passes in PASSES
        for scheme in question.schemes
        for stride in (question.strides if scheme == LLAMA3 else (0,))
    ]
    for ring_size in question.ring_sizes[1:]:
        for scheme in question.schemes:
            stride = question.num_kv_heads if scheme == LLAMA3 else 0
            rows.append(predict_scheme(question, machine, scheme, "forward_backward", ring_size, stride))
    return tuple(rows)


def predict_scheme(
    question: Question, machine: Machine, scheme: str, passes: Passes, ring_size: int, stride: int = 0
) -> Prediction:
    """Return one row: the time with its expected interval, or why the scheme refuses."""
    nodes = machine.cluster.count_nodes(ring_size)
    blank = Prediction(scheme, passes, ring_size, nodes, question.seqlen, stride)
    reason = explain_refusal(question, scheme, ring_size, stride)
    if reason:
        return replace(blank, outcome="refused", reason=reason)
    shape = question.share(ring_size)
    time, low_ms, high_ms = bound_ms(
        machine, lambda machine: time_passes(machine, scheme, passes, shape, ring_size, stride)
    )
    local = time_passes(machine, scheme, passes, shape, 1)
    return replace(
        blank,
        ms=round(time.ms, 5),
        low_ms=round(low_ms, 5),
        high_ms=round(high_ms, 5),
        iterations_per_s=round(1e3 / time.ms, 4),
        tokens_per_s=round(1e3 * question.seqlen / time.ms, 1),
        efficiency=round(ring_size * local.ms / time.ms, 4),
        memory_bytes=estimate_memory(scheme, passes, shape, ring_size, stride),
        compute_ms=round(time.compute_ms, 5),
        merge_ms=round(time.merge_ms, 5),
        exposed_ms=round(time.exposed_ms, 5),
        slowed_ms=round(time.slowed_ms, 5),
        launch_ms=round(time.launch_ms, 5),
        limited_by=describe_limit(time, ring_size * local.ms),
    )


def time_passes(
    machine: Machine, scheme: str, passes: Passes, shape: Shape, ring_size: int, stride: int = 0
) -> PassTime:
    """Return the time of a forward, or of a forward and a backward."""
    time = simulate(make_schedule(scheme, "forward", shape, ring_size, stride), machine, ring_size)
    if passes == "forward":
        return time
    return time + simulate(make_schedule(scheme, "backward", shape, ring_size, stride), machine, ring_size)


def explain_refusal(question: Question, scheme: str, ring_size: int, stride: int = 0) -> str:
    """Return why a scheme cannot run the row on this many ranks, in its backend's words; "" if it can."""
    if ring_size == 1:
        return ""
    case = Case(
        "predict",
        (question.seqlen,),
        (question.seqlen,),
        layout="packed" if scheme == LLAMA3 else "dense",
        num_heads=question.num_heads,
        num_kv_heads=question.num_kv_heads,
        head_dim=question.head_dim,
        v_head_dim=question.head_dim,
        dtype=question.dtype,
        context_parallel_size=ring_size,
        heads_k_stride=stride,
    )
    # The cluster's GPUs are not available here: kernels are taken as flash-attn's on a current GPU.
    device = Device("cuda", compute_capability=(9, 0), ranks=ring_size, emulated=True)
    return discovery.get_backend(scheme).refuse(case, device)


def describe_limit(time: PassTime, ideal_ms: float) -> str:
    """Return what keeps a scheme below n times one device's speed, the largest part."""
    parts_ms = time.compute_ms + time.merge_ms + time.exposed_ms + time.slowed_ms
    losses_ms = {
        "uneven causal work": time.compute_ms - ideal_ms,
        "communication that compute cannot hide": time.exposed_ms,
        "communication that slows compute": time.slowed_ms,
        "merging of blocks and copies": time.merge_ms,
        "kernel launches: the host is slower than the device": time.ms - parts_ms,
    }
    largest = max(losses_ms, key=lambda name: losses_ms[name])
    return largest if losses_ms[largest] > SMALL_LOSS * time.ms else "computing"


def rank_schemes(rows: Sequence[Prediction], ring_size: int, passes: Passes) -> list[Prediction]:
    """Return the predicted rows of one ring size and kind of pass, the fastest first."""
    chosen = (row for row in rows if row.ring_size == ring_size and row.passes == passes and row.outcome == "ok")
    return sorted(chosen, key=lambda row: row.ms)
