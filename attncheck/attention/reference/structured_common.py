"""Helpers of structured probes: normal inputs to overwrite, the keys visible to each query, lists of violations."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attncheck.attention.backend import Outputs
from attncheck.attention.inputs import Inputs, apply_strides, make_inputs, zero_padding_dout
from attncheck.core.cases import Case, Segment

BackendCall = Callable[[Inputs], Outputs]
MAX_SHOWN = 4  # the most violations; the first one names the position


@dataclass(frozen=True)
class ProbeResult:
    """The result of a probe: contradictions of its expectation, and harmless observations."""

    outputs: Outputs  # results of the first call
    violations: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def make_normal_inputs(case: Case, device: str) -> Inputs:
    """Return normal inputs of the case's shape, which the probe overwrites."""
    return make_inputs(replace(case, probe="", values="normal", strides="contiguous", every_row=True), device)


def cast_to_case(inputs: Inputs, case: Case) -> Inputs:
    """Return `inputs` in the case's dtype and strides, with dout zero in padding."""
    dtype = getattr(torch, case.dtype)
    q, k, v, dout = (x.to(dtype) for x in (inputs.q, inputs.k, inputs.v, inputs.dout))
    return apply_strides(zero_padding_dout(replace(inputs, case=case, q=q, k=k, v=v, dout=dout)))


def limit_violations(violations: Iterator[str]) -> Iterator[str]:
    """Yield the first few violations, and a note if there are more."""
    for count, violation in enumerate(violations):
        if count == MAX_SHOWN:
            yield "… and more"
            return
        yield violation


def first_indices(is_wrong: Tensor) -> list[tuple[int, ...]]:
    """Return the indices of the first few elements of a bool tensor that are True."""
    return [tuple(index) for index in is_wrong.nonzero()[: MAX_SHOWN + 1].tolist()] if bool(is_wrong.any()) else []


def describe_segment(case: Case, segment: Segment) -> str:
    """Return " (document 1)" or " (batch 1)", "" if there is only one."""
    if case.layout == "packed":
        return f" (document {segment.index})"
    return f" (batch {segment.batch})" if case.batch > 1 else ""
