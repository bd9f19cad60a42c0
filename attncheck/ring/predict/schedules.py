"""The steps of each scheme, what it computes, sends and merges, as in ring-flash-attn 0.1.8 and Ulysses.

A schedule groups equal steps, so that a ring of 1,024 ranks costs no more work than one of 4. If ranks do different
work in a step, the slowest counts, because the ring waits for it.

- ring, zigzag and stripe send K and V while a step computes. In backward, dK and dV travel in float32 one step behind.
  They are sent at the end of a step and awaited after the next step's block. The last transfer is not hidden.
- ring skips the blocks of later ranks; the last rank computes in every step. zigzag computes half of the keys (ranks at
  or after the step) or half of the queries. stripe computes a causal block, one token shorter on the other ranks.
- llama3 gathers `heads_k_stride` kv heads of all ranks while it computes the previous ones. The first gather is not
  hidden, nor is, in backward, each sum of dK and dV across the ranks. Its last rank sees all keys.
- Ulysses waits for its all-to-alls: q, k and v forth and out back, and the same for gradients.

Source: ring-flash-attn 0.1.8, ring_flash_attn.py, zigzag_ring_flash_attn.py, stripe_flash_attn.py,
llama3_flash_attn_varlen.py, utils.py; `attncheck.attention.calls.ulysses`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from attncheck.ring.predict.block_times import Block, Pass, make_block
from attncheck.ring.roofline import Shape

Pattern = Literal["neighbour", "gather", "all_to_all"]
FLOAT32_BYTES = 4
# Bytes per element that merging moves. `update_out_and_lse` converts the 16-bit block to float32 (2 + 4) and adds it to
# the float32 accumulator (4 + 4 + 4). A slice is computed separately and copied back (4 + 4).
CONVERTED, MERGED, COPIED_BACK = 6.0, 18.0, 8.0
ACCUMULATED = 10.0  # a 16-bit gradient added to a float32 one: 2 + 4 + 4


@dataclass(frozen=True)
class Transfer:
    """The bytes that each rank sends at a time, to its neighbour or in a collective over all ranks."""

    pattern: Pattern
    bytes: float


@dataclass(frozen=True)
class Work:
    """A rank's work in a step: blocks, and the bytes that merging moves through its memory."""

    blocks: tuple[Block, ...]
    merged_bytes: float = 0.0


@dataclass(frozen=True)
class Step:
    """A number of equal steps: the ranks' work, the transfers during it, and the transfers after it."""

    count: int
    works: tuple[Work, ...]
    overlapped: tuple[Transfer, ...] = ()
    waiting: tuple[Transfer, ...] = ()


@dataclass(frozen=True)
class Schedule:
    """One pass of a scheme on all ranks."""

    direction: Pass
    steps: tuple[Step, ...]


Works = tuple[Work, ...]


def make_schedule(scheme: str, direction: Pass, shape: Shape, ring_size: int, heads_k_stride: int = 0) -> Schedule:
    """Return the schedule of one pass; `shape` is a rank's share. A ring of one is only the local call."""
    if ring_size == 1:
        return Schedule(direction, (Step(1, (Work((_diagonal(shape),)),)),))
    if scheme == LLAMA3:
        return _make_llama3(direction, shape, ring_size, heads_k_stride or shape.num_kv_heads)
    if scheme == ULYSSES:
        return _make_ulysses(direction, shape, ring_size)
    return _make_ring(direction, shape, ring_size, LATER_WORKS[scheme](shape, direction))


def _make_ring(direction: Pass, shape: Shape, ring_size: int, later: Works) -> Schedule:
    """Return the schedule of a scheme whose ranks pass K and V on; its later steps do the work `later`."""
    q, kv = q_elements(shape), kv_elements(shape)
    keys = Transfer("neighbour", kv * shape.bytes)
    first = Work((_diagonal(shape),), CONVERTED * (q + (kv if direction == "backward" else 0.0)))
    if direction == "forward":
        steps = (
            Step(1, (first,), (keys,)),
            Step(ring_size - 2, later, (keys,)),
            Step(1, _with_conversion(later, q)),
        )
    else:
        gradients = Transfer("neighbour", kv * FLOAT32_BYTES)
        steps = (
            Step(1, (first,), (keys,)),
            Step(ring_size - 2, later, (gradients, keys)),
            Step(1, _with_conversion(later, q + kv), (gradients,), (gradients,)),
        )
    return Schedule(direction, steps)


def _with_conversion(works: Works, elements: float) -> Works:
    """Return the last step's work, with the conversion of the float32 results to 16 bits."""
    return tuple(Work(work.blocks, work.merged_bytes + CONVERTED * elements) for work in works)


def _ring_works(shape: Shape, direction: Pass) -> Works:
    return (Work((make_block("full", shape, float(shape.seqlen) ** 2),), _merged(shape, direction, 1.0, 1.0)),)


def _zigzag_works(shape: Shape, direction: Pass) -> Works:
    pairs = shape.seqlen**2 / 2.0
    return (
        Work((make_block("half_keys", shape, pairs),), _merged(shape, direction, 1.0, 0.5)),
        Work((make_block("half_queries", shape, pairs),), _merged(shape, direction, 0.5, 1.0, sliced=True)),
    )


def _stripe_works(shape: Shape, direction: Pass) -> Works:
    shifted = make_block("shifted", shape, shape.seqlen**2 / 2.0)
    return (
        Work((_diagonal(shape),), _merged(shape, direction, 1.0, 1.0)),
        Work((shifted,), _merged(shape, direction, 1.0, 1.0, sliced=True)),
    )


def _merged(shape: Shape, direction: Pass, queries: float, keys: float, sliced: bool = False) -> float:
    """Return the bytes that merging one step's block moves; `queries` and `keys` are the block's shares."""
    q = q_elements(shape) * queries
    if direction == "forward":
        return q * (MERGED + (COPIED_BACK if sliced else 0.0))
    return ACCUMULATED * (q + kv_elements(shape) * keys)


LATER_WORKS: Mapping[str, Callable[[Shape, Pass], Works]] = {
    "ring_flash_attn": _ring_works,
    "zigzag_ring_flash_attn": _zigzag_works,
    "stripe_flash_attn": _stripe_works,
}
LLAMA3, ULYSSES = "llama3_flash_attn_varlen", "ulysses_flash_attn"
SCHEMES = (*LATER_WORKS, LLAMA3, ULYSSES)


def _make_llama3(direction: Pass, shape: Shape, ring_size: int, stride: int) -> Schedule:
    """Return llama3's schedule on its busiest rank: the last one, whose queries see all keys."""
    groups = shape.num_kv_heads // stride
    heads = shape.num_heads / groups
    pairs = float(shape.seqlen) ** 2
    work = Work(
        (
            make_block("full", shape, (ring_size - 1) * pairs, heads),
            make_block("shifted", shape, pairs / 2.0, heads),  # packed kernels have no special path for even lengths
        )
    )
    gathered = Transfer("gather", (ring_size - 1) * kv_elements(shape) * shape.bytes / groups)
    summed = (gathered,) if direction == "backward" else ()  # dK and dV return in the inputs' dtype
    steps = (
        Step(1, (Work(()),), (), (gathered,)),
        Step(groups - 1, (work,), (gathered,), summed),
        Step(1, (work,), (), summed),
    )
    return Schedule(direction, steps)


def _make_ulysses(direction: Pass, shape: Shape, ring_size: int) -> Schedule:
    """Return Ulysses' schedule: between two all-to-alls each rank has all tokens of its heads."""
    repeated = max(1, ring_size // shape.num_kv_heads)  # if there are fewer kv heads than ranks, they are repeated
    q, kv = q_elements(shape), kv_elements(shape) * repeated
    share = (ring_size - 1) / ring_size
    there, back = (q + kv, q) if direction == "forward" else (q, q + kv)
    row = float(shape.seqlen * ring_size)
    block = make_block("causal", shape, row**2 / 2.0, shape.num_heads / ring_size)
    copied = 2.0 * 2.0 * shape.bytes * (2 * q + kv)  # packed before and after each all-to-all: read and written
    sent = tuple(Transfer("all_to_all", elements * shape.bytes * share) for elements in (there, back))
    return Schedule(direction, (Step(1, (Work((block,), copied),), (), sent),))


def _diagonal(shape: Shape) -> Block:
    return make_block("causal", shape, shape.seqlen**2 / 2.0)


def q_elements(shape: Shape) -> float:
    """Return the number of elements in a rank's queries."""
    return float(shape.seqlen * shape.num_heads * shape.head_dim)


def kv_elements(shape: Shape) -> float:
    """Return the number of elements in a rank's keys and values together."""
    return 2.0 * shape.seqlen * shape.num_kv_heads * shape.head_dim
