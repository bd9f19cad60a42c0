"""A case: one attention problem with its shape, mask and inputs; plain data.

Tensors are q `(batch, seqlen_q, num_heads, head_dim)`, k `(batch, seqlen_k, num_kv_heads, head_dim)` and v `(batch,
seqlen_k, num_kv_heads, v_head_dim)`, as in flash-attn. A packed case is one row of the batch that holds every document;
a padded one has a row for each sequence.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, get_args

from attncheck.core.lists import list_applying

Dtype = Literal["bfloat16", "float16", "float32"]
Layout = Literal["dense", "right_padded", "left_padded", "packed"]
Alignment = Literal["bottom_right", "top_left"]
Values = Literal[
    "normal", "outlier", "large", "long_tail", "cancelling", "ramp", "rising", "small", "negative", "first_key"
]
Mask = Literal["", "bool", "additive"]
Operands = Literal["split", "kvpacked", "qkvpacked"]
Probe = Literal["", "code", "heads", "retrieve", "prefix", "poison", "nan_poison", "dropout"]

DTYPES: tuple[Dtype, ...] = get_args(Dtype)
DTYPE_ABBREVIATIONS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
BYTES_PER_ELEMENT = {"bfloat16": 2, "float16": 2, "float32": 4}
STRIDE_LETTERS = {"contiguous": "cccc", "transposed": "tttt"}
STRIDE_WORDS = {"t": "transposed", "s": "sliced", "r": "row-sliced", "e": "column-major"}  # c is contiguous
BROADCAST_STRIDES = ("expanded", "scalar_dout")
UNBOUNDED = -1  # an open side of a window
UNLIMITED = 1 << 30  # further than any key
SINK_LEVELS = (-2.0, 0.0, 3.0, 6.0)  # the sinks of the heads are near these values, in turn
NEGATIVE_LOGIT = 128.0  # how far the logits of the values "negative" are below those of "normal"
FIRST_KEY_LOGIT = 8.0  # how far the first key's are above the others' for the values "first_key"


@dataclass(frozen=True)
class Case:
    """One attention problem, made from a seed.

    - `window_size`: flash-attn's (left, right), -1 for an open side.
    - `alignment`: which corner of the score matrix the causal and window diagonals run through if seqlens_q and
      seqlens_k differ: flash-attn's bottom right (since 2.1) or SDPA's top left.
    - `attention_chunk`: each sequence is cut into chunks of this many positions, and a query sees its own chunk only
      (Llama 4); 0: no chunks.
    - `scale`: the factor of q·k; 0 means 1/sqrt(head_dim).
    - `mask`: the form of a mask that is given as a tensor (batch, 1, seqlen_q, seqlen_k), or one for each head if it is
      `per_head`. It is bool, or a bias that is added to the scores, with the dtype's lowest number for a hidden key as
      in transformers. "" leaves the form to the backend.
    - `values`: the distribution of random inputs. A `probe` defines its own inputs, and their exact answer is known.
    - `strides`: the memory layout of q, k, v and dout: contiguous, transposed, sliced, expanded or scalar_dout, or a
      letter for each: c, t, s for a slice of a tensor with more heads, r for one of a tensor with longer rows, or e if
      head_dim is not the last dimension in memory.
    - `dout_exponent`: dout is multiplied by 2 to this power.
    - `every_row`: False if the oracle computes sampled query rows only.
    - `context_parallel_size`: the number of ranks that share each row.
    - `operands`: whether a context-parallel scheme receives q, k and v separately, k and v as one tensor, or all three
      as one.
    - `heads_k_stride`: how many kv heads llama3's scheme gathers at a time; 0: all.
    """

    family: str
    seqlens_q: tuple[int, ...]
    seqlens_k: tuple[int, ...]
    layout: Layout = "dense"
    num_heads: int = 4
    num_kv_heads: int = 4
    head_dim: int = 64
    v_head_dim: int = 64
    dtype: Dtype = "bfloat16"
    causal: bool = True
    alignment: Alignment = "bottom_right"
    window_size: tuple[int, int] = (UNBOUNDED, UNBOUNDED)
    scale: float = 0.0
    attention_chunk: int = 0
    softcap: float = 0.0
    sinks: bool = False
    alibi: bool = False
    dropout: float = 0.0
    mask: Mask = ""
    per_head: bool = False
    strides: str = "contiguous"
    values: Values = "normal"
    dout_exponent: int = 0
    probe: Probe = ""
    backward: bool = True
    every_row: bool = True
    context_parallel_size: int = 1
    operands: Operands = "split"
    heads_k_stride: int = 0
    seed: int = 0
    name: str = ""

    @property
    def batch(self) -> int:
        """Rows of the batch."""
        return 1 if self.layout == "packed" else len(self.seqlens_q)

    @property
    def seqlen_q(self) -> int:
        """Length of q's sequence dimension, padding included."""
        return sum(self.seqlens_q) if self.layout == "packed" else max(self.seqlens_q)

    @property
    def seqlen_k(self) -> int:
        """Length of k's sequence dimension, padding included."""
        return sum(self.seqlens_k) if self.layout == "packed" else max(self.seqlens_k)

    @property
    def softmax_scale(self) -> float:
        """The factor that q·k is multiplied by."""
        return self.scale or float(self.head_dim**-0.5)

    @property
    def windowed(self) -> bool:
        """Whether a window limits the visible keys, in addition to the causal mask."""
        return self.window_size != (UNBOUNDED, UNBOUNDED)

    @property
    def padded(self) -> bool:
        """Whether some rows of the batch hold padding."""
        return self.layout in ("right_padded", "left_padded")

    @property
    def needs_mask(self) -> bool:
        """Whether a kernel that only supports `is_causal`, aligned to the top left, needs a mask to run this case."""
        crossed = self.causal and self.alignment == "bottom_right" and self.seqlens_q != self.seqlens_k
        packed = self.layout == "packed" and len(self.seqlens_q) > 1
        return bool(self.mask) or self.attention_chunk > 0 or self.windowed or self.padded or crossed or packed

    @property
    def scores(self) -> int:
        """Entries of the score matrices over all heads, padding and the gaps between documents included."""
        return self.batch * self.num_heads * self.seqlen_q * self.seqlen_k

    @property
    def cells(self) -> int:
        """Entries of the score matrices over all heads, visible or not."""
        return self.num_heads * sum(q * k for q, k in zip(self.seqlens_q, self.seqlens_k))


@dataclass(frozen=True)
class Segment:
    """The location of one sequence or document: a row of the batch, and its ranges of queries and keys."""

    index: int
    batch: int
    q_start: int
    q_stop: int
    k_start: int
    k_stop: int


def iter_segments(case: Case) -> Iterator[Segment]:
    """Yield the segments of a case, one for each sequence or document, empty ones included."""
    q_start = k_start = 0
    for index, (q, k) in enumerate(zip(case.seqlens_q, case.seqlens_k)):
        if case.layout == "packed":
            yield Segment(index, 0, q_start, q_start + q, k_start, k_start + k)
            q_start, k_start = q_start + q, k_start + k
        elif case.layout == "left_padded":
            yield Segment(index, index, case.seqlen_q - q, case.seqlen_q, case.seqlen_k - k, case.seqlen_k)
        else:
            yield Segment(index, index, 0, q, 0, k)


def diagonal_shift(case: Case, seqlen_q: int, seqlen_k: int) -> int:
    """Return how far the diagonal is to the right of the top-left corner of a document's score matrix."""
    return seqlen_k - seqlen_q if case.alignment == "bottom_right" else 0


def visible_bounds(case: Case, seqlen_q: int, seqlen_k: int) -> tuple[int, int]:
    """Return (low, high): key j of a document is visible to its query i if low <= j - i <= high.

    With an `attention_chunk`, only if both are in one chunk.
    """
    offset = diagonal_shift(case, seqlen_q, seqlen_k)
    left, right = case.window_size
    low = -UNLIMITED if left == UNBOUNDED else offset - left
    high = UNLIMITED if right == UNBOUNDED else offset + right
    return low, min(high, offset) if case.causal else high


def sampled_rows(case: Case, count: int = 64) -> tuple[int, ...]:
    """Return the query rows that the oracle computes if it does not compute all: edges, powers of two, random ones."""
    size = case.seqlen_q
    edges = [0, 1, size - 2, size - 1, size // 2, *_rows_at_powers(size)]
    if case.windowed:
        edges += [case.window_size[0], case.window_size[0] + 1]
    edges += [s.q_start for s in iter_segments(case)]
    chosen = list(dict.fromkeys(row for row in edges if 0 <= row < size))[: count // 2]
    import random  # the static lane loads this module too, and needs no random numbers

    rng = random.Random(case.seed)
    while len(chosen) < min(count, size):
        row = rng.randrange(size)
        if row not in chosen:
            chosen.append(row)
    return tuple(sorted(chosen))


def _rows_at_powers(size: int) -> Iterator[int]:
    power = 1 << 12
    while power < size:
        yield from (power - 1, power)
        power <<= 1


def with_name(case: Case) -> Case:
    """Return `case` with a name that distinguishes it from every other case."""
    return replace(case, name="-".join(_name_parts(case)))


def _name_parts(case: Case) -> Iterator[str]:
    yield case.layout.replace("_", "") + (str(len(case.seqlens_q)) if case.layout == "packed" else "")
    yield from _mask_parts(case)
    yield _length_part(case)
    kv = f"kv{case.num_kv_heads}" if case.num_kv_heads != case.num_heads else ""
    yield f"h{case.num_heads}{kv}"
    yield f"d{case.head_dim}" + (f"v{case.v_head_dim}" if case.v_head_dim != case.head_dim else "")
    yield DTYPE_ABBREVIATIONS[case.dtype]
    yield from _parallel_parts(case)
    if case.strides != "contiguous":
        yield case.strides
    yield (case.probe or case.values).replace("_", "")
    if case.dout_exponent:
        yield f"dout{2.0**case.dout_exponent:.0e}"
    if not case.backward and not case.probe:
        yield "forward"
    if case.seed:
        yield f"seed{case.seed}"


def _parallel_parts(case: Case) -> list[str]:
    return list_applying(
        {
            f"cp{case.context_parallel_size}": case.context_parallel_size > 1,
            case.operands: case.operands != "split",
            f"stride{case.heads_k_stride}": case.heads_k_stride,
        }
    )


def _mask_parts(case: Case) -> list[str]:
    window = "x".join("any" if side == UNBOUNDED else str(side) for side in case.window_size)
    options = {
        "topleft": case.alignment == "top_left" and case.seqlens_q != case.seqlens_k,
        f"window{window}": case.windowed,
        f"chunk{case.attention_chunk}": case.attention_chunk,
        f"scale{case.scale:g}": case.scale,
        f"softcap{case.softcap:g}": case.softcap,
        "sinks": case.sinks,
        "alibi": case.alibi,
        f"dropout{case.dropout:g}": case.dropout,
        f"{case.mask}mask{'-perhead' if case.per_head else ''}": case.mask,
    }
    return ["causal" if case.causal else "full", *list_applying(options)]


def _length_part(case: Case) -> str:
    batch = f"b{case.batch}" if case.batch > 1 else ""
    if len(set(case.seqlens_q)) == 1 and case.layout == "dense":
        cross = f"x{case.seqlens_k[0]}" if case.seqlens_k != case.seqlens_q else ""
        return f"{batch}s{case.seqlens_q[0]}{cross}"
    cross = f"x{_list_lengths(case.seqlens_k, case.seqlen_k)}" if case.seqlens_k != case.seqlens_q else ""
    return f"{batch}s{_list_lengths(case.seqlens_q, case.seqlen_q)}{cross}"


def _list_lengths(seqlens: tuple[int, ...], seqlen: int) -> str:
    """Return the lengths as text; more than six become their sum or longest, and digits that distinguish them."""
    if len(seqlens) <= 6:
        return "_".join(map(str, seqlens))
    return f"{seqlen}i{zlib.crc32(repr(seqlens).encode()) % 10000}"
