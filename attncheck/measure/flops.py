"""Counts the visible (query, key) pairs of a case: what attention has to compute, and on which rank.

Counting is in closed form: the pairs of two runs of tokens that are at most a distance apart make a trapezium.
"""

from __future__ import annotations

from attncheck.core.cases import Case, iter_segments, visible_bounds
from attncheck.core.sharding import Sharding, shard_ranges


def count_visible_pairs(case: Case) -> int:
    """Return how many (query, key) pairs of a case are visible, for one head."""
    total = 0
    for segment in iter_segments(case):
        q, k = segment.q_stop - segment.q_start, segment.k_stop - segment.k_start
        total += count_band_pairs(range(q), range(k), *visible_bounds(case, q, k))
    return total


def count_band_pairs(queries: range, keys: range, low: int, high: int) -> int:
    """Return how many pairs have low <= key - query <= high. Both ranges have the same step."""
    if not len(queries) or not len(keys):
        return 0
    step, offset = queries.step, queries.start - keys.start
    upper = (high + offset) // step
    lower = -((-low - offset) // step)  # rounded up
    lengths = len(queries), len(keys)
    return max(0, _count_pairs_up_to(*lengths, upper) - _count_pairs_up_to(*lengths, lower - 1))


def _count_pairs_up_to(queries: int, keys: int, distance: int) -> int:
    """Return how many pairs of indices u < queries, v < keys have v - u <= distance."""
    return _sum_capped(queries + distance, keys) - _sum_capped(distance, keys)


def _sum_capped(last: int, cap: int) -> int:
    """Return the sum of min(t, cap) over t from 1 to `last`."""
    if last <= 0:
        return 0
    return last * (last + 1) // 2 if last <= cap else cap * (cap + 1) // 2 + (last - cap) * cap


def count_pairs_by_step(sharding: Sharding, case: Case) -> tuple[tuple[int, ...], ...]:
    """Return for each rank the pairs, of one head, that it computes in each step of a ring.

    In step s rank r has the keys of rank r - s (zhuzilin/ring-flash-attention 0.1.8, ring_flash_attn.py
    `ring_flash_attn_forward`). A scheme that gathers all keys, as llama3's, computes a rank's sum at once.
    """
    world_size = case.context_parallel_size
    rank_shards = [shard_ranges(sharding, case, rank) for rank in range(world_size)]
    return tuple(
        tuple(
            _count_shard_pairs(case, rank_shards[rank], rank_shards[(rank - step) % world_size])
            for step in range(world_size)
        )
        for rank in range(world_size)
    )


def _count_shard_pairs(case: Case, queries: tuple[range, ...], keys: tuple[range, ...]) -> int:
    """Return the visible pairs between the queries of one rank and the keys of another."""
    total = 0
    for segment in iter_segments(case):
        if segment.batch:
            break  # every row of the batch is sharded alike: `case.batch` times the first
        low, high = visible_bounds(case, segment.q_stop - segment.q_start, segment.k_stop - segment.k_start)
        query_ranges = [_clip_range(part, segment.q_start, segment.q_stop) for part in queries]
        key_ranges = [_clip_range(part, segment.k_start, segment.k_stop) for part in keys]
        total += sum(count_band_pairs(q, k, low, high) for q in query_ranges for k in key_ranges)
    return total * (1 if case.layout == "packed" else case.batch)


def _clip_range(tokens: range, start: int, stop: int) -> range:
    """Return those of `tokens` from `start` to before `stop`, counted from `start`."""
    step = tokens.step
    first = tokens.start + max(0, -(-(start - tokens.start) // step)) * step
    return range(first - start, max(first, min(tokens.stop, stop)) - start, step)


BACKWARD_FACTOR = 2.5  # times the operations of the forward: five products of matrices for its two


def count_flops(case: Case) -> float:
    """Return the floating-point operations of a case, over all heads: only visible pairs count.

    Two products of matrices forward, 2 · head_dim and 2 · v_head_dim operations a pair, and 2.5 times that backward
    (Dao-AILab/flash-attention, benchmarks/benchmark_flash_attention.py, `flops`).
    """
    forward = count_visible_pairs(case) * case.num_heads * 2.0 * (case.head_dim + case.v_head_dim)
    return forward * (1.0 + BACKWARD_FACTOR if case.backward else 1.0)


def compute_tflops(operations: float, ms: float) -> float:
    """Return TFLOP/s of `operations` in `ms`, 0 without a time."""
    return operations / ms / 1e9 if ms > 0 else 0.0
