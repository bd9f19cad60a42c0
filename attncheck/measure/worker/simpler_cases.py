"""Simpler variants of a wrong case: if a backend is right without a feature, its mistake concerns that feature."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from attncheck.core.cases import UNBOUNDED, Case

MAX_NAMED = 4  # changes that make a wrong case right; of more, none is its cause
MAX_CELLS = 1 << 21  # score entries of a case that is run again, once for each of its features
TILE = 64
PLAIN: tuple[tuple[str, dict[str, object]], ...] = (
    ("without the window", {"window_size": (UNBOUNDED, UNBOUNDED)}),
    ("without chunks", {"attention_chunk": 0}),
    ("without the soft-cap", {"softcap": 0.0}),
    ("without sinks", {"sinks": False}),
    ("without ALiBi", {"alibi": False}),
    ("without the mask", {"mask": "", "per_head": False}),
    ("without a mask for each head", {"per_head": False}),
    ("with the usual softmax scale", {"scale": 0.0}),
    ("without the causal mask", {"causal": False}),
    ("aligned bottom right", {"alignment": "bottom_right"}),
    ("with contiguous tensors", {"strides": "contiguous"}),
    ("with a dout of ordinary size", {"dout_exponent": 0}),
    ("with normal values", {"values": "normal"}),
    ("in bfloat16", {"dtype": "bfloat16"}),
)


def simplify(case: Case) -> Iterator[tuple[str, Case]]:
    """Yield the case without one of its features each, and a description of the change."""
    for words, fields in PLAIN:
        yield words, replace(case, **fields)  # type: ignore[arg-type]
    yield "with as many keys as queries", replace(case, seqlens_k=case.seqlens_q, alignment="bottom_right")
    if case.v_head_dim == case.head_dim:
        yield "with a head_dim of 64", replace(case, head_dim=64, v_head_dim=64)
    yield "with v_head_dim equal to head_dim", replace(case, v_head_dim=case.head_dim)
    if case.num_kv_heads not in (1, case.num_heads):
        yield "with one kv head", replace(case, num_heads=case.num_heads // case.num_kv_heads, num_kv_heads=1)
    if case.num_heads > case.num_kv_heads:
        yield "with one head for each kv head", replace(case, num_heads=case.num_kv_heads)
    if case.layout == "left_padded":
        yield "with padding on the right", replace(case, layout="right_padded")
    tiled_q, tiled_k = (tuple(-(-n // TILE) * TILE for n in lengths) for lengths in (case.seqlens_q, case.seqlens_k))
    yield f"with lengths that are multiples of {TILE}", replace(case, seqlens_q=tiled_q, seqlens_k=tiled_k)
    longest = max(range(len(case.seqlens_q)), key=lambda index: case.seqlens_q[index])
    q, k = case.seqlens_q[longest], case.seqlens_k[longest]
    yield "with its longest sequence only", replace(case, layout="dense", seqlens_q=(q,), seqlens_k=(k,))


def describe_cause(case: Case, is_right: Callable[[Case], bool]) -> tuple[str, ...]:
    """Return which single changes make a wrong case right; () if none or too many do, or it would take too long.

    Other values are tried too, so that the case is not right by chance.
    """
    if case.cells > MAX_CELLS:
        return ()
    changes = [
        words
        for words, simpler in simplify(case)
        if simpler != case and is_right(simpler) and is_right(replace(simpler, seed=case.seed + 1))
    ]
    return (f"the same case is correct {', or '.join(changes)}",) if 0 < len(changes) <= MAX_NAMED else ()


def make_decoy(case: Case) -> Case:
    """Return a case with the same shapes and other contents: results cached by shape would spoil `case`."""
    return replace(
        case,
        seqlens_q=case.seqlens_q[::-1],
        seqlens_k=case.seqlens_k[::-1],
        window_size=(UNBOUNDED, UNBOUNDED),
        softcap=0.0,
        scale=0.0,
        backward=False,
    )
