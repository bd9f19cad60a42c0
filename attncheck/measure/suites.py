"""The suites of cases: quick, standard, full, and one made from a model.

A suite has an array that covers all pairs of a case's dimensions (quick), and also all triples of interacting ones
(standard). It adds structured probes, long sequences, many documents, and combinations of real models. Very long
sequences are only in `full`.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Literal, get_args

from attncheck.core.cases import DTYPES, UNBOUNDED, Case, Dtype, Probe, with_name
from attncheck.core.facts import value_or
from attncheck.core.lists import group_values
from attncheck.core.model import Model
from attncheck.measure.generated_cases import arrays_of, iter_generated_cases

Suite = Literal["quick", "standard", "full"]
SUITES: tuple[Suite, ...] = get_args(Suite)
OFFSET_BATCH = 2080  # rows of 32 tokens: token offsets exceed 2^16, element offsets 2^20
OFFSET_KEYS = 34_000
GRID_ROWS = 1025  # of 64 heads: more than the 65,535 blocks that a CUDA grid's second and third dimensions can have
FEW_DOCUMENTS = (200, 7, 1, 128, 65)
FEW_HEADS: dict[str, Any] = {"num_heads": 2, "num_kv_heads": 1}  # of long sequences: a CPU takes seconds for many
LATE_DOCUMENTS = (*(1 + 37 * i % 41 for i in range(28)), 150, 129, 135, 131, 140, 137)  # the late ones are long
WHOLE_AND_NEARLY_WHOLE_TILES = (256, 120, 113, 8)
MANY_DOCUMENTS = tuple(1 + 37 * i % 41 for i in range(40))
TINY_DOCUMENTS = tuple(1 + 2 * i % 5 for i in range(300))
SOME_EMPTY_DOCUMENTS = (0, 129, 0, 64, 0, 0, 1, 65, 0)
MIN_RETRIEVE_HEAD_DIM = 32  # with a smaller head_dim, codes are too short to distinguish thousands of keys
MIN_SAMPLED_SEQLEN = 1 << 14  # with more query rows of as many keys, the oracle computes a sample
# Masks given as tensors: layout, values, and whether each head has its own.
MASK_FORMS = tuple(itertools.product(("right_padded", "left_padded"), ("bool", "additive"), (False, True)))
COMPILED_CASES = {"quick": 2, "standard": 15, "full": 60}  # for a backend that compiles each shape, which takes seconds


def make_suite(name: Suite, seed: int = 0) -> tuple[Case, ...]:
    """Return the cases of a suite, each once, in the order of families."""
    makers = {"quick": _quick_cases, "standard": _standard_cases, "full": _full_cases}
    return finish_cases(makers[name](seed), seed)


def finish_cases(cases: Iterable[Case], seed: int) -> tuple[Case, ...]:
    """Return the cases with name and seed, each once; the oracle samples the rows of long ones."""
    unique: dict[str, Case] = {}
    for case in cases:
        is_short = case.seqlen_q * max(case.seqlens_k) < MIN_SAMPLED_SEQLEN**2  # many short documents cost little
        case = with_name(replace(case, seed=seed, every_row=case.every_row and is_short))
        unique.setdefault(case.name, case)
    return tuple(unique.values())


def thin_cases(cases: tuple[Case, ...], count: int) -> tuple[Case, ...]:
    """Return `count` of the cases, taking the families in turn."""
    families = group_values((case.family, case) for case in cases)
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


def _quick_cases(seed: int) -> Iterator[Case]:
    yield _gqa_case("length", 257)
    yield from probe_variants(_gqa_case("length", 257), "code", "heads", "retrieve", "prefix")
    yield from probe_variants(_packed_case((200, 7, 1, 128)), "retrieve", "poison")
    yield from probe_variants(_gqa_case("dropout", 190, dropout=0.2), "dropout")
    yield _gqa_case("values", 200, values="cancelling", causal=False)
    yield from _generated_cases("quick", seed)


def _standard_cases(seed: int) -> Iterator[Case]:
    for cases in (
        _length_cases,
        _long_feature_cases,
        _value_cases,
        _window_cases,
        _mask_cases,
        _packing_cases,
        _model_like_cases,
    ):
        yield from cases()
    yield from _stride_and_dropout_cases()
    yield from _offset_cases()
    yield from _generated_cases("standard", seed)


def _generated_cases(suite: Suite, seed: int) -> Iterator[Case]:
    for array in arrays_of(suite):
        yield from iter_generated_cases(array, seed)


def _length_cases() -> Iterator[Case]:
    yield _gqa_case("length", 257)
    yield _dense_case("length", 1000, **FEW_HEADS, values="first_key")
    yield _dense_case("length", 1100, **FEW_HEADS, **_head_dim_fields(128), values="cancelling")
    yield _dense_case("length", 2048, num_heads=1, num_kv_heads=1, **_head_dim_fields(128))
    yield _dense_case(
        "length", 2047, num_heads=1, num_kv_heads=1, causal=False, values="cancelling", **_head_dim_fields(192)
    )
    yield _dense_case("length", 2560, num_heads=1, num_kv_heads=1)
    for seqlen in (65, 300, 1023):
        yield from probe_variants(_gqa_case("length", seqlen), "code", "retrieve", "prefix")
    yield from probe_variants(_dense_case("length", 4501, num_heads=1, num_kv_heads=1), "code")
    for heads, kv_heads in ((20, 2), (65, 13), (96, 8)):
        yield from probe_variants(_dense_case("heads", 130, num_heads=heads, num_kv_heads=kv_heads), "heads")


def _long_feature_cases() -> Iterator[Case]:
    """Yield each feature with more than 1,024 keys, beyond the lengths of generated cases."""
    features: tuple[dict[str, Any], ...] = (
        {"layout": "packed"},
        {"layout": "packed", "seqlens_q": (100, 150), "seqlens_k": (300, 800), "window_size": (100, 0)},
        {"layout": "left_padded", "softcap": 20.0, "values": "large"},
        {"layout": "right_padded", "mask": "bool"},
        {"mask": "bool", "per_head": True, "causal": False, "window_size": (500, 90)},
        {"mask": "additive", "window_size": (600, 0)},
        {"layout": "left_padded", "mask": "additive", "per_head": True},
        {"alibi": True, "attention_chunk": 700},
    )
    for index, fields in enumerate(features):
        seqlens = (250, 1100) if "layout" in fields else (1100,)
        lengths = {"seqlens_q": seqlens, "seqlens_k": seqlens} | fields
        yield Case("length", num_heads=2, num_kv_heads=1 + index % 2, **lengths)


def _value_cases() -> Iterator[Case]:
    for dtype, head_dim in (("bfloat16", 192), ("float16", 64)):
        fields = _head_dim_fields(head_dim)
        yield _gqa_case("values", 260, dtype=dtype, values="cancelling", causal=False, **fields)
    yield _dense_case("values", 1024, **FEW_HEADS, values="ramp")
    for values in ("large", "small"):
        yield _dense_case("values", 400, **FEW_HEADS, dtype="float16", values=values)
    for head_dim in (64, 256):  # rows that see no key in some tiles, and only logits far below 0 in the others
        yield _cross_case(200, 333, values="negative", **_head_dim_fields(head_dim))
    yield _gqa_case("values", 513, dtype="float32", causal=False)


def _window_cases() -> Iterator[Case]:
    yield _dense_case("window", 1024, window_size=(127, 0), **FEW_HEADS, **_head_dim_fields(128))
    yield _gqa_case("chunk", 320, attention_chunk=128, **_head_dim_fields(128))
    for window_size in ((64, 0), (37, 0)):
        yield from probe_variants(_gqa_case("window", 400, window_size=window_size), "code", "retrieve")
    yield from probe_variants(_gqa_case("window", 400, causal=False, window_size=(31, 17)), "code", "retrieve")
    yield from probe_variants(_gqa_case("chunk", 400, attention_chunk=64), "code", "retrieve")


def _model_like_cases() -> Iterator[Case]:
    """Yield combinations of features in layers of real models, at their sizes."""
    for window_size in ((127, 0), (UNBOUNDED, UNBOUNDED)):  # gpt-oss
        yield _dense_case("sinks", 300, num_heads=64, num_kv_heads=8, sinks=True, window_size=window_size)
    yield _dense_case("sinks", 1300, num_heads=4, num_kv_heads=1, sinks=True)  # the fourth sink is heavy enough
    for window_size in ((64, 0), (UNBOUNDED, UNBOUNDED)):  # Gemma 2
        yield _gqa_case(
            "softcap", 300, softcap=50.0, values="large", window_size=window_size, scale=0.04, **_head_dim_fields(256)
        )
    yield replace(_packed_case(FEW_DOCUMENTS, attention_chunk=50), family="chunk")  # Llama 4
    yield _packed_case(FEW_DOCUMENTS, num_kv_heads=4, **_head_dim_fields(192, 128))  # DeepSeek's MLA
    yield _cross_case(1, 300, num_heads=8)
    yield _cross_case(129, 1200, dtype="float32")


def _offset_cases() -> Iterator[Case]:
    """Yield cases with token offsets beyond 2^15 and 2^16, and little to compute."""
    tiny: dict[str, Any] = {"num_heads": 1, "num_kv_heads": 1, **_head_dim_fields(16)}
    seqlens = (32,) * OFFSET_BATCH
    yield Case("offsets", seqlens, seqlens, **tiny)
    seqlens = (*seqlens[1:], 31)
    yield Case("offsets", seqlens, seqlens, layout="right_padded", **tiny)
    yield Case("offsets", seqlens, seqlens, layout="packed", **tiny)
    masks: tuple[dict[str, Any], ...] = ({"mask": "bool"}, {"mask": "additive"}, {"window_size": (OFFSET_KEYS - 99, 0)})
    for fields in masks:  # and key positions beyond 2^15
        yield Case("offsets", (3,), (OFFSET_KEYS,), **tiny, **fields)
    seqlens = (3,) * GRID_ROWS
    yield Case("offsets", seqlens, seqlens, **(tiny | {"num_heads": 64, "num_kv_heads": 8}))


def _mask_cases() -> Iterator[Case]:
    """Yield masks given as tensors, in every form, at short lengths and around a tile's size; many rows see no keys."""
    for index, seqlen in enumerate((1, 2, 7, 8, 16, 17, 31, 33, 48, 63, 64, 65, 96, 127, 128, 129)):
        yield _masked_case(seqlen, *MASK_FORMS[3 * index % 8])
    for mask, per_head in itertools.product(("bool", "additive"), (False, True)):  # the first queries attend to no key
        yield replace(_cross_case(64, 20, mask=mask, per_head=per_head), family="mask")


def _masked_case(seqlen: int, layout: str, mask: str, per_head: bool = False) -> Case:
    seqlens = tuple(max(1, seqlen // part) for part in (1, 2, 5))
    return replace(_padded_case(seqlens, layout, mask=mask, per_head=per_head), family="mask")


def _packing_cases() -> Iterator[Case]:
    for seqlens in (TINY_DOCUMENTS, MANY_DOCUMENTS, SOME_EMPTY_DOCUMENTS, (513, 2, 300)):
        yield _packed_case(seqlens)
    yield _packed_case(LATE_DOCUMENTS, num_heads=2, num_kv_heads=1)
    yield _packed_case(WHOLE_AND_NEARLY_WHOLE_TILES, causal=False, **_head_dim_fields(256))
    for seqlens in (FEW_DOCUMENTS, MANY_DOCUMENTS, SOME_EMPTY_DOCUMENTS):
        yield from probe_variants(_packed_case(seqlens), "code", "retrieve", "poison")
    yield from probe_variants(_packed_case(FEW_DOCUMENTS), "nan_poison")
    yield from probe_variants(_packed_case((100, 7, 1, 65), dtype="float16"), "poison")
    for layout in ("right_padded", "left_padded"):
        yield from probe_variants(_padded_case((200, 77, 1), layout), "code", "retrieve", "poison")


def _stride_and_dropout_cases() -> Iterator[Case]:
    for strides in ("expanded", "scalar_dout"):
        yield _gqa_case("strides", 257, batch=2, strides=strides)
    dropout_case = _gqa_case("dropout", 300, batch=2, **_head_dim_fields(128))
    for dropout in (0.1, 0.5):
        yield from probe_variants(replace(dropout_case, dropout=dropout), "dropout")
    yield _gqa_case("dropout", 190, dropout=0.1, probe="dropout", backward=False)


def _full_cases(seed: int) -> Iterator[Case]:
    yield from _standard_cases(seed)
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
    """Yield every length up to a tile, and lengths around a tile, with masks in every form."""
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
    wide: dict[str, Any] = {"num_heads": 64, "num_kv_heads": 1, "every_row": False, **_head_dim_fields(128)}
    seqlens = (512,) * 513  # q has at least 2^31 elements
    yield Case("offsets", seqlens, seqlens, **wide)
    yield Case("offsets", seqlens, seqlens, layout="packed", **wide)


def make_model_cases(
    model: Model, max_seqlen: int | None = None, seed: int = 0, dtype: Dtype | None = None
) -> tuple[Case, ...]:
    """Return the cases of a model's own attention: its heads, sizes, windows, caps, sinks, dtype and lengths.

    Every distinct head_dim and kind of layer has its cases. Lengths go up to `max_seqlen` or the model's
    max_position_embeddings. `dtype` overrides the model's own. Missing configuration fields take their usual values.
    """
    limit = min(max_seqlen or 1 << 40, value_or(model.max_position_embeddings, 4096))
    cases = _iter_model_cases(model, max(1, limit))
    return finish_cases((replace(case, dtype=dtype or case.dtype) for case in cases), seed)


def iter_layer_kinds(model: Model) -> Iterator[dict[str, Any]]:
    """Yield the shape, mask and dtype of each kind of attention layer in a model, as fields of a `Case`."""
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
    """Yield the distinguishing features of the attention layers: head sizes and window."""
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
