"""The modes that listen to operators let flex_attention through, which is a higher-order operator."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention import flex_attention as flex

from attncheck.attention.kernel_trace import trace_kernels
from attncheck.rehearsal.watcher import attention, randomness
from attncheck.smoke.worker.attention_trace import _OperatorListener


def attend() -> Any:
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, 2, 8, 16) for _ in range(3))
    return flex.flex_attention(query, key, value)


@pytest.mark.parametrize("kind", ["watched attention", "randomness", "smoke", "kernels"])
def test_flex_attention_runs_under_each_mode(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)  # a rehearsal compiles nothing
    names: list[str] = []
    if kind == "kernels":
        output, found = trace_kernels(attend, "cpu")
        names = [*found]
    else:
        makers = {"watched attention": attention._make_listener, "randomness": randomness.make_listener}
        mode = makers[kind](names) if kind in makers else _OperatorListener(names.append)
        with mode:
            output = attend()
    assert torch.equal(output, attend())
    assert kind == "randomness" or any("flex_attention" in name for name in names)
