"""The keys that a retrieve probe asks for; no torch, so that a script can be written anywhere."""

from __future__ import annotations

import random

from attncheck.cases import Case, bounds, segments


def targets(case: Case) -> list[list[int]]:
    """Return the key that each query asks for: itself and its neighbours, edges of window and document, chance."""
    chance = random.Random(case.seed)
    table = [[0] * case.seqlen_q for _ in range(case.batch)]
    for segment in segments(case):
        q, k = segment.q_stop - segment.q_start, segment.k_stop - segment.k_start
        low, high = bounds(case, q, k)
        for row in range(q):
            last = min(k - 1, row + high)
            first = max(0, row + low)
            places = (row, row + 1, row - 1, first, last, first - 1, last + 1, 0, -1, k, chance.randrange(max(1, k)))
            key = segment.k_start + chance.choice(places)
            table[segment.batch][segment.q_start + row] = min(max(key, 0), case.seqlen_k - 1)
    return table
