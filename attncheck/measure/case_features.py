"""The features of a case in words, and the cases with the same shape for a compiler or planner."""

import functools
from collections.abc import Iterable, Iterator
from dataclasses import replace

from attncheck.core.cases import DTYPE_ABBREVIATIONS, STRIDE_LETTERS, STRIDE_WORDS, Case
from attncheck.core.lists import group_values, list_applying

# The largest first: of several features that explain the same losses, the least specific.
HEAD_DIM_STEPS = (192, 128, 96, 64)  # kernels are built for head_dims up to these, and up to 256
TILES = (16, 32, 64, 128)
LARGE_SCORES = ("large", "outlier", "long_tail", "ramp", "rising", "negative")
# Beginnings of lines on what a wrong case was reduced to.
EXPLAINED = "computed as if "  # and a known mistake, or several with `OR` between them
OR = " or as if "
NEEDED = "wrong with "
PLAIN = "wrong without any special feature: "
STALE = "right in a first call, but wrong after another "
STALE_CONTENTS = STALE + "batch of the same shape: something of that batch is kept"
STALE_PARAMETERS = STALE + "call with other parameters: the kernel keeps that call's "
UNREPEATED = "right by itself, but wrong after other calls: it keeps something of them or reads unwritten memory"
AGAIN = "results change when the same call is made again"
SEQLEN_STEPS = (16384, 8192, 4096, 2048, 1024)


def list_features(case: Case) -> tuple[str, ...]:
    """Return the features of a case, the best explanations of a crash first."""
    return tuple(dict.fromkeys(_iter_features(case)))


def _iter_features(case: Case) -> Iterator[str]:
    yield f"head_dim {case.head_dim}"
    if case.v_head_dim != case.head_dim:
        yield f"v_head_dim {case.v_head_dim}"
        yield "a different head_dim for v"
    yield f"dtype {DTYPE_ABBREVIATIONS[case.dtype]}"
    yield f"layout {case.layout}"
    yield from (name for name, has in _list_options(case) if has)
    yield "backward" if case.backward else "forward only"
    yield "causal" if case.causal else "no causal mask"
    yield f"family {case.family}"
    yield from (f"head_dim over {step}" for step in HEAD_DIM_STEPS if case.head_dim > step)
    group = case.num_heads // case.num_kv_heads
    yield f"{group} heads for each kv head" if group > 1 else "one head for each kv head"
    if case.strides != "contiguous":
        yield f"{case.strides} strides"
    yield from (f"seqlen over {step}" for step in SEQLEN_STEPS if case.seqlen_k > step)
    yield f"seqlen {case.seqlen_q}"
    yield f"{case.probe} probe" if case.probe else f"values {case.values}"


@functools.cache
def list_details(case: Case) -> tuple[str, ...]:
    """Return the features of a case with those that only a wrong result depends on, the most telling first."""
    return tuple(dict.fromkeys((*_iter_details(case), *filter(_is_telling, _iter_features(case)))))


def _is_telling(feature: str) -> bool:
    return not feature.startswith(("family ", "seqlen ", "layout dense", "strides"))


def _iter_details(case: Case) -> Iterator[str]:
    """Yield features on which kernels branch: window sides, strides, remainders of tiles, large tensors."""
    q, k, pairs = case.seqlen_q, case.seqlen_k, tuple(zip(case.seqlens_q, case.seqlens_k))
    letters = STRIDE_LETTERS.get(case.strides, case.strides)
    yield from (name for name, has in _list_options(case) if has)
    if set(letters) <= set(STRIDE_WORDS) | {"c"}:
        tensors = zip(("q", "k", "v", "dout"), letters)
        yield from (f"{STRIDE_WORDS[letter]} {name}" for name, letter in tensors if letter in STRIDE_WORDS)
    else:
        yield f"{case.strides} strides"
    magnitudes = {
        "no packed documents": case.layout != "packed",
        "large scores": case.alibi or case.values in LARGE_SCORES or case.probe == "retrieve",
        "sums that cancel": case.values == "cancelling",
        "a dout far below 1": case.dout_exponent < 0,
        "a dout far above 1": case.dout_exponent > 0,
    }
    yield from list_applying(magnitudes)
    left, right = case.window_size
    yield from (f"a window's {side} side" for side, size in (("left", left), ("right", right)) if size > 0)
    if case.mask:
        yield f"{case.mask} mask"
    relations = {
        "more keys than queries": any(keys > queries for queries, keys in pairs),
        "more queries than keys": any(keys < queries for queries, keys in pairs),
        f"{case.alignment.replace('_', ' ')} alignment": case.seqlens_q != case.seqlens_k,
        "documents without queries": any(keys and not queries for queries, keys in pairs),
        "documents without keys": any(queries and not keys for queries, keys in pairs),
        "documents without tokens": (0, 0) in pairs,
        "documents of unequal lengths": len(set(pairs)) > 1,
    }
    yield from list_applying(relations)
    for name, size in (("head_dim", case.head_dim), ("v_head_dim", case.v_head_dim)):
        yield from (f"a {name} that is not a multiple of {tile}" for tile in TILES if size % tile)
    for name, size in (("queries", q), ("keys", k)):
        yield from (f"a number of {name} that is not a multiple of {tile}" for tile in TILES if size % tile)
        yield from (f"a number of {name} that is a multiple of {tile}" for tile in TILES[::-1] if not size % tile)
    elements = {"q": case.batch * q * case.num_heads * case.head_dim}
    elements |= {"k": case.batch * k * case.num_kv_heads * case.head_dim}
    elements |= {"v": case.batch * k * case.num_kv_heads * case.v_head_dim}
    for name, size in elements.items():
        yield from (f"over 2^{power} elements of {name}" for power in (31, 20, 16, 15) if size > 1 << power)


def list_sizes(case: Case) -> dict[str, int]:
    """Return the sizes of a case that kernels compare with limits."""
    counts = {"heads": case.num_heads, "kv heads": case.num_kv_heads, "batch rows": case.batch}
    counts |= {"heads for each kv head": case.num_heads // case.num_kv_heads, "documents": len(case.seqlens_q)}
    counts |= {"queries": case.seqlen_q, "keys": case.seqlen_k}
    return {
        **{f"a number of {name}": count for name, count in counts.items()},
        "a head_dim": case.head_dim,
        "a v_head_dim": case.v_head_dim,
    }


def _list_options(case: Case) -> tuple[tuple[str, bool], ...]:
    return (
        ("a window", case.windowed),
        ("attention chunks", case.attention_chunk > 0),
        ("a mask for each head", case.per_head),
        ("a mask as a tensor", bool(case.mask)),
        ("its own softmax scale", case.scale > 0),
        ("soft-cap", case.softcap > 0),
        ("sinks", case.sinks),
        ("ALiBi", case.alibi),
        ("dropout", case.dropout > 0),
        ("unequal lengths", case.seqlens_q != case.seqlens_k),
    )


def group_by_shape(cases: Iterable[Case]) -> tuple[tuple[Case, ...], ...]:
    """Return the cases in groups of one shape and mask, which differ only in the tensors' values."""
    groups = group_values(
        (replace(case, family="", values="normal", probe="", seed=0, name="", backward=True, every_row=True), case)
        for case in cases  # a forward does not have its own plan
    )
    return tuple(map(tuple, groups.values()))


def group_by_kernel(cases: Iterable[Case]) -> tuple[tuple[Case, ...], ...]:
    """Return the cases in groups that, judging by cuDNN's times, share one compiled kernel."""
    groups = group_values(
        ((case.dtype, case.head_dim, case.v_head_dim, case.needs_mask, case.causal, case.dropout > 0.0), case)
        for case in cases
    )
    return tuple(map(tuple, groups.values()))
