"""The suites of cases: quick, standard, full, and one made from a model.

Lengths are chosen by remainders that have broken kernels (1, 63 to 65, 127 to 129, 192, 320, odd), masks and layouts
by the ways in which they go wrong; each mask has random inputs and a structured probe. What only a long sequence
shows is in `full`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Literal, get_args

from attncheck.core.cases import ANY, DTYPES, Case, Dtype, Probe, Values, with_name
from attncheck.core.facts import value_or
from attncheck.core.model import Model

Suite = Literal["quick", "standard", "full"]
SUITES: tuple[Suite, ...] = get_args(Suite)
VALUES: tuple[Values, ...] = get_args(Values)
FEW = (200, 7, 1, 128, 65)
MANY = tuple(1 + 37 * i % 41 for i in range(40))
WITH_EMPTY = (0, 129, 0, 64, 0, 0, 1, 65, 0)
RETRIEVED = 32  # head_dim below which codes are too short to tell thousands of keys apart
SAMPLED_FROM = 1 << 14  # query rows beyond which the oracle looks at some
COMPILED = {"quick": 2, "standard": 15, "full": 60}  # cases given to a backend that compiles each shape for seconds


def suite(name: Suite, seed: int = 0) -> tuple[Case, ...]:
    """Return the cases of a suite, each once, in the order of families."""
    makers = {"quick": _quick, "standard": _standard, "full": _full}
    return finished(makers[name](), seed)


def finished(cases: Iterable[Case], seed: int) -> tuple[Case, ...]:
    """Return the cases named and seeded, each once; the oracle samples the rows of long ones."""
    unique: dict[str, Case] = {}
    for case in cases:
        case = with_name(replace(case, seed=seed, every_row=case.every_row and case.seqlen_q < SAMPLED_FROM))
        unique.setdefault(case.name, case)
    return tuple(unique.values())


def thinned(cases: tuple[Case, ...], count: int) -> tuple[Case, ...]:
    """Return `count` of the cases, the families in turn."""
    families: dict[str, list[Case]] = {}
    for case in cases:
        families.setdefault(case.family, []).append(case)
    chosen: list[Case] = []
    while len(chosen) < min(count, len(cases)):
        for members in families.values():
            if members and len(chosen) < count:
                chosen.append(members.pop(0))
    return tuple(case for case in cases if case in chosen)


def _dense(family: str, seqlen: int, batch: int = 1, **more: Any) -> Case:
    return Case(family, (seqlen,) * batch, (seqlen,) * batch, **more)


def _gqa(family: str, seqlen: int, **more: Any) -> Case:
    return _dense(family, seqlen, **{"num_kv_heads": 2, **more})


def _wide(head_dim: int, v_head_dim: int | None = None) -> dict[str, Any]:
    return {"head_dim": head_dim, "v_head_dim": v_head_dim or head_dim}


def _cross(seqlen_q: int, seqlen_k: int, **more: Any) -> Case:
    return Case("cross", (seqlen_q,), (seqlen_k,), **{"num_kv_heads": 2, **more})


def _documents(seqlens: tuple[int, ...], **more: Any) -> Case:
    return Case("packed", seqlens, seqlens, **{"layout": "packed", "num_kv_heads": 2, **more})


def _rows(seqlens: tuple[int, ...], layout: str, **more: Any) -> Case:
    return Case("padded", seqlens, seqlens, **{"layout": layout, "num_kv_heads": 2, **more})


def probes(case: Case, *kinds: Probe) -> Iterator[Case]:
    """Yield a case with the inputs of each structured probe in turn."""
    for probe in kinds:
        if probe == "retrieve" and min(case.head_dim, case.v_head_dim) < RETRIEVED:
            continue
        backward = probe in ("heads", "poison", "nan_poison", "dropout")
        yield replace(case, probe=probe, backward=backward)


def _quick() -> Iterator[Case]:
    yield _gqa("length", 257)
    yield _gqa("length", 65, causal=False)
    yield _gqa("length", 640, **_wide(128))
    yield from probes(_gqa("length", 257), "code", "heads", "retrieve", "prefix")
    yield _dense("head_dim", 129, **_wide(80))
    yield _gqa("dtype", 193, dtype="float16")
    yield _gqa("dtype", 193, dtype="float32")
    yield _gqa("values", 320, values="large")
    yield _gqa("values", 600, values="ramp")
    yield _gqa("window", 300, window_size=(64, 0))
    yield _cross(129, 300)
    yield _rows((200, 77), "left_padded")
    yield _documents((200, 7, 1, 128))
    yield from probes(_documents((200, 7, 1, 128)), "retrieve", "poison")
    yield _gqa("softcap", 300, softcap=20.0, values="large")
    yield _gqa("forward", 320, backward=False)


def _standard() -> Iterator[Case]:
    for part in (
        _lengths,
        _head_dims,
        _heads,
        _values,
        _windows,
        _scores,
        _crosses,
        _paddings,
        _packings,
        _odd,
        _together,
    ):
        yield from part()


def _lengths() -> Iterator[Case]:
    for seqlen in (1, 2, 7, 63, 64, 65, 127, 128, 129, 192, 320, 513, 1000):
        for causal in (True, False):
            yield _gqa("length", seqlen, causal=causal)
    yield _gqa("length", 257, batch=3)
    yield _gqa("length", 257, dtype="float16", batch=2)
    yield _dense("length", 2048, num_heads=2, num_kv_heads=1, **_wide(128))
    yield _dense("length", 2047, num_heads=2, num_kv_heads=2, causal=False)
    yield _dense("length", 4096, num_heads=1, num_kv_heads=1)
    for seqlen in (65, 300, 1023):
        yield from probes(_gqa("length", seqlen), "code", "retrieve", "prefix")
        yield from probes(_gqa("length", seqlen, causal=False), "code")
    yield from probes(_dense("length", 6001, num_heads=1, num_kv_heads=1), "code")
    yield _gqa("forward", 320, backward=False)
    yield _gqa("forward", 129, backward=False, causal=False)


def _head_dims() -> Iterator[Case]:
    for size in (32, 64, 72, 80, 96, 112, 128, 160, 192, 224, 256):
        yield _gqa("head_dim", 257, **_wide(size))
    for size in (32, 80, 96, 128, 256):
        yield _gqa("head_dim", 320, dtype="float16", causal=False, **_wide(size))
    yield _dense("head_dim", 257, **_wide(192, 128))
    yield _dense("head_dim", 320, causal=False, **_wide(192, 128))
    yield _documents(FEW, num_kv_heads=4, **_wide(192, 128))
    yield _dense("head_dim", 129, dtype="float32", **_wide(96, 64))


def _heads() -> Iterator[Case]:
    for heads, kv_heads in ((8, 8), (8, 4), (8, 2), (8, 1), (28, 4), (32, 8), (16, 1)):
        yield _dense("heads", 200, num_heads=heads, num_kv_heads=kv_heads)
        yield from probes(_dense("heads", 130, num_heads=heads, num_kv_heads=kv_heads), "heads")
    yield _dense("heads", 200, num_heads=8, num_kv_heads=2, causal=False, dtype="float16")
    yield from probes(_documents(FEW, num_heads=8), "heads")


def _values() -> Iterator[Case]:
    for dtype in DTYPES:
        for values in VALUES:
            yield _gqa("values", 320, dtype=dtype, values=values)
    for values in VALUES:
        yield _gqa("values", 1024, values=values)
        yield _gqa("values", 384, values=values, causal=False)
    for values in ("ramp", "large", "small"):
        yield _gqa("values", 640, dtype="float16", values=values)
    for seqlen in (129, 513):
        yield _gqa("values", seqlen, dtype="float32", causal=False)


def _windows() -> Iterator[Case]:
    for left in (1, 16, 63, 64, 128, 200):
        yield _gqa("window", 333, window_size=(left, 0))
    for size in ((64, 64), (0, 0), (33, 7), (ANY, 16), (100, ANY)):
        yield _gqa("window", 333, causal=False, window_size=size)
    yield _gqa("window", 700, window_size=(256, 0), dtype="float16")
    yield _gqa("window", 1024, window_size=(127, 0), **_wide(128))
    for size in ((64, 0), (37, 0)):
        yield from probes(_gqa("window", 400, window_size=size), "code", "retrieve")
    yield from probes(_gqa("window", 400, causal=False, window_size=(31, 17)), "code", "retrieve")


def _scores() -> Iterator[Case]:
    for cap, values in ((20.0, "normal"), (20.0, "large"), (50.0, "large"), (30.0, "large")):
        yield _gqa("softcap", 300, softcap=cap, values=values)
        yield _gqa("softcap", 640, softcap=cap, values=values, dtype="float16")
    yield _gqa("softcap", 300, softcap=30.0, values="large", window_size=(64, 0), **_wide(256))
    yield _gqa("softcap", 300, softcap=30.0, values="large", dtype="float32")
    variants: tuple[dict[str, Any], ...] = ({}, {"causal": False}, {"dtype": "float16"}, {"dtype": "float32"})
    for more in (*variants, {"window_size": (64, 0)}):
        yield _gqa("sinks", 300, sinks=True, **more)
    yield replace(_documents(FEW, sinks=True), family="sinks")
    yield replace(_documents(FEW, softcap=20.0, values="large"), family="softcap")
    yield replace(_rows((200, 77), "left_padded", softcap=20.0, values="large"), family="softcap")
    yield replace(_documents(FEW, softcap=20.0, values="large", window_size=(40, 0)), family="softcap")
    yield replace(_rows((200, 77), "left_padded", sinks=True), family="sinks")
    yield replace(_documents(FEW, sinks=True, window_size=(40, 0)), family="sinks")
    yield replace(_documents(FEW, alibi=True), family="alibi")
    yield replace(_rows((200, 77), "left_padded", alibi=True), family="alibi")
    yield replace(_cross(129, 300, alibi=True), family="alibi")
    yield _gqa("alibi", 300, alibi=True, window_size=(64, 0))
    for more in (*variants, {"num_heads": 8}):
        yield _gqa("alibi", 300, alibi=True, **more)


def _crosses() -> Iterator[Case]:
    for lengths in ((1, 300), (64, 300), (129, 300), (100, 613), (300, 129)):
        yield _cross(*lengths)
    for lengths in ((129, 300), (300, 129), (1, 300)):
        yield _cross(*lengths, alignment="top_left")
        yield _cross(*lengths, causal=False)
    yield _cross(129, 300, window_size=(50, 0))
    yield _cross(129, 300, dtype="float16")
    yield Case("cross", (65, 3, 129), (200, 64, 129), layout="packed", num_kv_heads=2)
    for lengths in ((129, 300), (300, 129)):
        yield from probes(_cross(*lengths), "code", "retrieve")
        yield from probes(_cross(*lengths, alignment="top_left"), "code")


def _paddings() -> Iterator[Case]:
    for layout in ("right_padded", "left_padded"):
        for seqlens in ((300, 170, 1), (129, 128, 64, 7)):
            yield _rows(seqlens, layout)
        yield _rows((257, 130), layout, dtype="float16")
        yield _rows((257, 130), layout, causal=False)
        yield from probes(_rows((200, 77, 1), layout), "code", "retrieve", "poison")


def _packings() -> Iterator[Case]:
    for seqlens in ((300,), FEW, MANY, WITH_EMPTY, (64, 128, 192), (513, 2, 300)):
        yield _documents(seqlens)
    yield _documents(FEW, dtype="float16", **_wide(128))
    yield _documents(FEW, dtype="float32")
    yield _documents(FEW, causal=False)
    yield _documents(MANY, causal=False, num_heads=8)
    yield _documents(FEW, window_size=(50, 0))
    yield _documents(FEW, values="large")
    for seqlens in (FEW, MANY, WITH_EMPTY):
        yield from probes(_documents(seqlens), "code", "retrieve", "poison")
    yield from probes(_documents(FEW), "nan_poison")
    yield from probes(_documents(FEW, dtype="float16"), "poison")


def _odd() -> Iterator[Case]:
    for strides in ("transposed", "sliced", "expanded"):
        yield _gqa("strides", 257, batch=2, strides=strides)
        yield _gqa("strides", 192, causal=False, dtype="float16", strides=strides)
    for rate in (0.1, 0.5):
        yield from probes(_gqa("dropout", 400, batch=4, num_heads=8, dropout=rate), "dropout")
    yield from probes(_gqa("dropout", 300, batch=4, dropout=0.1, causal=False, dtype="float16"), "dropout")


def _together() -> Iterator[Case]:
    """Features that fail only together: a mask with padding, a batch, another head_dim, dtype or stride."""
    wide = _wide(128)
    yield replace(_rows((300, 170, 20), "left_padded", window_size=(64, 0)), family="window")
    yield replace(_rows((300, 170, 20), "right_padded", window_size=(64, 0)), family="window")
    yield _gqa("window", 300, batch=2, window_size=(64, 0))
    yield _gqa("window", 300, dtype="float32", window_size=(64, 0))
    yield _dense("window", 300, num_kv_heads=1, window_size=(100, 0))
    yield _gqa("length", 257, batch=2, causal=False)
    yield _gqa("length", 1500, **wide)
    yield _dense("heads", 520, num_heads=8, num_kv_heads=1)
    yield _dense("heads", 130, num_heads=40, num_kv_heads=8)
    yield _cross(1, 300, num_heads=8)
    yield _cross(1, 300, num_heads=4, num_kv_heads=4)
    yield replace(_cross(129, 300), seqlens_q=(129, 129), seqlens_k=(300, 300))
    yield _cross(129, 1200, dtype="float32")
    yield Case("cross", (129, 64, 7), (65, 200, 7), layout="packed", num_kv_heads=2)
    yield _rows((257, 130), "left_padded", num_kv_heads=4, **wide)
    yield _rows((257, 130), "left_padded", dtype="float32")
    yield _documents(FEW, num_kv_heads=4, dtype="float16", **_wide(192, 128))
    yield _documents(FEW, **_wide(80))
    yield _documents(FEW, strides="transposed")
    yield _rows((257, 130), "left_padded", strides="transposed")
    yield _gqa("head_dim", 257, num_heads=8, **_wide(192, 128))
    for size in (40, 56, 88, 120):
        yield _gqa("head_dim", 257, **_wide(size))
    yield _dense("softcap", 700, softcap=30.0, values="large", **wide)
    yield _gqa("sinks", 640, sinks=True, **wide)


def _full() -> Iterator[Case]:
    yield from _standard()
    yield from _grid()
    yield from _long()


def _grid() -> Iterator[Case]:
    """Every dtype × head_dim × kind of mask, at a length with a remainder."""
    kinds: tuple[dict[str, Any], ...] = ({}, {"causal": False}, {"window_size": (100, 0)})
    for dtype in DTYPES:
        for size in (32, 64, 96, 128, 192, 256):
            for more in kinds:
                yield _gqa("grid", 577, dtype=dtype, **_wide(size), **more)
            yield replace(_documents((300, 1, 129, 64), dtype=dtype, **_wide(size)), family="grid")


def _long() -> Iterator[Case]:
    two: dict[str, Any] = {"num_heads": 2, "num_kv_heads": 1}
    for size in (64, 128):
        yield _dense("long", 4097, **two, **_wide(size))
        yield _dense("long", 8191, **two, **_wide(size))
    yield _dense("long", 8192, causal=False, **two)
    yield _dense("long", 8192, window_size=(1024, 0), **two)
    yield replace(_documents((5000, 100, 3000, 1, 91), **two), family="long")
    yield from probes(_dense("long", 9001, **two), "code", "retrieve")
    for seqlen in (32768, 36863, 131072):
        yield _dense("long", seqlen, **two, **_wide(128))
        yield _dense("long", seqlen, dtype="float16", num_heads=1, num_kv_heads=1)
        yield from probes(_dense("long", seqlen, num_heads=1, num_kv_heads=1), "code")
    yield _dense("long", 131072, num_heads=8, num_kv_heads=2, **_wide(128))
    yield from probes(_dense("long", 40000, num_heads=1, num_kv_heads=1), "retrieve")
    yield from probes(_dense("long", 40000, num_heads=1, num_kv_heads=1, window_size=(4096, 0)), "code")
    yield replace(_documents((20000, 33000, 1, 12000), **two), family="long")


def for_model(model: Model, longest: int | None = None, seed: int = 0, dtype: Dtype | None = None) -> tuple[Case, ...]:
    """Return the cases that a model's own attention makes: its heads, sizes, windows, caps, sinks, dtype, lengths.

    Every distinct head_dim and kind of layer has its cases. Lengths go up to `longest` or the model's
    max_position_embeddings; `dtype` takes the place of the model's own. What the configuration does not say takes its
    usual value. Layers that attend in chunks are tested as full ones.
    """
    top = min(longest or 1 << 40, value_or(model.max_position_embeddings, 4096))
    cases = _model_cases(model, max(1, top))
    return finished((replace(case, dtype=dtype or case.dtype) for case in cases), seed)


def model_kinds(model: Model) -> Iterator[dict[str, Any]]:
    """Yield the shape, mask and dtype of each kind of attention layer that a model has, as words for a `Case`."""
    heads = value_or(model.num_heads, 8)
    kv_heads = value_or(model.num_kv_heads, heads)
    for more in _layers(model):
        yield {"num_heads": heads, "num_kv_heads": kv_heads, **_common(model), **more}


def _model_cases(model: Model, top: int) -> Iterator[Case]:
    for shape in model_kinds(model):
        for seqlen in sorted({min(size, top) for size in (65, 257, 640, 2048, top)}):
            if seqlen < SAMPLED_FROM:
                yield _dense("model", seqlen, **shape)
            else:
                yield _dense("model-long", seqlen, **shape)
        for values in ("large", "outlier", "long_tail"):
            yield _dense("model", min(513, top), **{**shape, "values": values})
        fitting = tuple(min(size, top) for size in FEW)
        yield Case("model-packed", fitting, fitting, layout="packed", **shape)
        yield from probes(Case("model-packed", fitting, fitting, layout="packed", **shape), "poison")
        for layout in ("right_padded", "left_padded"):
            yield Case("model-padded", fitting[:2], fitting[:2], **{**shape, "layout": layout})
        if not (shape.get("softcap") or shape.get("sinks") or shape.get("alibi")):
            yield from probes(_dense("model", min(513, top), **shape), "code", "heads", "retrieve")


def _common(model: Model) -> dict[str, Any]:
    dtype: Dtype = "bfloat16"
    said = value_or(model.dtype, "bfloat16").removeprefix("torch.")
    if said in DTYPES:
        dtype = said
    softcap = value_or(model.softcap, 0.0) or 0.0
    return {
        "dtype": dtype,
        "causal": model.causal,
        "softcap": softcap,
        "values": "large" if softcap else "normal",
        "sinks": model.sinks,
        "alibi": model.alibi,
    }


def _layers(model: Model) -> Iterator[dict[str, Any]]:
    """Yield what tells the kinds of attention layer apart: head sizes and window."""
    largest = value_or(model.head_dim, 64)
    v_size = value_or(model.v_head_dim, largest)
    for size in model.head_dims or (largest,):
        both = _wide(size, v_size if size == largest else size)
        kinds = set(model.layer_types) or {"full_attention"}
        window = value_or(model.sliding_window, 0)
        if not window or kinds - {"sliding_attention", "linear_attention"}:
            yield both
        if window:
            yield {**both, "window_size": (window - 1, 0 if model.causal else window - 1)}
