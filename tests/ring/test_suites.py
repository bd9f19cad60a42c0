"""The cases of a ring: what the issue of context parallelism asks for, at every ring size, and what grows with it."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import cast

import pytest

from attncheck.core.facts import Known
from attncheck.core.results import error_growth
from attncheck.core.sharding import Sharding, explain_indivisible
from attncheck.core.verdicts import Run, Score
from attncheck.ring import suites
from tests import snapshots

SIZES = (1, 2, 3, 4, 6, 8, 16)


@pytest.mark.parametrize("size", SIZES)
def test_documents_are_what_they_are_called(size: int) -> None:
    packings = suites.make_packings(size)
    total = sum(packings["one_document"])
    shard = total // size
    assert all(sum(seqlens) == total for seqlens in packings.values())
    assert all(length % (2 * size) == 0 for seqlens in packings.values() for length in seqlens)
    assert len(packings["one_document"]) == 1
    assert len(packings["many_documents"]) > 4
    if size > 1:
        assert any(shard < length < total for length in packings["longer_than_a_shard"])
        ends = list(accumulate(packings["ends_on_an_edge"]))[:-1]
        assert any(end % shard == 0 for end in ends)


@pytest.mark.parametrize("size", SIZES)
def test_the_suites_reach_every_scheme(size: int) -> None:
    for name in ("quick", "standard", "full"):
        cases = suites.make_suite(name, size)
        assert len({case.name for case in cases}) == len(cases)
        assert {case.context_parallel_size for case in cases} == {size}
        for sharding, layout in (("zigzag", "dense"), ("stripe", "dense"), ("zigzag_documents", "packed")):
            fitting = [c for c in cases if c.layout == layout and not explain_indivisible(cast(Sharding, sharding), c)]
            assert any(case.backward and not case.probe for case in fitting)
            assert any(case.probe for case in fitting)
    standard = suites.make_suite("standard", size)
    assert {case.heads_k_stride for case in standard} == {0, 1, 2, 4}
    assert {case.operands for case in standard} == {"split", "kvpacked", "qkvpacked"}
    for layout in ("dense", "packed"):
        shapes = {(c.num_heads == c.num_kv_heads, c.head_dim) for c in standard if c.layout == layout}
        assert {(True, 128), (False, 64)} <= shapes
        assert {"bfloat16", "float16"} == {case.dtype for case in standard if case.layout == layout}


def make_run(size: int, **errors: float) -> Run:
    case = replace(suites.make_growth_cases(size)[0])
    scores = tuple(Score(name, z, z, 0, 0.0, 1.0, 0.0, 0.0, 0, 0, 0, -1) for name, z in errors.items())
    return Run("ring", case, "ok", scores=scores, class_factor=1.25 if size > 1 else 1.0)


def test_a_flat_error_does_not_grow_and_a_rising_one_does() -> None:
    flat = error_growth.error_growths(
        [make_run(1, out=1.0), make_run(2, out=1.2), make_run(4, out=1.21), make_run(8, out=1.22)]
    )
    assert len(flat) == 1 and flat[0].beyond < 0.05 < error_growth.MAX_SLOPE
    rising = error_growth.error_growths(
        [make_run(1, out=1.0, dk=1.0), make_run(2, out=1.2, dk=1.2), make_run(4, out=1.2, dk=1.7)]
    )
    assert rising[0].tensor == "dk" and rising[0].beyond > error_growth.MAX_SLOPE
    assert (
        error_growth.describe_growth(rising[0])
        == "dk: z_rms 1.00 on 1, 1.20 on 2, 1.70 on 4; ×1.42 per doubling of the ring"
    )


def test_the_growth_that_the_class_allows_is_no_fault() -> None:
    runs = [
        replace(make_run(n, dk=1.25 * (1 + n / 5) ** 0.5), class_factor=1.25 * (1 + n / 5) ** 0.5) for n in (2, 4, 8)
    ]
    growth = error_growth.error_growths(runs)[0]
    assert growth.slope > 0.2 and abs(growth.beyond) < 0.01


def test_growth_needs_two_rings() -> None:
    assert error_growth.error_growths([make_run(1, out=1.0), make_run(2, out=1.2)]) == ()
    assert (
        error_growth.error_growths([make_run(2, out=1.2), Run("ring", suites.make_growth_cases(4)[0], "raised")]) == ()
    )


def test_the_same_problem_is_the_same_inputs() -> None:
    torch = pytest.importorskip("torch")
    from attncheck.attention.inputs import make_inputs

    on_one, on_four = (make_inputs(suites.make_growth_cases(size)[0], "cpu") for size in (1, 4))
    assert torch.equal(on_one.q, on_four.q) and torch.equal(on_one.dout, on_four.dout)


def test_a_model_brings_its_own_kinds_of_layer_and_a_window_shorter_than_the_row() -> None:
    windows = [case for case in suites.make_suite("full", 4) if case.windowed]
    assert windows and all(case.window_size[0] < case.seqlen_q // 4 for case in windows)
    snapshot = snapshots.with_model(
        snapshots.laptop(),
        num_heads=Known(16),
        num_kv_heads=Known(8),
        sliding_window=Known(4096),
        layer_types=("full_attention", "sliding_attention"),
    )
    assert isinstance(snapshot.model, Known)
    cases = suites.make_model_cases(snapshot.model.value, 4)
    assert {(case.num_heads, case.num_kv_heads) for case in cases} == {(16, 8)}
    assert {case.windowed for case in cases} == {True, False}
    assert all(0 < case.window_size[0] < case.seqlen_q // 2 for case in cases if case.windowed)
    longer = suites.make_model_cases(snapshot.model.value, 4, max_seqlen=4096)
    assert max(case.seqlen_q for case in longer) == 4096
