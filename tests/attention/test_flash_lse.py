"""What attncheck knows of flash-attn's functions: a shifted ALiBi, its alignment, no mask for packed documents."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from attncheck.attention import memory
from attncheck.attention.backend import Device, Outputs
from attncheck.attention.backends import flash_attention_2
from attncheck.attention.calls import flash_attn
from attncheck.attention.inputs import make_inputs
from attncheck.core.cases import Case


@pytest.mark.parametrize(
    ("fields", "is_judged"),
    [
        ({}, True),
        ({"alibi": True}, False),
        ({"alibi": True, "causal": False}, True),
        ({"alibi": True, "causal": False, "window_size": (63, 0)}, False),
        ({"alibi": True, "causal": False, "window_size": (63, 3)}, True),
        ({"causal": False, "window_size": (63, 0)}, True),
    ],
)
def test_the_lse_of_a_shifted_bias_is_not_judged(
    fields: dict[str, Any], is_judged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = make_inputs(Case("test", (22,), (22,), **fields), "cpu")
    outputs = Outputs(inputs.q, torch.zeros(1, 4, 22))
    monkeypatch.setattr(flash_attn, "run", lambda *args, **kwargs: outputs)
    assert (flash_attention_2.BACKENDS[0].run(inputs, False).lse is not None) == is_judged


def test_flash_attn_aligns_alibi_bottom_right_too() -> None:
    h100 = Device("cuda", "H100", (9, 0), (2, 13))
    crossed = Case("test", (22,), (30,), causal=False, alibi=True, alignment="top_left")
    refuse = flash_attention_2.BACKENDS[0].refuse
    assert "ALiBi to the bottom right" in refuse(crossed, h100)
    assert not refuse(replace(crossed, alibi=False), h100)
    assert not refuse(replace(crossed, alignment="bottom_right"), h100)


def test_many_packed_documents_need_no_memory_for_a_mask() -> None:
    seqlens = (64,) * 1040
    case = Case("test", seqlens, seqlens, layout="packed", num_heads=1, num_kv_heads=1, head_dim=16, v_head_dim=16)
    dense, packed = flash_attention_2.BACKENDS[:2]
    assert memory.estimate_bytes(case, "cpu", packed) < 1 << 30 < memory.estimate_bytes(case, "cpu", dense)
