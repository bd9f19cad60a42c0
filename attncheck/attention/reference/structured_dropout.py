"""The structured probe of dropout: what share is kept, by which seed, and whether backward drops the same."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch

from attncheck.attention.backend import Outputs
from attncheck.attention.inputs import Inputs
from attncheck.attention.reference.structured_common import Call, Examined, blank, dressed, spans
from attncheck.core.cases import Case, segments

DROPOUT_STEP = 1.0 / 256.0


def dropout(case: Case, device: str, call: Call) -> Examined:
    """Check the statistics of two calls under two seeds, and that <dout, out> = <dv, v>."""
    base = blank(replace(case, dropout=0.0), device)
    signs = torch.where(base.dout > 0, 1.0, -1.0)
    inputs = dressed(replace(base, q=base.q * 0, k=base.k * 0, v=torch.ones_like(base.v), dout=signs), case)
    torch.manual_seed(case.seed)
    one = call(inputs)
    torch.manual_seed(case.seed + 1)
    two = call(inputs)
    return tuple(_dropout_faults(case, inputs, one, two)), one


def _dropout_faults(case: Case, inputs: Inputs, one: Outputs, two: Outputs) -> Iterator[str]:
    rows, first, last = spans(case, next(segments(case)), inputs.device)
    rows, seen = rows[last > first], (last - first)[last > first].double()
    out = (
        one.out[:, rows].double()[..., 0].transpose(0, 1).flatten(1)
    )  # v is 1: (kept keys) / (seen × (1 - p)) for each row and head
    expected = case.dropout / (1.0 - case.dropout) / seen[:, None]  # its variance
    # flash-attn compares 8 random bits, so that a share is kept to 1/256 (csrc/flash_attn/flash_api.cpp,
    # p_dropout_in_uint8_t): that much is its resolution, not a fault.
    coarse = DROPOUT_STEP / (1.0 - case.dropout)
    chance = 6.0 * math.sqrt(float(expected.mean()) / out.shape[1]) / math.sqrt(len(out))
    if not abs(float(out.mean()) - 1.0) < chance + coarse:
        kept = float(out.mean()) * (1.0 - case.dropout)
        yield f"dropout {case.dropout:g} keeps a share of {kept:.4g}, not {1.0 - case.dropout:g}"
    many = seen >= 32  # a row of few keys is far from normal
    spread = float(((out - 1.0).square() / expected)[many].mean())
    if not abs(spread - 1.0) < 5.0 * math.sqrt(2.0 / (int(many.sum()) * out.shape[1])) + 10 * DROPOUT_STEP:
        yield f"dropout's spread is {spread:.3g} times that of independent keys"
    if bool(torch.equal(one.out, two.out)):
        yield "two seeds drop the same keys"
    if one.dv is not None:
        forward = float((inputs.dout.double() * one.out.double()).sum())
        backward = float((inputs.v.double() * one.dv.double()).sum())
        scale = math.sqrt(float(expected.sum()) * case.v_head_dim * case.batch)  # of <dout, out - 1> by chance
        noise = 2.0**-8 * (float(one.dv.double().norm()) + math.sqrt(inputs.dout.numel()))
        if not abs(forward - backward) < 0.2 * scale + 4.0 * noise:
            yield f"backward drops other keys than forward: <dout, out> is {forward:.5g}, <dv, v> is {backward:.5g}"
