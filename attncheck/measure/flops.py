"""Counts the visible (query, key) pairs of a case, which are the work of attention.

The count is in closed form: the pairs of two runs of tokens with a maximum distance form a trapezium.
"""

from attncheck.core.cases import Case, diagonal_shift, iter_segments, visible_bounds

BACKWARD_FACTOR = 2.5  # times the forward's operations: five matrix products instead of two


def count_visible_pairs(case: Case) -> int:
    """Return the number of visible (query, key) pairs of a case, for one head."""
    total = 0
    for segment in iter_segments(case):
        q, k = segment.q_stop - segment.q_start, segment.k_stop - segment.k_start
        low, high = visible_bounds(case, q, k)
        if case.attention_chunk:
            total += _count_chunked_pairs(case, q, k)
            continue
        total += max(0, _count_pairs_up_to(q, k, high) - _count_pairs_up_to(q, k, low - 1))
    return total


def _count_chunked_pairs(case: Case, queries: int, keys: int) -> int:
    """Return the number of visible pairs in one chunk of a document, query by query."""
    low, high = visible_bounds(case, queries, keys)
    shift, chunk = diagonal_shift(case, queries, keys), case.attention_chunk
    total = 0
    for row in range(queries):
        start = (row + shift) // chunk * chunk
        first, last = max(0, row + low, start), min(keys, row + high + 1, start + chunk)
        total += max(0, last - first)
    return total


def _count_pairs_up_to(queries: int, keys: int, distance: int) -> int:
    """Return the number of pairs of indices u < queries, v < keys with v - u <= distance."""
    return _sum_capped(queries + distance, keys) - _sum_capped(distance, keys)


def _sum_capped(last: int, cap: int) -> int:
    """Return the sum of min(t, cap) over t from 1 to `last`."""
    if last <= 0:
        return 0
    return last * (last + 1) // 2 if last <= cap else cap * (cap + 1) // 2 + (last - cap) * cap


def count_flops(case: Case) -> float:
    """Return the floating-point operations of a case over all heads, counting only visible pairs.

    Two matrix products forward, with 2 · head_dim and 2 · v_head_dim operations per pair, and 2.5 times that backward
    (Dao-AILab/flash-attention, benchmarks/benchmark_flash_attention.py, `flops`).
    """
    forward = count_visible_pairs(case) * case.num_heads * 2.0 * (case.head_dim + case.v_head_dim)
    return forward * (1.0 + BACKWARD_FACTOR if case.backward else 1.0)


def compute_tflops(operations: float, ms: float) -> float:
    """Return TFLOP/s of `operations` in `ms`, 0 without a time."""
    return operations / ms / 1e9 if ms > 0 else 0.0
