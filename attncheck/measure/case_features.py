"""The features of a case in words, and the cases with the same shape for a compiler or planner."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from attncheck.core.cases import DTYPE_ABBREVIATIONS, Case

# The largest first: if several features explain the same losses, the least specific one is named.
HEAD_DIM_STEPS = (192, 128, 96, 64)  # kernels are built for head_dims up to each of these, and up to 256
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
    yield "backward" if case.backward else "forward alone"
    yield "causal" if case.causal else "no causal mask"
    yield f"family {case.family}"
    yield from (f"head_dim over {step}" for step in HEAD_DIM_STEPS if case.head_dim > step)
    yield f"{case.num_heads // case.num_kv_heads} heads for each kv head"
    if case.strides != "contiguous":
        yield f"{case.strides} strides"
    yield from (f"seqlen over {step}" for step in SEQLEN_STEPS if case.seqlen_k > step)
    yield f"seqlen {case.seqlen_q}"
    yield f"{case.probe} probe" if case.probe else f"values {case.values}"


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
    groups: dict[Case, list[Case]] = {}
    for case in cases:
        shape = replace(
            case, family="", values="normal", probe="", seed=0, name="", backward=True, every_row=True
        )  # a forward does not have its own plan
        groups.setdefault(shape, []).append(case)
    return tuple(map(tuple, groups.values()))


def group_by_kernel(cases: Iterable[Case]) -> tuple[tuple[Case, ...], ...]:
    """Return the cases in groups that, judging by cuDNN's times, share one compiled kernel."""
    groups: dict[tuple[object, ...], list[Case]] = {}
    for case in cases:
        kernel = (case.dtype, case.head_dim, case.v_head_dim, case.needs_mask, case.causal, case.dropout > 0.0)
        groups.setdefault(kernel, []).append(case)
    return tuple(map(tuple, groups.values()))
