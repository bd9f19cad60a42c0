"""The limit of a ring: a roofline of attention, communication and merging; it only computes.

T = sum over steps max(compute, communication) + merging;  achievable efficiency Y = n · t_c / T

t_c is the measured time of the local causal call, forward or backward. t_f is that of the same call without a mask, a
full block, which takes a little less than twice as long. The first step of a ring costs t_c, and every further one t_f
on the busiest rank. zigzag and stripe halve every block, so that each further step costs t_f / 2. Communication is K
and V (in backward also dK and dV in float32) over the measured rate of one exchange. Merging reads and writes a float32
accumulator and reads a 16-bit block: 12 bytes per element for the first, 10 for each further one, over the device's
measured copy rate. Ring Attention (arXiv 2310.01889) gives the condition under which communication is hidden, and
Striped Attention (arXiv 2311.09431) the imbalance.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Scheme = Literal["ring", "balanced", "llama3", "ulysses", "hybrid"]  # "hybrid" has no bound
FIRST_MERGE_BYTES, FURTHER_MERGE_BYTES = 12.0, 10.0  # bytes per element that fused merging moves


@dataclass(frozen=True)
class Shape:
    """A rank's share: tokens, heads, kv heads, head_dim, bytes per element."""

    seqlen: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    bytes: int = 2


@dataclass(frozen=True)
class Rates:
    """Measured rates of an exchange between neighbours and of a device copy (read and write), in GB/s of 10⁹ bytes."""

    link_gb_per_s: float
    copy_gb_per_s: float


@dataclass(frozen=True)
class Bound:
    """The achievable efficiency of one pass, and its parts in milliseconds."""

    efficiency: float
    compute_ms: float
    communication_ms: float  # total of all steps, hidden or not
    exposed_ms: float  # the part that computing cannot hide
    merge_ms: float


def exchange_bytes(shape: Shape, backward: bool) -> float:
    """Return the bytes that a rank sends in one step: K and V, in backward also dK and dV in float32."""
    return 2.0 * shape.seqlen * shape.num_kv_heads * shape.head_dim * (shape.bytes + (4 if backward else 0))


def merge_bytes(shape: Shape, ring_size: int, backward: bool) -> float:
    """Return the bytes that merging moves through memory in all steps."""
    bytes_per_element = FIRST_MERGE_BYTES + FURTHER_MERGE_BYTES * (ring_size - 1)
    query_bytes = shape.seqlen * shape.num_heads * shape.head_dim * bytes_per_element
    return query_bytes + (
        2.0 * shape.seqlen * shape.num_kv_heads * shape.head_dim * bytes_per_element if backward else 0.0
    )


def compute_bound(
    scheme: Scheme,
    shape: Shape,
    ring_size: int,
    call_ms: float,
    full_ms: float,
    backward: bool,
    rates: Rates,
    busiest_ms: float = 0.0,
) -> Bound:
    """Return the bound of one pass of a scheme; `call_ms` is that pass's t_c and `full_ms` its t_f.

    `busiest_ms` is the computing time of llama3's busiest rank, which depends on the documents' positions.
    """
    if scheme == "ulysses":
        return _compute_all_to_all_bound(shape, ring_size, call_ms, rates)
    if scheme == "llama3":
        return _compute_gathered_bound(shape, ring_size, call_ms, backward, rates, busiest_ms)
    further_ms = full_ms if scheme == "ring" else full_ms / 2.0
    step_ms = [call_ms] + [further_ms] * (ring_size - 1)
    sends = ring_size - 1 + (1 if backward else 0)  # gradients travel one step further, back to their rank
    sent_ms = _transfer_ms(exchange_bytes(shape, backward), rates.link_gb_per_s) if ring_size > 1 else 0.0
    merge_ms = _transfer_ms(merge_bytes(shape, ring_size, backward), rates.copy_gb_per_s) if ring_size > 1 else 0.0
    exposed_ms = sum(max(0.0, sent_ms - step) for step in step_ms)
    return _make_bound(ring_size * call_ms, sum(step_ms), sent_ms * sends, exposed_ms, merge_ms)


def _compute_gathered_bound(
    shape: Shape, ring_size: int, call_ms: float, backward: bool, rates: Rates, busiest_ms: float
) -> Bound:
    """Return llama3's bound: it gathers all keys while it computes others, and scatters gradients at the end."""
    sent_bytes = exchange_bytes(shape, False) * (ring_size - 1) * (2 if backward else 1)
    sent_ms = _transfer_ms(sent_bytes, rates.link_gb_per_s) if ring_size > 1 else 0.0
    exposed_ms = max(0.0, sent_ms - busiest_ms) + (sent_ms / 2 if backward else 0.0)  # the scatter waits for gradients
    return _make_bound(ring_size * call_ms, busiest_ms, sent_ms, exposed_ms, 0.0)


def _compute_all_to_all_bound(shape: Shape, ring_size: int, call_ms: float, rates: Rates) -> Bound:
    """Return Ulysses' bound: a rank attends whole rows with its heads, and waits for each all-to-all.

    q, k and v go, out comes back; in backward dout goes, and dq, dk and dv come back. A rank keeps its own n-th.
    """
    heads = 2 * (shape.num_heads + shape.num_kv_heads)
    sent_bytes = shape.seqlen * heads * shape.head_dim * shape.bytes * (ring_size - 1) / ring_size
    sent_ms = _transfer_ms(sent_bytes, rates.link_gb_per_s) if ring_size > 1 else 0.0
    return _make_bound(ring_size * call_ms, ring_size * call_ms, sent_ms, sent_ms, 0.0)


def _make_bound(
    ideal_ms: float, compute_ms: float, communication_ms: float, exposed_ms: float, merge_ms: float
) -> Bound:
    efficiency = ideal_ms / (compute_ms + exposed_ms + merge_ms)
    return Bound(efficiency, compute_ms, communication_ms, exposed_ms, merge_ms)


def combine_bounds(forward: Bound, backward: Bound, ideal_ms: float) -> Bound:
    """Return the bound of forward and backward together; `ideal_ms` is n times the time of both local calls."""
    compute_ms, exposed_ms = forward.compute_ms + backward.compute_ms, forward.exposed_ms + backward.exposed_ms
    communication_ms, merge_ms = (
        forward.communication_ms + backward.communication_ms,
        forward.merge_ms + backward.merge_ms,
    )
    return _make_bound(ideal_ms, compute_ms, communication_ms, exposed_ms, merge_ms)


def _transfer_ms(size: float, gb_per_s: float) -> float:
    return size / gb_per_s / 1e6 if gb_per_s > 0 else 0.0


def break_even_seqlen(shape: Shape, call_ms: float, rates: Rates, backward: bool) -> int:
    """Return the tokens per rank from which communication hides behind a causal call; 0 if nothing is sent.

    Computing grows with the square of the length, sending with the length: S* = S · sent(S) / t_c(S).
    """
    sent_ms = _transfer_ms(exchange_bytes(shape, backward), rates.link_gb_per_s)
    return round(shape.seqlen * sent_ms / call_ms) if call_ms > 0 else 0


def busiest_rank_share(packings: Sequence[Sequence[int]], ring_size: int) -> float:
    """Return the busiest rank's work with contiguous shards of a packed row, as a share of a full block's.

    `packings` are local: each document's length on one device. The row across the ranks multiplies every document's
    length by n, as ring-flash-attn's benchmark does (`cu_seqlens * world_size`). All are averaged, rank by rank, since
    one iteration waits for its slowest rank.
    """
    shares = []
    for lengths in packings:
        row_lengths = [length * ring_size for length in lengths]
        shard = sum(row_lengths) // ring_size
        work = [_count_causal_pairs(row_lengths, rank * shard, (rank + 1) * shard) for rank in range(ring_size)]
        shares.append(max(work) / shard**2)
    return sum(shares) / len(shares)


def document_block_share(packings: Sequence[Sequence[int]]) -> float:
    """Return the work of a step between two ranks' parts of the same documents, as a share of a full block's.

    In its later steps, a ring over packed documents computes each document's queries against equally many keys.
    """
    shares = [sum(length**2 for length in lengths) / sum(lengths) ** 2 for lengths in packings]
    return sum(shares) / len(shares)


def _count_causal_pairs(lengths: Sequence[int], start: int, stop: int) -> float:
    """Return the number of visible (query, key) pairs of queries start … stop - 1 in a packed causal row."""
    total, begin = 0.0, 0
    for length in lengths:
        first, last = max(start, begin) - begin, min(stop, begin + length) - begin
        if last > first:
            total += (first + 1 + last) * (last - first) / 2
        begin += length
    return total


def describe_limit(bound: Bound, reached: float) -> str:
    """Return what keeps a scheme below n times one device's speed, the largest part first.

    `reached` is the measured efficiency as a share of the achievable one.
    """
    total_ms = bound.compute_ms + bound.exposed_ms + bound.merge_ms
    ideal_ms = bound.efficiency * total_ms
    losses_ms = {
        "uneven causal work": bound.compute_ms - ideal_ms,
        "communication that compute cannot hide": bound.exposed_ms,
        "merging of blocks": bound.merge_ms,
        "costs outside the bound (launches, unfused merging, copies)": total_ms * (1.0 / max(reached, 1e-9) - 1.0),
    }
    largest = max(losses_ms, key=lambda name: losses_ms[name])
    return largest if losses_ms[largest] > 0.01 * total_ms else "nothing"
