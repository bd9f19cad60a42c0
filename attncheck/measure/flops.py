"""Counts (query, key) pairs that a case lets see each other: what attention has to compute, and on which rank.

Counting is in closed form: the pairs of two runs of tokens that are at most a distance apart make a trapezium.
"""

from __future__ import annotations

from attncheck.core.cases import Case, segments, visible_bounds
from attncheck.core.sharding import Sharding, shards


def visible(case: Case) -> int:
    """Return the pairs of a case that are seen, of one head."""
    total = 0
    for segment in segments(case):
        q, k = segment.q_stop - segment.q_start, segment.k_stop - segment.k_start
        total += between(range(q), range(k), *visible_bounds(case, q, k))
    return total


def between(queries: range, keys: range, low: int, high: int) -> int:
    """Return how many pairs have low <= key - query <= high. Both ranges have the same step."""
    if not len(queries) or not len(keys):
        return 0
    step, apart = queries.step, queries.start - keys.start
    upper = (high + apart) // step
    lower = -((-low - apart) // step)  # rounded up
    sizes = len(queries), len(keys)
    return max(0, _up_to(*sizes, upper) - _up_to(*sizes, lower - 1))


def _up_to(queries: int, keys: int, distance: int) -> int:
    """Return how many pairs of places u < queries, v < keys have v - u <= distance."""
    return _ramp(queries + distance, keys) - _ramp(distance, keys)


def _ramp(last: int, top: int) -> int:
    """Return the sum of min(t, top) over t from 1 to `last`."""
    if last <= 0:
        return 0
    return last * (last + 1) // 2 if last <= top else top * (top + 1) // 2 + (last - top) * top


def by_step(sharding: Sharding, case: Case) -> tuple[tuple[int, ...], ...]:
    """Return for each rank the pairs, of one head, that it computes in each step of a ring.

    In step s rank r has the keys of rank r - s (zhuzilin/ring-flash-attention 0.1.8, ring_flash_attn.py
    `ring_flash_attn_forward`). A scheme that gathers all keys, as llama3's, computes a rank's sum at once.
    """
    world = case.context_parallel_size
    lies = [shards(sharding, case, rank) for rank in range(world)]
    return tuple(
        tuple(_seen(case, lies[rank], lies[(rank - step) % world]) for step in range(world)) for rank in range(world)
    )


def _seen(case: Case, queries: tuple[range, ...], keys: tuple[range, ...]) -> int:
    """Return the pairs between the tokens of a row that lie on one rank and those that lie on another."""
    total = 0
    for segment in segments(case):
        if segment.batch:
            break  # every row of the batch is sharded alike: `case.batch` times the first
        low, high = visible_bounds(case, segment.q_stop - segment.q_start, segment.k_stop - segment.k_start)
        mine = [_within(part, segment.q_start, segment.q_stop) for part in queries]
        others = [_within(part, segment.k_start, segment.k_stop) for part in keys]
        total += sum(between(q, k, low, high) for q in mine for k in others)
    return total * (1 if case.layout == "packed" else case.batch)


def _within(tokens: range, start: int, stop: int) -> range:
    """Return those of `tokens` from `start` to before `stop`, counted from `start`."""
    step = tokens.step
    first = tokens.start + max(0, -(-(start - tokens.start) // step)) * step
    return range(first - start, max(first, min(tokens.stop, stop)) - start, step)


BACKWARD = 2.5  # times the operations of the forward: five products of matrices for its two


def flops(case: Case) -> float:
    """Return the floating-point operations of a case, over all heads: only pairs that are seen count.

    Two products of matrices forward, 2 · head_dim and 2 · v_head_dim operations a pair, and 2.5 times that backward
    (Dao-AILab/flash-attention, benchmarks/benchmark_flash_attention.py, `flops`).
    """
    forward = visible(case) * case.num_heads * 2.0 * (case.head_dim + case.v_head_dim)
    return forward * (1.0 + BACKWARD if case.backward else 1.0)


def tflops(operations: float, ms: float) -> float:
    """Return TFLOP/s, 0 without a time."""
    return operations / ms / 1e9 if ms > 0 else 0.0
