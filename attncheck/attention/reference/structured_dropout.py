"""The structured probe of dropout: what share is kept, by which seed, and whether backward drops the same."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch

from attncheck.attention.backend import Outputs
from attncheck.attention.inputs import Inputs
from attncheck.attention.reference.structured_common import (
    BackendCall,
    ProbeResult,
    cast_to_case,
    make_normal_inputs,
    visible_spans,
)
from attncheck.core.cases import Case, iter_segments

DROPOUT_STEP = 1.0 / 256.0


def probe_dropout(case: Case, device: str, call: BackendCall) -> ProbeResult:
    """Check the statistics of two calls under two seeds, and that <dout, out> = <dv, v>."""
    normal = make_normal_inputs(replace(case, dropout=0.0), device)
    signs = torch.where(normal.dout > 0, 1.0, -1.0)
    inputs = cast_to_case(
        replace(normal, q=normal.q * 0, k=normal.k * 0, v=torch.ones_like(normal.v), dout=signs), case
    )
    torch.manual_seed(case.seed)
    first = call(inputs)
    torch.manual_seed(case.seed + 1)
    second = call(inputs)
    return tuple(_dropout_violations(case, inputs, first, second)), first


def _dropout_violations(case: Case, inputs: Inputs, first_outputs: Outputs, second_outputs: Outputs) -> Iterator[str]:
    rows, first, last = visible_spans(case, next(iter_segments(case)), inputs.device)
    rows, visible_keys = rows[last > first], (last - first)[last > first].double()
    # v is 1: (kept keys) / (visible keys × (1 - p)) for each row and head
    out = first_outputs.out[:, rows].double()[..., 0].transpose(0, 1).flatten(1)
    variance = case.dropout / (1.0 - case.dropout) / visible_keys[:, None]  # expected
    # flash-attn compares 8 random bits, so that a share is kept to 1/256 (csrc/flash_attn/flash_api.cpp,
    # p_dropout_in_uint8_t): that much is its resolution, not a fault.
    resolution = DROPOUT_STEP / (1.0 - case.dropout)
    allowed = 6.0 * math.sqrt(float(variance.mean()) / out.shape[1]) / math.sqrt(len(out))
    if not abs(float(out.mean()) - 1.0) < allowed + resolution:
        kept = float(out.mean()) * (1.0 - case.dropout)
        yield f"dropout {case.dropout:g} keeps a share of {kept:.4g}, not {1.0 - case.dropout:g}"
    has_many_keys = visible_keys >= 32  # a row of few keys is far from normal
    spread = float(((out - 1.0).square() / variance)[has_many_keys].mean())
    if not abs(spread - 1.0) < 5.0 * math.sqrt(2.0 / (int(has_many_keys.sum()) * out.shape[1])) + 10 * DROPOUT_STEP:
        yield f"dropout's spread is {spread:.3g} times that of independent keys"
    if bool(torch.equal(first_outputs.out, second_outputs.out)):
        yield "two seeds drop the same keys"
    if first_outputs.dv is not None:
        forward = float((inputs.dout.double() * first_outputs.out.double()).sum())
        backward = float((inputs.v.double() * first_outputs.dv.double()).sum())
        scale = math.sqrt(float(variance.sum()) * case.v_head_dim * case.batch)  # of <dout, out - 1> by chance
        noise = 2.0**-8 * (float(first_outputs.dv.double().norm()) + math.sqrt(inputs.dout.numel()))
        if not abs(forward - backward) < 0.2 * scale + 4.0 * noise:
            yield f"backward drops other keys than forward: <dout, out> is {forward:.5g}, <dv, v> is {backward:.5g}"
