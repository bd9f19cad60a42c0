"""Which tokens lie on which rank, and at which position of their document: what RoPE must be given."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate, chain
from typing import get_args

import pytest

from attncheck.core.cases import Case
from attncheck.core.sharding import Sharding, explain_indivisible, owning_rank, shard_ranges

SHARDINGS: tuple[Sharding, ...] = get_args(Sharding)


def make_case(*seqlens: int, ranks: int, layout: str = "packed") -> Case:
    return Case("test", seqlens, seqlens, layout=layout, context_parallel_size=ranks)  # type: ignore[arg-type]


def list_tokens(sharding: Sharding, case: Case, rank: int) -> list[int]:
    return list(chain(*shard_ranges(sharding, case, rank)))


def rope_positions(sharding: Sharding, case: Case, rank: int) -> tuple[int, ...]:
    """Return the position in its document of each token on `rank`."""
    starts = [0, *accumulate(case.seqlens_q)]
    return tuple(token - starts[bisect_right(starts, token) - 1] for token in list_tokens(sharding, case, rank))


@pytest.mark.parametrize("sharding", SHARDINGS)
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_every_token_lies_on_one_rank_and_ranks_hold_alike(sharding: Sharding, ranks: int) -> None:
    case = make_case(64, 16, 176, ranks=ranks)
    tokens_by_rank = [list_tokens(sharding, case, rank) for rank in range(ranks)]
    assert sorted(chain(*tokens_by_rank)) == list(range(256))
    assert {len(tokens) for tokens in tokens_by_rank} == {256 // ranks}
    for rank, tokens in enumerate(tokens_by_rank):
        assert all(owning_rank(sharding, case, token) == rank for token in tokens[::7])


def test_each_scheme_holds_what_ring_flash_attn_wants() -> None:
    case = make_case(16, ranks=2, layout="dense")
    assert list_tokens("contiguous", case, 1) == [8, 9, 10, 11, 12, 13, 14, 15]
    assert list_tokens("zigzag", case, 0) == [0, 1, 2, 3, 12, 13, 14, 15]
    assert list_tokens("zigzag", case, 1) == [4, 5, 6, 7, 8, 9, 10, 11]
    assert list_tokens("stripe", case, 1) == [1, 3, 5, 7, 9, 11, 13, 15]
    packed_case = make_case(8, 16, ranks=2)
    assert list_tokens("contiguous_documents", packed_case, 0) == [0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15]
    assert list_tokens("zigzag_documents", packed_case, 0) == [0, 1, 6, 7, 8, 9, 10, 11, 20, 21, 22, 23]


def test_rope_positions_are_those_in_the_document() -> None:
    case = make_case(8, 16, ranks=2)
    assert rope_positions("contiguous", case, 0) == (0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3)
    assert rope_positions("contiguous", case, 1) == tuple(range(4, 16))
    assert rope_positions("zigzag_documents", case, 1) == (2, 3, 4, 5, 4, 5, 6, 7, 8, 9, 10, 11)
    assert rope_positions("stripe", make_case(8, ranks=4, layout="dense"), 3) == (3, 7)
    with_empty = Case("test", (4, 0, 4), (4, 0, 4), layout="packed", context_parallel_size=1)
    assert rope_positions("contiguous", with_empty, 0) == (0, 1, 2, 3, 0, 1, 2, 3)


def test_rope_at_these_positions_makes_a_sharded_row_the_whole_one() -> None:
    """Rotating each shard at its own positions is rotating the row and then sharding it; at others it is not."""
    torch = pytest.importorskip("torch")

    def rotate(x: object, token_positions: object) -> object:
        angles = torch.as_tensor(token_positions, dtype=torch.float64)[:, None] * 0.1 ** torch.arange(4)
        pairs = torch.as_tensor(x).view(-1, 4, 2)
        rotated = torch.view_as_complex(pairs.contiguous()) * torch.polar(torch.ones_like(angles), angles)
        return torch.view_as_real(rotated).reshape(-1, 8)

    case = make_case(32, 64, ranks=4)
    x = torch.randn(96, 8, dtype=torch.float64)
    rotated_row = rotate(x, [*range(32), *range(64)])
    for sharding in SHARDINGS:
        for rank in range(4):
            tokens = list_tokens(sharding, case, rank)
            assert torch.equal(rotate(x[tokens], rope_positions(sharding, case, rank)), rotated_row[tokens])  # type: ignore[index]
        wrongly_rotated = rotate(x[list_tokens(sharding, case, 3)], range(24))
        assert not torch.allclose(wrongly_rotated, rotated_row[list_tokens(sharding, case, 3)])  # type: ignore[index]


def test_lengths_that_do_not_divide_are_said() -> None:
    assert explain_indivisible("contiguous", make_case(10, ranks=4)) == "the length 10 is not divisible by 4 (4 ranks)"
    assert explain_indivisible("zigzag", make_case(12, ranks=4)) == "the length 12 is not divisible by 8 (4 ranks)"
    assert not explain_indivisible("zigzag", make_case(16, ranks=4))
    assert "every document must be divisible by 4" in explain_indivisible(
        "contiguous_documents", make_case(8, 6, 2, ranks=4)
    )
    assert "every document must be divisible by 8" in explain_indivisible(
        "zigzag_documents", make_case(8, 4, 4, ranks=4)
    )
    assert not explain_indivisible("zigzag_documents", make_case(8, 24, ranks=4))
