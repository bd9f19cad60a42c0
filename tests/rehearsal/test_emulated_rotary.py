"""The emulated `flash_attn.layers.rotary`: against the rotation written out for one token, padded and packed."""

from __future__ import annotations

import pytest
import torch

from attncheck.rehearsal.emulated.rotary import apply_rotary_emb


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_token_is_rotated_by_its_position(interleaved: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x, cos, sin = (torch.randn(shape, generator=generator) for shape in ((2, 5, 3, 8), (9, 3), (9, 3)))
    rotated = apply_rotary_emb(x, cos, sin, interleaved, seqlen_offsets=2)
    token, c, s = x[1, 3], cos[3 + 2], sin[3 + 2]
    first, second = (token[:, 0:6:2], token[:, 1:6:2]) if interleaved else (token[:, :3], token[:, 3:6])
    parts = (first * c - second * s, first * s + second * c)
    pairs = torch.stack(parts, -1).flatten(-2) if interleaved else torch.cat(parts, -1)
    assert torch.allclose(rotated[1, 3], torch.cat([pairs, token[:, 6:]], -1))  # beyond rotary_dim nothing turns
    packed = apply_rotary_emb(x.reshape(10, 3, 8), cos, sin, interleaved, False, 2, torch.tensor([0, 5, 10]))
    assert torch.equal(packed.view_as(x), rotated)
    assert apply_rotary_emb(x, cos, sin, interleaved, True, 2) is x and torch.equal(x, rotated)
