"""Which tokens lie on which rank, and at which position of their document: what RoPE must be given."""

from __future__ import annotations

from itertools import chain
from typing import get_args

import pytest

from attncheck.core.cases import Case
from attncheck.core.sharding import Sharding, indivisible, owner, positions, shards

SHARDINGS: tuple[Sharding, ...] = get_args(Sharding)


def case(*seqlens: int, ranks: int, layout: str = "packed") -> Case:
    return Case("test", seqlens, seqlens, layout=layout, context_parallel_size=ranks)  # type: ignore[arg-type]


def flat(sharding: Sharding, of: Case, rank: int) -> list[int]:
    return list(chain(*shards(sharding, of, rank)))


@pytest.mark.parametrize("sharding", SHARDINGS)
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_every_token_lies_on_one_rank_and_ranks_hold_alike(sharding: Sharding, ranks: int) -> None:
    of = case(64, 16, 176, ranks=ranks)
    held = [flat(sharding, of, rank) for rank in range(ranks)]
    assert sorted(chain(*held)) == list(range(256))
    assert {len(tokens) for tokens in held} == {256 // ranks}
    for rank, tokens in enumerate(held):
        assert all(owner(sharding, of, token) == rank for token in tokens[::7])


def test_each_scheme_holds_what_ring_flash_attn_wants() -> None:
    of = case(16, ranks=2, layout="dense")
    assert flat("contiguous", of, 1) == [8, 9, 10, 11, 12, 13, 14, 15]
    assert flat("zigzag", of, 0) == [0, 1, 2, 3, 12, 13, 14, 15]
    assert flat("zigzag", of, 1) == [4, 5, 6, 7, 8, 9, 10, 11]
    assert flat("stripe", of, 1) == [1, 3, 5, 7, 9, 11, 13, 15]
    packed = case(8, 16, ranks=2)
    assert flat("contiguous_documents", packed, 0) == [0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15]
    assert flat("zigzag_documents", packed, 0) == [0, 1, 6, 7, 8, 9, 10, 11, 20, 21, 22, 23]


def test_rope_positions_are_those_in_the_document() -> None:
    of = case(8, 16, ranks=2)
    assert positions("contiguous", of, 0) == (0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3)
    assert positions("contiguous", of, 1) == tuple(range(4, 16))
    assert positions("zigzag_documents", of, 1) == (2, 3, 4, 5, 4, 5, 6, 7, 8, 9, 10, 11)
    assert positions("stripe", case(8, ranks=4, layout="dense"), 3) == (3, 7)
    with_empty = Case("test", (4, 0, 4), (4, 0, 4), layout="packed", context_parallel_size=1)
    assert positions("contiguous", with_empty, 0) == (0, 1, 2, 3, 0, 1, 2, 3)


def test_rope_at_these_positions_makes_a_sharded_row_the_whole_one() -> None:
    """Rotating each shard at its own positions is rotating the row and then sharding it; at others it is not."""
    torch = pytest.importorskip("torch")

    def rotated(x: object, places: object) -> object:
        angle = torch.as_tensor(places, dtype=torch.float64)[:, None] * 0.1 ** torch.arange(4)
        pairs = torch.as_tensor(x).view(-1, 4, 2)
        turned = torch.view_as_complex(pairs.contiguous()) * torch.polar(torch.ones_like(angle), angle)
        return torch.view_as_real(turned).reshape(-1, 8)

    of = case(32, 64, ranks=4)
    x = torch.randn(96, 8, dtype=torch.float64)
    whole = rotated(x, [*range(32), *range(64)])
    for sharding in SHARDINGS:
        for rank in range(4):
            tokens = flat(sharding, of, rank)
            assert torch.equal(rotated(x[tokens], positions(sharding, of, rank)), whole[tokens])  # type: ignore[index]
        local = rotated(x[flat(sharding, of, 3)], range(24))
        assert not torch.allclose(local, whole[flat(sharding, of, 3)])  # type: ignore[index]


def test_lengths_that_do_not_divide_are_said() -> None:
    assert indivisible("contiguous", case(10, ranks=4)) == "the length 10 does not divide by 4 (4 ranks)"
    assert indivisible("zigzag", case(12, ranks=4)) == "the length 12 does not divide by 8 (4 ranks)"
    assert not indivisible("zigzag", case(16, ranks=4))
    assert "every document must divide by 4" in indivisible("contiguous_documents", case(8, 6, 2, ranks=4))
    assert "every document must divide by 8" in indivisible("zigzag_documents", case(8, 4, 4, ranks=4))
    assert not indivisible("zigzag_documents", case(8, 24, ranks=4))
