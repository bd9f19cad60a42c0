"""Attention of a whole case in float64, as a backend's call that returns float64: to plant errors at exact sizes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attncheck.attention import masks
from attncheck.attention.backend import Outputs
from attncheck.attention.inputs import Inputs

Edit = Callable[[Tensor], Tensor]


def attend(inputs: Inputs, kept: Tensor | None = None) -> Outputs:
    """Return every output in float64; `kept` is a dropout mask, bool `(batch, num_heads, seqlen_q, seqlen_k)`."""
    case = inputs.case
    group = case.num_heads // case.num_kv_heads
    leaves = [x.detach().double().requires_grad_() for x in (inputs.q, inputs.k, inputs.v)]
    q, k, v = (x.transpose(1, 2) for x in leaves)
    s = q @ k.repeat_interleave(group, 1).mT * case.softmax_scale
    s = s.masked_fill(~masks.build_mask(case, "cpu"), -math.inf)
    p = torch.softmax(s, -1).nan_to_num(0.0)
    if kept is not None:
        p = p * kept / (1.0 - case.dropout)
    out = (p @ v.repeat_interleave(group, 1)).transpose(1, 2)
    dq, dk, dv = torch.autograd.grad(out, leaves, inputs.dout.double())
    return Outputs(out.detach(), torch.logsumexp(s, -1).detach(), dq, dk, dv)


def with_edits(outputs: Outputs, **edits: Edit) -> Outputs:
    """Return `outputs` whose named tensors are copies, changed."""
    changed: dict[str, Any] = {name: edit(getattr(outputs, name).clone()) for name, edit in edits.items()}
    return replace(outputs, **changed)


def put(index: tuple[object, ...], value: float | Tensor) -> Edit:
    """Return the edit that sets the elements at `index`."""

    def edit(x: Tensor) -> Tensor:
        x[index] = value  # type: ignore[index]
        return x

    return edit


def add(index: tuple[object, ...], value: float | Tensor) -> Edit:
    """Return the edit that adds to the elements at `index`."""

    def edit(x: Tensor) -> Tensor:
        x[index] += value  # type: ignore[index]
        return x

    return edit
