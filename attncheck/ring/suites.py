"""The suites of context-parallel cases that every scheme must compute right on a ring of n ranks.

Lengths are multiples of 2n, which zigzag needs, except in "uneven", which only llama3 takes. Documents are chosen by
where they end: one document, many, one longer than a shard, one that ends at a shard's edge. "growth" is the same
problem at every ring size, so that errors can be compared across sizes.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from attncheck.core.cases import Case, Dtype, Values
from attncheck.core.model import Model
from attncheck.measure.suites import Suite, finish_cases, iter_layer_kinds, probe_variants

GROWTH_SEQLEN = 1024  # tokens of the problem that is the same for all rings of up to 64 ranks
MIN_SHARD = 128  # the fewest tokens in a rank's shard
WINDOW = 100  # in the full suite; shorter than a shard, so that a window applied per block shows


def make_suite(name: Suite, ring_size: int, seed: int = 0) -> tuple[Case, ...]:
    """Return the suite's cases for a ring of `ring_size` ranks, each once, by family."""
    makers = {"quick": _quick_cases, "standard": _standard_cases, "full": _full_cases}
    return _finish_cases(ring_size, makers[name](ring_size), seed)


def make_growth_cases(ring_size: int, seed: int = 0) -> tuple[Case, ...]:
    """Return the cases that are the same problem at every ring size."""
    return _finish_cases(ring_size, _growth_cases(), seed)


def make_model_cases(
    model: Model, ring_size: int, max_seqlen: int | None = None, seed: int = 0, dtype: Dtype | None = None
) -> tuple[Case, ...]:
    """Return the cases of a model's attention on a ring: its heads, sizes, windows, caps, sinks and dtype."""
    cases = _iter_model_cases(model, ring_size, max_seqlen)
    return _finish_cases(ring_size, (replace(case, dtype=dtype or case.dtype) for case in cases), seed)


def make_bench_cases(
    num_heads: int, num_kv_heads: int, head_dim: int, dtype: Dtype, ring_size: int
) -> tuple[Case, ...]:
    """Return a dense and a packed case of a timed shape, with k and v stacked and separate, as schemes are timed."""
    shape: dict[str, Any] = {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "head_dim": head_dim}
    packed = _packed_case("bench", make_packings(ring_size)["many_documents"], dtype=dtype, **shape)
    cases = (_dense_case("bench", _row_length(ring_size), dtype=dtype, **shape), packed)
    together = (replace(case, operands="kvpacked") for case in cases)
    return _finish_cases(ring_size, iter((*together, *cases)), 0)


def _finish_cases(ring_size: int, cases: Iterator[Case], seed: int) -> tuple[Case, ...]:
    return finish_cases((replace(case, context_parallel_size=ring_size) for case in cases), seed)


def _row_length(ring_size: int) -> int:
    """Return the tokens of a row: at least a thousand, with a shard length that is also a multiple of 2n."""
    step = 2 * ring_size * ring_size
    return -(-max(GROWTH_SEQLEN, MIN_SHARD * ring_size) // step) * step


def _dense_case(family: str, seqlen: int, batch: int = 1, **fields: Any) -> Case:
    shape: dict[str, Any] = {"num_heads": 4, "num_kv_heads": 4, "head_dim": 64, **fields}
    shape.setdefault("v_head_dim", shape["head_dim"])
    return Case(family, (seqlen,) * batch, (seqlen,) * batch, **shape)


def _packed_case(family: str, seqlens: tuple[int, ...], **fields: Any) -> Case:
    shape: dict[str, Any] = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 64, **fields}
    shape.setdefault("v_head_dim", shape["head_dim"])
    return Case(family, seqlens, seqlens, layout="packed", **shape)


def make_packings(ring_size: int, total: int | None = None) -> dict[str, tuple[int, ...]]:
    """Return the document lengths of each packing by what it tests; every length is a multiple of 2n."""
    total, unit = total or _row_length(ring_size), 2 * ring_size
    shard = total // ring_size
    units = total // unit
    many = [unit * (1 + index % 3) for index in range(max(1, units // 3))]
    longer = (shard // 2 + shard + unit) // unit * unit  # longer than a shard, across an edge
    edge = max(unit, shard // unit * unit)
    return {
        "one_document": (total,),
        "many_documents": _fill_row(many, total),
        "longer_than_a_shard": _fill_row([unit, longer], total),
        "ends_on_an_edge": _fill_row([edge, unit], total),
    }


def _fill_row(lengths: list[int], total: int) -> tuple[int, ...]:
    """Return as many of the lengths as fit into `total`, and the remainder as the last document."""
    documents: list[int] = []
    for length in lengths:
        if sum(documents) + length > total:
            break
        documents.append(length)
    remainder = total - sum(documents)
    return (*documents, remainder) if remainder else tuple(documents)


def _quick_cases(ring_size: int) -> Iterator[Case]:
    total = _row_length(ring_size)
    yield from _growth_cases()
    yield _dense_case("ring", total, num_kv_heads=2)
    yield from probe_variants(_dense_case("ring", total, num_kv_heads=2), "code", "retrieve")
    for family in ("many_documents", "longer_than_a_shard"):
        yield _packed_case(family, make_packings(ring_size)[family])
    yield from probe_variants(
        _packed_case("many_documents", make_packings(ring_size)["many_documents"]), "code", "poison"
    )


def _standard_cases(ring_size: int) -> Iterator[Case]:
    yield from _growth_cases()
    yield from _dense_row_cases(ring_size)
    yield from _packing_cases(ring_size)
    yield from _operand_cases(ring_size)
    yield from _heads_k_stride_cases(ring_size)


def _growth_cases() -> Iterator[Case]:
    yield _dense_case("growth", GROWTH_SEQLEN, num_kv_heads=2)
    yield _packed_case("growth", (GROWTH_SEQLEN,))


def _dense_row_cases(ring_size: int) -> Iterator[Case]:
    total = _row_length(ring_size)
    for head_dim in (64, 128):
        for kv_heads in (4, 2):
            yield _dense_case("ring", total, num_kv_heads=kv_heads, head_dim=head_dim)
    yield _dense_case("ring", total, num_kv_heads=2, dtype="float16")
    yield _dense_case("ring", total // 2, batch=2, num_kv_heads=1)
    yield _dense_case("full_mask", total, num_kv_heads=2, causal=False)
    distributions: tuple[Values, ...] = ("outlier", "large", "ramp")
    for values in distributions:
        yield _dense_case("values", total, num_kv_heads=2, values=values)
    yield from probe_variants(_dense_case("ring", total, num_kv_heads=2), "code", "heads", "retrieve", "prefix")
    yield from probe_variants(_dense_case("full_mask", total, num_kv_heads=2, causal=False), "code", "retrieve")


def _packing_cases(ring_size: int) -> Iterator[Case]:
    for family, seqlens in make_packings(ring_size).items():
        yield _packed_case(family, seqlens)
        yield _packed_case(family, seqlens, num_kv_heads=4, head_dim=128)
        yield from probe_variants(_packed_case(family, seqlens), "code")
    many = make_packings(ring_size)["many_documents"]
    yield _packed_case("many_documents", many, dtype="float16")
    yield _packed_case("full_mask", many, causal=False)
    yield _packed_case("values", many, values="large")
    yield _packed_case("values", make_packings(ring_size)["one_document"], values="ramp")
    yield from probe_variants(_packed_case("many_documents", many), "retrieve", "heads", "poison")
    total = _row_length(ring_size)
    uneven = (1, 7, total // 2 - 3, total - total // 2 - 5)
    yield _packed_case("uneven", uneven)
    yield from probe_variants(_packed_case("uneven", uneven), "code", "poison")


def _operand_cases(ring_size: int) -> Iterator[Case]:
    total, many = _row_length(ring_size), make_packings(ring_size)["many_documents"]
    yield _dense_case("operands", total, num_kv_heads=2, operands="kvpacked")
    yield _dense_case("operands", total, operands="qkvpacked")
    yield _packed_case("operands", many, operands="kvpacked")
    yield _packed_case("operands", many, num_kv_heads=4, operands="qkvpacked")
    yield from probe_variants(_dense_case("operands", total, num_kv_heads=2, operands="kvpacked"), "heads")


def _heads_k_stride_cases(ring_size: int) -> Iterator[Case]:
    """Yield a case for every divisor of the kv heads that llama3 may gather at a time."""
    many = make_packings(ring_size)["many_documents"]
    for stride in (1, 2, 4):
        yield _packed_case("heads_k_stride", many, num_heads=8, num_kv_heads=4, heads_k_stride=stride)
        yield from probe_variants(
            _packed_case("heads_k_stride", many, num_heads=8, num_kv_heads=4, heads_k_stride=stride), "heads"
        )


def _full_cases(ring_size: int) -> Iterator[Case]:
    yield from _standard_cases(ring_size)
    total, many = _row_length(ring_size), make_packings(ring_size)["many_documents"]
    yield _dense_case("ring", 8 * total, num_kv_heads=2)
    yield _packed_case("many_documents", tuple(4 * length for length in many))
    yield _dense_case("window", total, num_kv_heads=2, window_size=(WINDOW, 0))
    yield _packed_case("window", make_packings(ring_size)["one_document"], window_size=(WINDOW, 0))
    for head_dim in (32, 96, 256):
        yield _dense_case("head_dim", total, num_kv_heads=2, head_dim=head_dim)
        yield _packed_case("head_dim", many, head_dim=head_dim)


def _iter_model_cases(model: Model, ring_size: int, max_seqlen: int | None) -> Iterator[Case]:
    total = _row_length(ring_size)
    while max_seqlen is not None and total * 2 <= max_seqlen:
        total *= 2
    packings = make_packings(ring_size, total)
    for fields in iter_layer_kinds(model):
        if "window_size" in fields:  # shorter than the row, otherwise it would change nothing
            fields["window_size"] = tuple(min(side, total // 3) for side in fields["window_size"])
        yield _dense_case("model", total, **fields)
        for family in ("many_documents", "longer_than_a_shard"):
            yield _packed_case(family, packings[family], **fields)
        yield from probe_variants(_dense_case("model", total, **fields), "code")
        yield from probe_variants(
            _packed_case("many_documents", packings["many_documents"], **fields), "code", "poison"
        )
