"""The suites of context-parallel cases: what every scheme must get right on a ring of n ranks.

Lengths are multiples of 2n, which the zigzag needs, except in "uneven", which only llama3's scheme takes. Documents
are chosen by where they end: one document, many, one longer than a shard, one that ends on a shard's edge. "growth" is
the same problem at every ring size, so that errors can be compared across them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from attncheck.core.cases import Case, Dtype, Values
from attncheck.core.model import Model
from attncheck.measure.suites import Suite, finished, model_kinds, probes

GROWTH = 1024  # tokens of the problem that is the same at every ring size up to 64 ranks
SHARD = 128  # tokens of a rank's shard at least
WINDOW = 100  # of the full suite: shorter than a shard, so that a window per block shows


def suite(name: Suite, ring_size: int, seed: int = 0) -> tuple[Case, ...]:
    """Return the cases of a suite for a ring of `ring_size` ranks, each once, in the order of families."""
    makers = {"quick": _quick, "standard": _standard, "full": _full}
    return _on(ring_size, makers[name](ring_size), seed)


def growth(ring_size: int, seed: int = 0) -> tuple[Case, ...]:
    """Return the cases that are the same problem at every ring size."""
    return _on(ring_size, _growth(), seed)


def for_model(
    model: Model, ring_size: int, longest: int | None = None, seed: int = 0, dtype: Dtype | None = None
) -> tuple[Case, ...]:
    """Return the cases that a model's own attention makes on a ring: its heads, sizes, windows, caps, sinks, dtype."""
    cases = _model_cases(model, ring_size, longest)
    return _on(ring_size, (replace(case, dtype=dtype or case.dtype) for case in cases), seed)


def for_bench(num_heads: int, num_kv_heads: int, head_dim: int, dtype: Dtype, ring_size: int) -> tuple[Case, ...]:
    """Return a dense case and a packed one of a shape that is timed, called as the benchmark calls it."""
    shape: dict[str, Any] = {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "head_dim": head_dim}
    shape |= {"dtype": dtype, "operands": "kvpacked"}
    packed = _packed("bench", documents(ring_size)["many_documents"], **shape)
    return _on(ring_size, iter((_dense("bench", _total(ring_size), **shape), packed)), 0)


def _on(ring_size: int, cases: Iterator[Case], seed: int) -> tuple[Case, ...]:
    return finished((replace(case, context_parallel_size=ring_size) for case in cases), seed)


def _total(ring_size: int) -> int:
    """Return the tokens of a row: at least a thousand, and such that a shard's length is a multiple of 2n too."""
    step = 2 * ring_size * ring_size
    return -(-max(GROWTH, SHARD * ring_size) // step) * step


def _dense(family: str, seqlen: int, batch: int = 1, **more: Any) -> Case:
    shape: dict[str, Any] = {"num_heads": 4, "num_kv_heads": 4, "head_dim": 64, **more}
    shape.setdefault("v_head_dim", shape["head_dim"])
    return Case(family, (seqlen,) * batch, (seqlen,) * batch, **shape)


def _packed(family: str, seqlens: tuple[int, ...], **more: Any) -> Case:
    shape: dict[str, Any] = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 64, **more}
    shape.setdefault("v_head_dim", shape["head_dim"])
    return Case(family, seqlens, seqlens, layout="packed", **shape)


def documents(ring_size: int, total: int | None = None) -> dict[str, tuple[int, ...]]:
    """Return the packings of a row by what is telling about them; every document is a multiple of 2n."""
    total, unit = total or _total(ring_size), 2 * ring_size
    shard = total // ring_size
    units = total // unit
    many = [unit * (1 + index % 3) for index in range(max(1, units // 3))]
    longer = (shard // 2 + shard + unit) // unit * unit  # over a shard's length, across an edge
    edge = max(unit, shard // unit * unit)
    return {
        "one_document": (total,),
        "many_documents": _filled(many, total),
        "longer_than_a_shard": _filled([unit, longer], total),
        "ends_on_an_edge": _filled([edge, unit], total),
    }


def _filled(lengths: list[int], total: int) -> tuple[int, ...]:
    """Return as many of the lengths as fit into `total`, and what is left as a last document."""
    kept: list[int] = []
    for length in lengths:
        if sum(kept) + length > total:
            break
        kept.append(length)
    rest = total - sum(kept)
    return (*kept, rest) if rest else tuple(kept)


def _quick(ring_size: int) -> Iterator[Case]:
    total = _total(ring_size)
    yield from _growth()
    yield _dense("ring", total, num_kv_heads=2)
    yield from probes(_dense("ring", total, num_kv_heads=2), "code", "retrieve")
    for family in ("many_documents", "longer_than_a_shard"):
        yield _packed(family, documents(ring_size)[family])
    yield from probes(_packed("many_documents", documents(ring_size)["many_documents"]), "code", "poison")


def _standard(ring_size: int) -> Iterator[Case]:
    yield from _growth()
    yield from _rows(ring_size)
    yield from _packings(ring_size)
    yield from _operands(ring_size)
    yield from _strides(ring_size)


def _growth() -> Iterator[Case]:
    yield _dense("growth", GROWTH, num_kv_heads=2)
    yield _packed("growth", (GROWTH,))


def _rows(ring_size: int) -> Iterator[Case]:
    total = _total(ring_size)
    for head_dim in (64, 128):
        for kv_heads in (4, 2):
            yield _dense("ring", total, num_kv_heads=kv_heads, head_dim=head_dim)
    yield _dense("ring", total, num_kv_heads=2, dtype="float16")
    yield _dense("ring", total // 2, batch=2, num_kv_heads=1)
    yield _dense("full_mask", total, num_kv_heads=2, causal=False)
    distributions: tuple[Values, ...] = ("outlier", "large", "ramp")
    for values in distributions:
        yield _dense("values", total, num_kv_heads=2, values=values)
    yield from probes(_dense("ring", total, num_kv_heads=2), "code", "heads", "retrieve", "prefix")
    yield from probes(_dense("full_mask", total, num_kv_heads=2, causal=False), "code", "retrieve")


def _packings(ring_size: int) -> Iterator[Case]:
    for family, seqlens in documents(ring_size).items():
        yield _packed(family, seqlens)
        yield _packed(family, seqlens, num_kv_heads=4, head_dim=128)
        yield from probes(_packed(family, seqlens), "code")
    many = documents(ring_size)["many_documents"]
    yield _packed("many_documents", many, dtype="float16")
    yield _packed("full_mask", many, causal=False)
    yield _packed("values", many, values="large")
    yield _packed("values", documents(ring_size)["one_document"], values="ramp")
    yield from probes(_packed("many_documents", many), "retrieve", "heads", "poison")
    total = _total(ring_size)
    uneven = (1, 7, total // 2 - 3, total - total // 2 - 5)
    yield _packed("uneven", uneven)
    yield from probes(_packed("uneven", uneven), "code", "poison")


def _operands(ring_size: int) -> Iterator[Case]:
    total, many = _total(ring_size), documents(ring_size)["many_documents"]
    yield _dense("operands", total, num_kv_heads=2, operands="kvpacked")
    yield _dense("operands", total, operands="qkvpacked")
    yield _packed("operands", many, operands="kvpacked")
    yield _packed("operands", many, num_kv_heads=4, operands="qkvpacked")
    yield from probes(_dense("operands", total, num_kv_heads=2, operands="kvpacked"), "heads")


def _strides(ring_size: int) -> Iterator[Case]:
    """Yield a case for every divisor of the kv heads that llama3's scheme may gather at a time."""
    many = documents(ring_size)["many_documents"]
    for stride in (1, 2, 4):
        yield _packed("heads_k_stride", many, num_heads=8, num_kv_heads=4, heads_k_stride=stride)
        yield from probes(_packed("heads_k_stride", many, num_heads=8, num_kv_heads=4, heads_k_stride=stride), "heads")


def _full(ring_size: int) -> Iterator[Case]:
    yield from _standard(ring_size)
    total, many = _total(ring_size), documents(ring_size)["many_documents"]
    yield _dense("ring", 8 * total, num_kv_heads=2)
    yield _packed("many_documents", tuple(4 * length for length in many))
    yield _dense("window", total, num_kv_heads=2, window_size=(WINDOW, 0))
    yield _packed("window", documents(ring_size)["one_document"], window_size=(WINDOW, 0))
    for head_dim in (32, 96, 256):
        yield _dense("head_dim", total, num_kv_heads=2, head_dim=head_dim)
        yield _packed("head_dim", many, head_dim=head_dim)


def _model_cases(model: Model, ring_size: int, longest: int | None) -> Iterator[Case]:
    total = _total(ring_size)
    while longest is not None and total * 2 <= longest:
        total *= 2
    packings = documents(ring_size, total)
    for kind in model_kinds(model):
        if "window_size" in kind:  # shorter than the row, or it would change nothing
            kind["window_size"] = tuple(min(side, total // 3) for side in kind["window_size"])
        yield _dense("model", total, **kind)
        for family in ("many_documents", "longer_than_a_shard"):
            yield _packed(family, packings[family], **kind)
        yield from probes(_dense("model", total, **kind), "code")
        yield from probes(_packed("many_documents", packings["many_documents"], **kind), "code", "poison")
