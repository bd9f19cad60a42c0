"""The bound of a ring: the study's table over three machines, and each part of it on its own."""

from __future__ import annotations

import pytest

from attncheck.ring.bench import PACKINGS, scale_packings
from attncheck.ring.roofline import (
    Rates,
    Shape,
    break_even_seqlen,
    busiest_rank_share,
    combine_bounds,
    compute_bound,
    describe_limit,
    document_block_share,
)

SHAPE = Shape(8192, 32, 8, 128)
H200 = Rates(360.0, 4300.0)


def to_ms(iterations: float) -> float:
    return 1e3 / iterations


# Measured local calls of an H200 (iterations/s), a full block taken as two causal ones.
@pytest.mark.parametrize(("scheme", "forward", "both_passes"), [("ring", 52.0, 52.4), ("balanced", 95.3, 96.9)])
def test_eight_h200_as_the_study_has_them(scheme: str, forward: float, both_passes: float) -> None:
    alone, together = to_ms(618.3), to_ms(162.3)
    first = compute_bound(scheme, SHAPE, 8, alone, 2 * alone, False, H200)  # type: ignore[arg-type]
    back = together - alone
    second = compute_bound(scheme, SHAPE, 8, back, 2 * back, True, H200)  # type: ignore[arg-type]
    assert 100 * first.efficiency == pytest.approx(forward, abs=0.3)
    assert 100 * combine_bounds(first, second, 8 * together).efficiency == pytest.approx(both_passes, abs=0.3)
    assert first.exposed_ms == second.exposed_ms == 0.0, "on NVLink all of it hides"


def test_uneven_work_alone_leaves_a_ring_half() -> None:
    free = Rates(0.0, 0.0)
    for n in (1, 2, 4, 8):
        bound = compute_bound("ring", SHAPE, n, 1.0, 2.0, False, free)
        assert bound.efficiency == pytest.approx(n / (2 * n - 1))
        assert compute_bound("balanced", SHAPE, n, 1.0, 2.0, False, free).efficiency == pytest.approx(1.0)


def test_a_slow_link_shows_and_says_from_which_length_it_hides() -> None:
    slow = Rates(10.0, 4300.0)
    bound = compute_bound("balanced", SHAPE, 8, to_ms(618.3), 2 * to_ms(618.3), False, slow)
    assert bound.exposed_ms > bound.merge_ms and bound.efficiency < 0.6
    assert describe_limit(bound, 1.0) == "communication that compute cannot hide"
    assert break_even_seqlen(SHAPE, to_ms(618.3), slow, False) > 8192
    assert break_even_seqlen(SHAPE, to_ms(618.3), H200, False) == pytest.approx(472, rel=0.02), "the study's 472 tokens"


def test_the_limit_is_the_largest_loss() -> None:
    ring = compute_bound("ring", SHAPE, 8, 1.0, 2.0, False, H200)
    assert describe_limit(ring, 1.0) == "uneven causal work"
    even = compute_bound("balanced", SHAPE, 8, 1.0, 2.0, False, H200)
    assert describe_limit(even, 1.0) == "merging of blocks"
    assert describe_limit(even, 0.8).startswith("costs outside the bound")
    assert describe_limit(compute_bound("balanced", SHAPE, 1, 1.0, 2.0, False, H200), 1.0) == "nothing"


def test_packings_keep_their_shape_at_other_lengths() -> None:
    assert scale_packings(8192) == PACKINGS
    for seqlen in (32, 128, 4096, 1000):
        for lengths in scale_packings(seqlen):
            assert sum(lengths) == seqlen and all(length > 0 and length % 2 == 0 for length in lengths)


def test_the_busiest_rank_of_contiguous_shards() -> None:
    assert busiest_rank_share([(100,)], 1) == pytest.approx(0.505), "half a block and its diagonal"
    # One document over 4 ranks: the last quarter sees three full blocks and a causal one.
    assert busiest_rank_share([(1000,)], 4) == pytest.approx(3.5, abs=0.01)
    # Documents that end where shards end: every rank has the same little work.
    assert busiest_rank_share([(250, 250, 250, 250)], 1) == pytest.approx(0.125, abs=0.01)
    # The study's counts for the four packings: llama3 reaches 53.8 % of a local call at best on 8 ranks.
    causal = sum(sum(n * (n + 1) / 2 for n in lengths) / 8192**2 for lengths in PACKINGS) / 4
    assert 8 * causal / busiest_rank_share(PACKINGS, 8) == pytest.approx(0.538, abs=0.003)


def test_a_later_step_of_packed_documents_is_less_than_a_full_block() -> None:
    assert document_block_share([(100,)]) == 1.0
    assert document_block_share([(50, 50)]) == 0.5


def test_ulysses_computes_evenly_and_waits_for_its_all_to_alls() -> None:
    alone = to_ms(618.3)
    bound = compute_bound("ulysses", SHAPE, 8, alone, 2 * alone, False, H200)
    sent = 2 * (32 + 8) * 8192 * 128 * 2 * 7 / 8  # bytes of q, k, v and out that leave a rank
    assert bound.compute_ms == pytest.approx(8 * alone) and bound.exposed_ms == pytest.approx(sent / 360.0 / 1e6)
    assert bound.efficiency == pytest.approx(8 * alone / (8 * alone + bound.exposed_ms))
    assert compute_bound("ulysses", SHAPE, 1, alone, 2 * alone, False, H200).efficiency == pytest.approx(1.0)
