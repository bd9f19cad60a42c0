"""Which tokens belong to which rank: how context-parallel schemes shard a sequence.

- contiguous: rank r of n holds the r-th n-th of the row (ring, llama3, Ulysses).
- zigzag: the row is cut into 2n chunks; rank r holds chunks r and 2n-1-r, so that causal work is balanced.
- stripe: rank r holds tokens r, r+n, r+2n, … (Striped Attention, arXiv 2311.09431).
- contiguous_documents, zigzag_documents: the same for each document separately, one document after the other.
- usp: zigzag over r groups of u = n/r ranks; the ranks of a group hold equal parts of its two chunks, in order.

RoPE needs each token's position in its document, on any rank. Source: `extract_local` in
zhuzilin/ring-flash-attention, test/test_*.py; yunchang 0.6.4, comm/extract_local.py.
"""

from itertools import accumulate
from typing import Literal

from attncheck.core.cases import Case

Sharding = Literal["contiguous", "zigzag", "stripe", "contiguous_documents", "zigzag_documents", "usp"]
_PARTS_PER_RANK: dict[Sharding, int] = {  # number of equal parts per rank that a row, or a document, is cut into
    "contiguous": 1,
    "zigzag": 2,
    "stripe": 1,
    "contiguous_documents": 1,
    "zigzag_documents": 2,
    "usp": 2,
}


def usp_degrees(case: Case) -> tuple[int, int]:
    """Return the ranks of a Ulysses group, the most below all that divide the kv heads, and the number of groups."""
    n = case.context_parallel_size
    fitting = [u for u in range(1, n) if n % u == 0 and case.num_kv_heads % u == 0 and case.num_heads % u == 0]
    ulysses = max(fitting, default=1)
    return ulysses, n // ulysses


def shard_ranges(sharding: Sharding, case: Case, rank: int) -> tuple[range, ...]:
    """Return the tokens of a row that belong to `rank`, in its order."""
    world_size = case.context_parallel_size
    if sharding == "stripe":
        return (range(rank, case.seqlen_q, world_size),)
    if sharding == "usp":
        return _share_in_group(case, rank)
    spans = _document_spans(case) if sharding.endswith("_documents") else [range(case.seqlen_q)]
    return tuple(part for span in spans for part in _shard_span(sharding, span, rank, world_size))


def _shard_span(sharding: Sharding, span: range, rank: int, world_size: int) -> list[range]:
    if sharding.startswith("zigzag"):
        size = len(span) // (2 * world_size)
        return [span[chunk * size : (chunk + 1) * size] for chunk in (rank, 2 * world_size - 1 - rank)]
    size = len(span) // world_size
    return [span[rank * size : (rank + 1) * size]]


def _share_in_group(case: Case, rank: int) -> tuple[range, ...]:
    """Return a rank's part of the two chunks that its Ulysses group holds."""
    ulysses, ring = usp_degrees(case)
    chunks = _shard_span("zigzag", range(case.seqlen_q), rank // ulysses, ring)
    size = case.seqlen_q // case.context_parallel_size
    start = rank % ulysses * size
    parts = []
    for chunk in chunks:
        parts.append(chunk[max(start, 0) : max(start + size, 0)])
        start -= len(chunk)
    return tuple(part for part in parts if part)


def _document_spans(case: Case) -> list[range]:
    """Return the tokens of each document of a packed row, or the whole row."""
    if case.layout != "packed":
        return [range(case.seqlen_q)]
    return [range(stop - length, stop) for length, stop in zip(case.seqlens_q, accumulate(case.seqlens_q))]


def explain_indivisible(sharding: Sharding, case: Case) -> str:
    """Return why the lengths of a case cannot be sharded over its ranks, or "" if they can."""
    parts = _PARTS_PER_RANK[sharding] * case.context_parallel_size
    if sharding.endswith("_documents"):
        for length in case.seqlens_q:
            if length % parts:
                return (
                    f"every document must be divisible by {parts} ({case.context_parallel_size} "
                    f"ranks); {length} does not"
                )
        return ""
    if case.seqlen_q % parts:
        return f"the length {case.seqlen_q} is not divisible by {parts} ({case.context_parallel_size} ranks)"
    return ""


def owning_rank(sharding: Sharding, case: Case, token: int) -> int:
    """Return the rank to which `token` of a row belongs."""
    ranks = range(case.context_parallel_size)
    return next(rank for rank in ranks if any(token in part for part in shard_ranges(sharding, case, rank)))
