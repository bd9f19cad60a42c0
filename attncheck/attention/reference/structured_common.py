"""What structured probes share: plain inputs to dress up, what each query sees, and how violations are told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from attncheck.attention.backend import Outputs
from attncheck.attention.inputs import Inputs, make, silent_padding, strided
from attncheck.core.cases import Case, Segment, visible_bounds

Call = Callable[[Inputs], Outputs]
Examined = tuple[tuple[str, ...], Outputs]  # what contradicts the expectation, and the (first) outputs
SHOWN = 4  # violations told; the first names the place


def blank(case: Case, device: str) -> Inputs:
    """Return normal inputs of the case's shape, to be overwritten."""
    return make(replace(case, probe="", values="normal", strides="contiguous", every_row=True), device)


def dressed(inputs: Inputs, case: Case) -> Inputs:
    """Return `inputs` in the case's dtype and strides."""
    dtype = getattr(torch, case.dtype)
    q, k, v, dout = (x.to(dtype) for x in (inputs.q, inputs.k, inputs.v, inputs.dout))
    return strided(silent_padding(replace(inputs, case=case, q=q, k=k, v=v, dout=dout)))


def spans(case: Case, segment: Segment, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return the queries' rows in the batch row, and the first and one past the last key that each sees there."""
    q, k = segment.q_stop - segment.q_start, segment.k_stop - segment.k_start
    low, high = visible_bounds(case, q, k)
    rows = torch.arange(q, device=device)
    first = (rows + low).clamp(0, k)
    last = (rows + high + 1).clamp(0, k)
    return rows + segment.q_start, first + segment.k_start, torch.maximum(first, last) + segment.k_start


def first_few(faults: Iterator[str]) -> Iterator[str]:
    """Yield the first few faults, then how the list goes on."""
    for count, fault in enumerate(faults):
        if count == SHOWN:
            yield "… and more"
            return
        yield fault


def places(wrong: Tensor) -> list[tuple[int, ...]]:
    """Return the first few places where a bool tensor is True."""
    return [tuple(place) for place in wrong.nonzero()[: SHOWN + 1].tolist()] if bool(wrong.any()) else []


def where(case: Case, segment: Segment) -> str:
    """Return in words which document or row of the batch a segment is, where there are several."""
    if case.layout == "packed":
        return f" (document {segment.index})"
    return f" (batch {segment.batch})" if case.batch > 1 else ""
