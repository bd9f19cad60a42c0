"""The suites of cases: quick, standard, full, and one made from a model.

Lengths are chosen by remainders that have broken kernels (1, 63 to 65, 127 to 129, 192, 320, odd), masks and layouts
by the ways in which they go wrong; each mask has random inputs and a structured probe. What only a long sequence
shows is in `full`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Literal, get_args

from attncheck.core.cases import DTYPES, UNBOUNDED, Case, Dtype, Probe, Values, with_name
from attncheck.core.facts import value_or
from attncheck.core.model import Model

Suite = Literal["quick", "standard", "full"]
SUITES: tuple[Suite, ...] = get_args(Suite)
VALUES: tuple[Values, ...] = get_args(Values)
FEW_DOCUMENTS = (200, 7, 1, 128, 65)
MANY_DOCUMENTS = tuple(1 + 37 * i % 41 for i in range(40))
TINY_DOCUMENTS = tuple(1 + 5 * i % 11 for i in range(150))
SOME_EMPTY_DOCUMENTS = (0, 129, 0, 64, 0, 0, 1, 65, 0)
MIN_RETRIEVE_HEAD_DIM = 32  # head_dim below which codes are too short to tell thousands of keys apart
MIN_SAMPLED_SEQLEN = 1 << 14  # query rows from which on the oracle computes a sample of them
# Of masks given as tensors: layout, what they hold, and whether there is one for each head.
MASK_FORMS = tuple(itertools.product(("right_padded", "left_padded"), ("bool", "additive"), (False, True)))
COMPILED_CASES = {"quick": 2, "standard": 15, "full": 60}  # for a backend that compiles each shape, which takes seconds


def make_suite(name: Suite, seed: int = 0) -> tuple[Case, ...]:
    """Return the cases of a suite, each once, in the order of families."""
    makers = {"quick": _quick_cases, "standard": _standard_cases, "full": _full_cases}
    return finish_cases(makers[name](), seed)


def finish_cases(cases: Iterable[Case], seed: int) -> tuple[Case, ...]:
    """Return the cases with name and seed, each once; the oracle samples the rows of long ones."""
    unique: dict[str, Case] = {}
    for case in cases:
        case = with_name(replace(case, seed=seed, every_row=case.every_row and case.seqlen_q < MIN_SAMPLED_SEQLEN))
        unique.setdefault(case.name, case)
    return tuple(unique.values())


def thin_cases(cases: tuple[Case, ...], count: int) -> tuple[Case, ...]:
    """Return `count` of the cases, taking the families in turn."""
    families: dict[str, list[Case]] = {}
    for case in cases:
        families.setdefault(case.family, []).append(case)
    chosen: list[Case] = []
    while len(chosen) < min(count, len(cases)):
        for members in families.values():
            if members and len(chosen) < count:
                chosen.append(members.pop(0))
    return tuple(case for case in cases if case in chosen)


def _dense_case(family: str, seqlen: int, batch: int = 1, **fields: Any) -> Case:
    return Case(family, (seqlen,) * batch, (seqlen,) * batch, **fields)


def _gqa_case(family: str, seqlen: int, **fields: Any) -> Case:
    return _dense_case(family, seqlen, **{"num_kv_heads": 2, **fields})


def _head_dim_fields(head_dim: int, v_head_dim: int | None = None) -> dict[str, Any]:
    return {"head_dim": head_dim, "v_head_dim": v_head_dim or head_dim}


def _cross_case(seqlen_q: int, seqlen_k: int, **fields: Any) -> Case:
    return Case("cross", (seqlen_q,), (seqlen_k,), **{"num_kv_heads": 2, **fields})


def _packed_case(seqlens: tuple[int, ...], **fields: Any) -> Case:
    return Case("packed", seqlens, seqlens, **{"layout": "packed", "num_kv_heads": 2, **fields})


def _padded_case(seqlens: tuple[int, ...], layout: str, **fields: Any) -> Case:
    return Case("padded", seqlens, seqlens, **{"layout": layout, "num_kv_heads": 2, **fields})


def probe_variants(case: Case, *probes: Probe) -> Iterator[Case]:
    """Yield a case with the inputs of each structured probe in turn."""
    for probe in probes:
        if probe == "retrieve" and min(case.head_dim, case.v_head_dim) < MIN_RETRIEVE_HEAD_DIM:
            continue
        backward = probe in ("heads", "poison", "nan_poison", "dropout")
        yield replace(case, probe=probe, backward=backward)


def _quick_cases() -> Iterator[Case]:
    yield _gqa_case("length", 257)
    yield _gqa_case("length", 65, causal=False)
    yield _gqa_case("length", 640, **_head_dim_fields(128))
    yield from probe_variants(_gqa_case("length", 257), "code", "heads", "retrieve", "prefix")
    yield _dense_case("head_dim", 129, **_head_dim_fields(80))
    yield _gqa_case("dtype", 193, dtype="float16")
    yield _gqa_case("dtype", 193, dtype="float32")
    yield _gqa_case("values", 320, values="large")
    yield _gqa_case("values", 600, values="ramp")
    yield _gqa_case("window", 300, window_size=(64, 0))
    yield _cross_case(129, 300)
    yield _padded_case((200, 77), "left_padded")
    yield _packed_case((200, 7, 1, 128))
    yield from probe_variants(_packed_case((200, 7, 1, 128)), "retrieve", "poison")
    yield _gqa_case("softcap", 300, softcap=20.0, values="large")
    yield _gqa_case("forward", 320, backward=False)


def _standard_cases() -> Iterator[Case]:
    for cases in (
        _length_cases,
        _head_dim_cases,
        _head_count_cases,
        _value_cases,
        _window_cases,
        _chunk_cases,
        _score_modifier_cases,
        _cross_cases,
        _padding_cases,
        _mask_cases,
        _packing_cases,
        _stride_and_dropout_cases,
        _combination_cases,
    ):
        yield from cases()


def _length_cases() -> Iterator[Case]:
    for seqlen in (1, 2, 7, 63, 64, 65, 127, 128, 129, 192, 320, 513, 1000):
        for causal in (True, False):
            yield _gqa_case("length", seqlen, causal=causal)
    yield _gqa_case("length", 257, batch=3)
    yield _gqa_case("length", 129, batch=7)
    yield _gqa_case("length", 257, dtype="float16", batch=2)
    yield _dense_case("length", 2048, num_heads=2, num_kv_heads=1, **_head_dim_fields(128))
    yield _dense_case("length", 2047, num_heads=2, num_kv_heads=2, causal=False)
    yield _dense_case("length", 4096, num_heads=1, num_kv_heads=1)
    for seqlen in (65, 300, 1023):
        yield from probe_variants(_gqa_case("length", seqlen), "code", "retrieve", "prefix")
        yield from probe_variants(_gqa_case("length", seqlen, causal=False), "code")
    yield from probe_variants(_dense_case("length", 6001, num_heads=1, num_kv_heads=1), "code")
    yield _gqa_case("forward", 320, backward=False)
    yield _gqa_case("forward", 129, backward=False, causal=False)


def _head_dim_cases() -> Iterator[Case]:
    for head_dim in (32, 64, 72, 80, 96, 112, 128, 160, 192, 224, 256):
        yield _gqa_case("head_dim", 257, **_head_dim_fields(head_dim))
    for head_dim in (32, 80, 96, 128, 256):
        yield _gqa_case("head_dim", 320, dtype="float16", causal=False, **_head_dim_fields(head_dim))
    yield _dense_case("head_dim", 257, **_head_dim_fields(192, 128))
    yield _dense_case("head_dim", 320, causal=False, **_head_dim_fields(192, 128))
    yield _packed_case(FEW_DOCUMENTS, num_kv_heads=4, **_head_dim_fields(192, 128))
    yield _dense_case("head_dim", 129, dtype="float32", **_head_dim_fields(96, 64))


def _head_count_cases() -> Iterator[Case]:
    for heads, kv_heads in ((8, 8), (8, 4), (8, 2), (8, 1), (28, 4), (32, 8), (16, 1)):
        yield _dense_case("heads", 200, num_heads=heads, num_kv_heads=kv_heads)
        yield from probe_variants(_dense_case("heads", 130, num_heads=heads, num_kv_heads=kv_heads), "heads")
    yield _dense_case("heads", 200, num_heads=8, num_kv_heads=2, causal=False, dtype="float16")
    yield from probe_variants(_packed_case(FEW_DOCUMENTS, num_heads=8), "heads")


def _value_cases() -> Iterator[Case]:
    for dtype in DTYPES:
        for values in VALUES:
            yield _gqa_case("values", 320, dtype=dtype, values=values)
    for values in VALUES:
        yield _gqa_case("values", 1024, values=values)
        yield _gqa_case("values", 384, values=values, causal=False)
    for values in ("ramp", "large", "small"):
        yield _gqa_case("values", 640, dtype="float16", values=values)
    for seqlen in (129, 513):
        yield _gqa_case("values", seqlen, dtype="float32", causal=False)


def _window_cases() -> Iterator[Case]:
    for left in (1, 16, 63, 64, 128, 200):
        yield _gqa_case("window", 333, window_size=(left, 0))
    for window_size in ((64, 64), (0, 0), (33, 7), (UNBOUNDED, 16), (100, UNBOUNDED)):
        yield _gqa_case("window", 333, causal=False, window_size=window_size)
    yield _gqa_case("window", 700, window_size=(256, 0), dtype="float16")
    yield _gqa_case("window", 1024, window_size=(127, 0), **_head_dim_fields(128))
    for window_size in ((64, 0), (37, 0)):
        yield from probe_variants(_gqa_case("window", 400, window_size=window_size), "code", "retrieve")
    yield from probe_variants(_gqa_case("window", 400, causal=False, window_size=(31, 17)), "code", "retrieve")


def _chunk_cases() -> Iterator[Case]:
    """Yield attention within chunks, as Llama 4's local layers have it: counted from a sequence's own first token."""
    for chunk in (64, 100, 1):
        yield _gqa_case("chunk", 333, attention_chunk=chunk)
    yield _gqa_case("chunk", 320, attention_chunk=128, dtype="float16", **_head_dim_fields(128))
    yield _gqa_case("chunk", 300, attention_chunk=64, backward=False)
    yield _gqa_case("chunk", 300, attention_chunk=512)
    for layout in ("left_padded", "right_padded"):
        yield replace(_padded_case((200, 77), layout, attention_chunk=64), family="chunk")
    yield replace(_packed_case(FEW_DOCUMENTS, attention_chunk=50), family="chunk")
    yield replace(_cross_case(129, 300, attention_chunk=64), family="chunk")
    yield from probe_variants(_gqa_case("chunk", 400, attention_chunk=64), "code", "retrieve")
    packed = replace(_packed_case(FEW_DOCUMENTS, attention_chunk=50), family="chunk")
    yield from probe_variants(packed, "code", "retrieve", "poison")


def _score_modifier_cases() -> Iterator[Case]:
    for cap, values in ((20.0, "normal"), (20.0, "large"), (50.0, "large"), (30.0, "large")):
        yield _gqa_case("softcap", 300, softcap=cap, values=values)
        yield _gqa_case("softcap", 640, softcap=cap, values=values, dtype="float16")
    yield _gqa_case("softcap", 300, softcap=30.0, values="large", window_size=(64, 0), **_head_dim_fields(256))
    yield _gqa_case("softcap", 300, softcap=30.0, values="large", dtype="float32")
    for fields in ({"scale": 0.04}, {"scale": 0.25, "dtype": "float16"}, {"scale": 0.04, "window_size": (64, 0)}):
        yield _gqa_case("scale", 300, **fields)
    yield replace(_packed_case(FEW_DOCUMENTS, scale=0.25), family="scale")
    yield replace(_padded_case((200, 77), "left_padded", scale=0.04), family="scale")
    yield _gqa_case("scale", 300, scale=0.04, softcap=20.0, values="large")
    variants: tuple[dict[str, Any], ...] = ({}, {"causal": False}, {"dtype": "float16"}, {"dtype": "float32"})
    for fields in (*variants, {"window_size": (64, 0)}):
        yield _gqa_case("sinks", 300, sinks=True, **fields)
    for window_size in ((127, 0), (UNBOUNDED, UNBOUNDED)):  # gpt-oss's own layers
        yield _dense_case("sinks", 300, num_heads=64, num_kv_heads=8, sinks=True, window_size=window_size)
    yield replace(_packed_case(FEW_DOCUMENTS, sinks=True), family="sinks")
    yield replace(_packed_case(FEW_DOCUMENTS, softcap=20.0, values="large"), family="softcap")
    yield replace(_padded_case((200, 77), "left_padded", softcap=20.0, values="large"), family="softcap")
    yield replace(_packed_case(FEW_DOCUMENTS, softcap=20.0, values="large", window_size=(40, 0)), family="softcap")
    yield replace(_padded_case((200, 77), "left_padded", sinks=True), family="sinks")
    yield replace(_packed_case(FEW_DOCUMENTS, sinks=True, window_size=(40, 0)), family="sinks")
    yield replace(_packed_case(FEW_DOCUMENTS, alibi=True), family="alibi")
    yield replace(_padded_case((200, 77), "left_padded", alibi=True), family="alibi")
    yield replace(_cross_case(129, 300, alibi=True), family="alibi")
    yield _gqa_case("alibi", 300, alibi=True, window_size=(64, 0))
    for fields in (*variants, {"num_heads": 8}):
        yield _gqa_case("alibi", 300, alibi=True, **fields)


def _cross_cases() -> Iterator[Case]:
    for lengths in ((1, 300), (64, 300), (129, 300), (100, 613), (300, 129)):
        yield _cross_case(*lengths)
    for lengths in ((129, 300), (300, 129), (1, 300)):
        yield _cross_case(*lengths, alignment="top_left")
        yield _cross_case(*lengths, causal=False)
    yield _cross_case(129, 300, window_size=(50, 0))
    yield _cross_case(129, 300, dtype="float16")
    yield Case("cross", (65, 3, 129), (200, 64, 129), layout="packed", num_kv_heads=2)
    for lengths in ((129, 300), (300, 129)):
        yield from probe_variants(_cross_case(*lengths), "code", "retrieve")
        yield from probe_variants(_cross_case(*lengths, alignment="top_left"), "code")


def _padding_cases() -> Iterator[Case]:
    for layout in ("right_padded", "left_padded"):
        for seqlens in ((300, 170, 1), (129, 128, 64, 7), (9, 90, 64, 33, 128, 5, 71)):
            yield _padded_case(seqlens, layout)
        yield _padded_case((257, 130), layout, dtype="float16")
        yield _padded_case((257, 130), layout, causal=False)
        yield from probe_variants(_padded_case((200, 77, 1), layout), "code", "retrieve", "poison")


def _mask_cases() -> Iterator[Case]:
    """Yield masks given as tensors, in every form, over short lengths and about a tile's: many rows see nothing."""
    for index, seqlen in enumerate((1, 2, 7, 8, 16, 17, 31, 33, 48, 63, 65, 96, 127, 128, 129)):
        yield from (_masked_case(seqlen, *form) for form in (MASK_FORMS[index % 8], MASK_FORMS[(3 * index + 5) % 8]))
    for form in MASK_FORMS:
        yield _masked_case(64, *form)
    yield replace(_masked_case(64, "left_padded", "bool"), dtype="float16", **_head_dim_fields(128))
    yield replace(_masked_case(40, "left_padded", "bool"), causal=False)
    for mask, per_head in itertools.product(("bool", "additive"), (False, True)):  # the first queries see no key
        yield replace(_cross_case(64, 20, mask=mask, per_head=per_head), family="mask")
    yield replace(_cross_case(129, 65, mask="bool"), family="mask")


def _masked_case(seqlen: int, layout: str, mask: str, per_head: bool = False) -> Case:
    seqlens = tuple(max(1, seqlen // part) for part in (1, 2, 5))
    return replace(_padded_case(seqlens, layout, mask=mask, per_head=per_head), family="mask")


def _packing_cases() -> Iterator[Case]:
    yield _packed_case(TINY_DOCUMENTS)
    for seqlens in ((300,), FEW_DOCUMENTS, MANY_DOCUMENTS, SOME_EMPTY_DOCUMENTS, (64, 128, 192), (513, 2, 300)):
        yield _packed_case(seqlens)
    yield _packed_case(FEW_DOCUMENTS, dtype="float16", **_head_dim_fields(128))
    yield _packed_case(FEW_DOCUMENTS, dtype="float32")
    yield _packed_case(FEW_DOCUMENTS, causal=False)
    yield _packed_case(MANY_DOCUMENTS, causal=False, num_heads=8)
    yield _packed_case(FEW_DOCUMENTS, window_size=(50, 0))
    yield _packed_case(FEW_DOCUMENTS, values="large")
    for seqlens in (FEW_DOCUMENTS, MANY_DOCUMENTS, SOME_EMPTY_DOCUMENTS):
        yield from probe_variants(_packed_case(seqlens), "code", "retrieve", "poison")
    yield from probe_variants(_packed_case(FEW_DOCUMENTS), "nan_poison")
    yield from probe_variants(_packed_case(FEW_DOCUMENTS, dtype="float16"), "poison")


def _stride_and_dropout_cases() -> Iterator[Case]:
    for strides in ("transposed", "sliced", "expanded", "scalar_dout"):
        yield _gqa_case("strides", 257, batch=2, strides=strides)
        yield _gqa_case("strides", 192, causal=False, dtype="float16", strides=strides)
    dropout_case = _gqa_case("dropout", 300, batch=2, **_head_dim_fields(128))
    for fields in ({"dropout": 0.1}, {"dropout": 0.5}, {"dropout": 0.1, "causal": False, "dtype": "float16"}):
        yield from probe_variants(replace(dropout_case, **fields), "dropout")


def _combination_cases() -> Iterator[Case]:
    """Yield features that fail only together: a mask with padding, a batch, another head_dim, dtype or stride."""
    head_dim_fields = _head_dim_fields(128)
    yield replace(_padded_case((300, 170, 20), "left_padded", window_size=(64, 0)), family="window")
    yield replace(_padded_case((300, 170, 20), "right_padded", window_size=(64, 0)), family="window")
    yield _gqa_case("window", 300, batch=2, window_size=(64, 0))
    yield _gqa_case("window", 300, dtype="float32", window_size=(64, 0))
    yield _dense_case("window", 300, num_kv_heads=1, window_size=(100, 0))
    yield _gqa_case("length", 257, batch=2, causal=False)
    yield _gqa_case("length", 1500, **head_dim_fields)
    yield _dense_case("heads", 520, num_heads=8, num_kv_heads=1)
    yield _dense_case("heads", 130, num_heads=40, num_kv_heads=8)
    yield _cross_case(1, 300, num_heads=8)
    yield _cross_case(1, 300, num_heads=4, num_kv_heads=4)
    yield replace(_cross_case(1, 300), seqlens_q=(1,) * 5, seqlens_k=(300,) * 5)
    yield replace(_packed_case((300, 7, 400), window_size=(128, 0), **head_dim_fields), family="window")
    yield replace(_cross_case(129, 300), seqlens_q=(129, 129), seqlens_k=(300, 300))
    yield _cross_case(129, 1200, dtype="float32")
    yield Case("cross", (129, 64, 7), (65, 200, 7), layout="packed", num_kv_heads=2)
    yield _padded_case((257, 130), "left_padded", num_kv_heads=4, **head_dim_fields)
    yield _padded_case((257, 130), "left_padded", dtype="float32")
    yield _packed_case(FEW_DOCUMENTS, num_kv_heads=4, dtype="float16", **_head_dim_fields(192, 128))
    yield _packed_case(FEW_DOCUMENTS, **_head_dim_fields(80))
    yield _packed_case(FEW_DOCUMENTS, strides="transposed")
    yield _padded_case((257, 130), "left_padded", strides="transposed")
    yield _gqa_case("head_dim", 257, num_heads=8, **_head_dim_fields(192, 128))
    for head_dim in (40, 56, 88, 120):
        yield _gqa_case("head_dim", 257, **_head_dim_fields(head_dim))
    yield _dense_case("softcap", 700, softcap=30.0, values="large", **head_dim_fields)
    yield _gqa_case("sinks", 640, sinks=True, **head_dim_fields)


def _full_cases() -> Iterator[Case]:
    yield from _standard_cases()
    yield from _grid_cases()
    yield from _short_mask_cases()
    yield from _long_cases()


def _grid_cases() -> Iterator[Case]:
    """Yield every dtype × head_dim × kind of mask, at a length with a remainder."""
    masks: tuple[dict[str, Any], ...] = ({}, {"causal": False}, {"window_size": (100, 0)})
    for dtype in DTYPES:
        for head_dim in (32, 64, 96, 128, 192, 256):
            for mask in masks:
                yield _gqa_case("grid", 577, dtype=dtype, **_head_dim_fields(head_dim), **mask)
            yield replace(_packed_case((300, 1, 129, 64), dtype=dtype, **_head_dim_fields(head_dim)), family="grid")


def _short_mask_cases() -> Iterator[Case]:
    """Yield every length up to a tile, and about one, with masks in every form."""
    for form in MASK_FORMS:
        yield from (_masked_case(seqlen, *form) for seqlen in (*range(1, 66), 96, 127, 128, 129))


def _long_cases() -> Iterator[Case]:
    two_heads: dict[str, Any] = {"num_heads": 2, "num_kv_heads": 1}
    for head_dim in (64, 128):
        yield _dense_case("long", 4097, **two_heads, **_head_dim_fields(head_dim))
        yield _dense_case("long", 8191, **two_heads, **_head_dim_fields(head_dim))
    yield _dense_case("long", 8192, causal=False, **two_heads)
    yield _dense_case("long", 8192, window_size=(1024, 0), **two_heads)
    yield replace(_packed_case((5000, 100, 3000, 1, 91), **two_heads), family="long")
    yield from probe_variants(_dense_case("long", 9001, **two_heads), "code", "retrieve")
    for seqlen in (32768, 36863, 131072):
        yield _dense_case("long", seqlen, **two_heads, **_head_dim_fields(128))
        yield _dense_case("long", seqlen, dtype="float16", num_heads=1, num_kv_heads=1)
        yield from probe_variants(_dense_case("long", seqlen, num_heads=1, num_kv_heads=1), "code")
    yield _dense_case("long", 131072, num_heads=8, num_kv_heads=2, **_head_dim_fields(128))
    yield from probe_variants(_dense_case("long", 40000, num_heads=1, num_kv_heads=1), "retrieve")
    yield from probe_variants(_dense_case("long", 40000, num_heads=1, num_kv_heads=1, window_size=(4096, 0)), "code")
    yield replace(_packed_case((20000, 33000, 1, 12000), **two_heads), family="long")


def make_model_cases(
    model: Model, max_seqlen: int | None = None, seed: int = 0, dtype: Dtype | None = None
) -> tuple[Case, ...]:
    """Return the cases that a model's own attention makes: its heads, sizes, windows, caps, sinks, dtype, lengths.

    Every distinct head_dim and kind of layer has its cases. Lengths go up to `max_seqlen` or the model's
    max_position_embeddings; `dtype` takes the place of the model's own. What the configuration does not say takes its
    usual value.
    """
    limit = min(max_seqlen or 1 << 40, value_or(model.max_position_embeddings, 4096))
    cases = _iter_model_cases(model, max(1, limit))
    return finish_cases((replace(case, dtype=dtype or case.dtype) for case in cases), seed)


def iter_layer_kinds(model: Model) -> Iterator[dict[str, Any]]:
    """Yield the shape, mask and dtype of each kind of attention layer that a model has, as fields of a `Case`."""
    heads = value_or(model.num_heads, 8)
    kv_heads = value_or(model.num_kv_heads, heads)
    for layer_fields in _iter_layer_fields(model):
        yield {"num_heads": heads, "num_kv_heads": kv_heads, **_common_fields(model), **layer_fields}


def _iter_model_cases(model: Model, max_seqlen: int) -> Iterator[Case]:
    for shape in iter_layer_kinds(model):
        for seqlen in sorted({min(length, max_seqlen) for length in (65, 257, 640, 2048, max_seqlen)}):
            if seqlen < MIN_SAMPLED_SEQLEN:
                yield _dense_case("model", seqlen, **shape)
            else:
                yield _dense_case("model-long", seqlen, **shape)
        for values in ("large", "outlier", "long_tail"):
            yield _dense_case("model", min(513, max_seqlen), **{**shape, "values": values})
        seqlens = tuple(min(length, max_seqlen) for length in FEW_DOCUMENTS)
        yield Case("model-packed", seqlens, seqlens, layout="packed", **shape)
        yield from probe_variants(Case("model-packed", seqlens, seqlens, layout="packed", **shape), "poison")
        for layout in ("right_padded", "left_padded"):
            yield Case("model-padded", seqlens[:2], seqlens[:2], **{**shape, "layout": layout})
        if not (shape.get("softcap") or shape.get("sinks") or shape.get("alibi")):
            yield from probe_variants(_dense_case("model", min(513, max_seqlen), **shape), "code", "heads", "retrieve")


def _common_fields(model: Model) -> dict[str, Any]:
    dtype: Dtype = "bfloat16"
    dtype_name = value_or(model.dtype, "bfloat16").removeprefix("torch.")
    if dtype_name in DTYPES:
        dtype = dtype_name
    softcap = value_or(model.softcap, 0.0) or 0.0
    return {
        "dtype": dtype,
        "causal": model.causal,
        "softcap": softcap,
        "values": "large" if softcap else "normal",
        "sinks": model.sinks,
        "alibi": model.alibi,
    }


def _iter_layer_fields(model: Model) -> Iterator[dict[str, Any]]:
    """Yield what distinguishes the kinds of attention layer: head sizes and window."""
    head_dim = value_or(model.head_dim, 64)
    v_head_dim = value_or(model.v_head_dim, head_dim)
    for size in model.head_dims or (head_dim,):
        head_dims = _head_dim_fields(size, v_head_dim if size == head_dim else size)
        kinds = set(model.layer_types) or {"full_attention"}
        window = value_or(model.sliding_window, 0)
        chunk = value_or(model.attention_chunk_size, 0)
        others = {"sliding_attention", "linear_attention", *(("chunked_attention",) if chunk else ())}
        if not (window or chunk) or kinds - others:
            yield head_dims
        if chunk and "chunked_attention" in kinds:
            yield {**head_dims, "attention_chunk": chunk}
        if window:
            yield {**head_dims, "window_size": (window - 1, 0 if model.causal else window - 1)}
