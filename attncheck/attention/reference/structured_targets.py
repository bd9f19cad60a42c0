"""The keys, factors and documents of structured probes, without torch, so that scripts can be written anywhere."""

import random

from attncheck.core.cases import Case, Segment, iter_segments, visible_bounds


def retrieval_targets(case: Case) -> list[list[int]]:
    """Return each query's target key `[batch][seqlen_q]`: its own, a neighbour, a window's or document's edge, any."""
    rng = random.Random(case.seed)
    table = [[0] * case.seqlen_q for _ in range(case.batch)]
    for segment in iter_segments(case):
        q, k = segment.q_stop - segment.q_start, segment.k_stop - segment.k_start
        low, high = visible_bounds(case, q, k)
        for row in range(q):
            last = min(k - 1, row + high)
            first = max(0, row + low)
            chunk_start = row - row % case.attention_chunk if case.attention_chunk else 0
            chunk_edges = (chunk_start, chunk_start - 1) if case.attention_chunk else ()
            candidates = (
                row,
                row + 1,
                row - 1,
                first,
                last,
                first - 1,
                last + 1,
                0,
                -1,
                k,
                rng.randrange(max(1, k)),
                *chunk_edges,
            )
            key = segment.k_start + rng.choice(candidates)
            table[segment.batch][segment.q_start + row] = min(max(key, 0), case.seqlen_k - 1)
    return table


def kv_poison_factor(case: Case) -> float:
    """Return the factor of k and v that must have no effect."""
    return 64.0 if case.dtype == "float16" else 1000.0  # float16 would overflow in a correct kernel


def q_poison_factor(case: Case) -> float:
    """Return the factor of q in other documents, whose float16 scores must not overflow."""
    return 1.0 if case.dtype == "float16" else kv_poison_factor(case)


def prefix_split(case: Case) -> int:
    """Return the first key of the second half, where the prefix probe splits."""
    return case.seqlen_k // 2 + 1


def tested_documents(case: Case) -> list[list[Segment]]:
    """Return the documents that must not change, in groups: all of a padded case, otherwise one at a time."""
    nonempty = [s for s in iter_segments(case) if s.q_stop > s.q_start and s.k_stop > s.k_start]
    if case.padded:
        return [nonempty]
    longest = max(nonempty, key=lambda s: s.k_stop - s.k_start)
    tested = (longest, nonempty[len(nonempty) // 2], nonempty[-1])
    return [[s] for s in dict.fromkeys(tested)]
