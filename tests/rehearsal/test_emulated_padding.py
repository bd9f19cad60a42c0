"""flash-attn's padding functions are emulated without einops, which only flash-attn itself requires."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attncheck.rehearsal.emulated import bert_padding
from attncheck.rehearsal.execution import list_replaced


@pytest.mark.parametrize(
    ("shape", "pattern", "expected"),
    [
        ((2, 3), "b s ... -> (b s) ...", lambda states: states.flatten()),
        ((2, 3, 1), "b s ... -> (b s) ...", lambda states: states.flatten(0, 1)),
        ((3, 2, 4), "c b s ... -> (b s) c ...", lambda states: states.permute(1, 2, 0).reshape(8, 3)),
        ((3, 2, 4, 5, 6), "c b s ... -> (b s) c ...", lambda states: states.permute(1, 2, 0, 3, 4).flatten(0, 1)),
    ],
)
def test_axes_are_joined_without_einops(
    shape: tuple[int, ...], pattern: str, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These are the patterns of verl's actors."""
    monkeypatch.setitem(sys.modules, "einops", None)
    states = torch.rand(shape)
    rearrange: Any = bert_padding.__getattr__("rearrange")
    joined: Tensor = rearrange(states, pattern)
    assert torch.equal(joined, expected(states))


def test_a_caller_gets_as_many_values_as_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """flash-attn 2.7.0 added the fifth, so the report says what a script takes that unpacks four."""
    (tmp_path / "watch").mkdir()
    monkeypatch.setenv("ATTNCHECK_WATCH", str(tmp_path / "watch"))
    states, mask = torch.rand(2, 3, 4), torch.tensor([[1, 1, 0], [1, 1, 1]])
    tokens, indices, *_ = bert_padding.unpad_input(states, mask)
    whole = bert_padding.unpad_input(states, mask)
    _, _, _, _, used = bert_padding.unpad_input(states, mask)
    assert len(whole) == 5 and used.tolist() == [2, 3] and list_replaced(str(tmp_path)) == []
    four, _, cu_seqlens, longest = bert_padding.unpad_input(states, mask)
    assert torch.equal(four, tokens) and (cu_seqlens.tolist(), longest) == ([0, 2, 5], 3)
    assert indices.tolist() == [0, 1, 3, 4, 5]
    (line,) = list_replaced(str(tmp_path))
    assert line.startswith("unpad_input returns four values")
    with pytest.raises(ValueError, match="unpack"):
        _, _, _ = bert_padding.unpad_input(states, mask)


def test_a_wrong_pattern_and_an_unknown_name_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="dimensions"):
        bert_padding.join_axes(torch.rand(2, 3, 4), "b s -> (b s)")
    monkeypatch.setitem(sys.modules, "einops", None)
    with pytest.raises(ModuleNotFoundError):
        bert_padding.__getattr__("repeat")
    with pytest.raises(AttributeError):
        bert_padding.__getattr__("absent")
