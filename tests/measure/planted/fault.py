"""A planted fault: attention that is wrong in one known way, and where that way changes anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attncheck.attention import masks
from attncheck.attention.backend import Outputs
from attncheck.attention.inputs import Inputs
from attncheck.core.cases import Case, Segment, iter_segments
from tests.measure.planted.emulated import Kernel, Run, run_blocks_of_64, runner

MASKS_COMPARED = 1 << 25  # score entries up to which masks are built only to be compared


@dataclass(frozen=True)
class Fault:
    """One wrong backend: `run` as a backend's, `applies` where it changes anything in exact arithmetic.

    `logic` faults are wrong results; the others lose precision and may be no more than a warning, or nothing in a
    dtype whose own rounding hides them. `long` ones show in long cases only.
    """

    name: str
    family: str
    what: str
    run: Run
    applies: Callable[[Case], bool]
    logic: bool = True
    long: bool = False
    right: Run = run_blocks_of_64  # the same kernel without the fault


def planted(
    name: str,
    family: str,
    what: str,
    applies: Callable[[Case], bool],
    base: type[Kernel] = Kernel,
    logic: bool = True,
    long: bool = False,
    confined: bool = True,
    **methods: Any,
) -> Fault:
    """Return the fault of the kernel `base` with some of its methods replaced.

    A `confined` one is planted only where it applies; elsewhere the kernel is the right one.
    """
    wrong, right = runner(type(name, (base,), methods)), runner(base)

    def run(inputs: Inputs, deterministic: bool) -> Outputs:
        planted_here = not confined or applies(inputs.case)
        return (wrong if planted_here else right)(inputs, deterministic)

    return Fault(name, family, what, run, applies, logic, long, right)


def precise(
    name: str, what: str, applies: Callable[[Case], bool], base: type[Kernel] = Kernel, **methods: Any
) -> Fault:
    """Return a loss of precision as a fault."""
    return planted(name, "precision", what, applies, base, False, False, **methods)


def changed(name: str, change: Callable[[Tensor], Tensor]) -> Any:
    """Return what hands back another out, dq, dk or dv."""

    def returned(self: Kernel, answer: Outputs) -> Outputs:
        right = getattr(answer, name)
        outputs: dict[str, Any] = {} if right is None else {name: change(right.clone())}
        return replace(answer, **outputs)

    return returned


def mask_fault(name: str, family: str, what: str, altered: Callable[[Case, Tensor], Tensor]) -> Fault:
    """Return the fault of a kernel whose mask is what `altered(case, mask)` makes of the right one."""

    def mask(self: Kernel) -> Tensor:
        return altered(self.case, Kernel.mask(self).clone())

    def applies(case: Case) -> bool:
        if case.batch * case.seqlen_q * case.seqlen_k > MASKS_COMPARED:
            return False
        right = masks.build_mask(case, "cpu")
        return bool(((altered(case, right.clone()) != right) & right.any(-1, keepdim=True)).any())

    return planted(name, family, what, applies, confined=False, mask=mask)  # where it does not apply, it is right


def built(case: Case, device: torch.device, limits: Callable[[int, int], tuple[int, int]]) -> Tensor:
    """Return the mask of a case whose documents have the diagonals `limits(seqlen_q, seqlen_k)`."""
    mask = torch.zeros(case.batch, 1, case.seqlen_q, case.seqlen_k, dtype=torch.bool, device=device)
    for s in iter_segments(case):
        q, k = s.q_stop - s.q_start, s.k_stop - s.k_start
        low, high = limits(q, k)
        distance = torch.arange(k, device=device)[None, :] - torch.arange(q, device=device)[:, None]
        mask[s.batch, 0, s.q_start : s.q_stop, s.k_start : s.k_stop] = (distance >= low) & (distance <= high)
    return mask


def everywhere(case: Case) -> bool:
    """Return True: the fault changes every case that has something to attend to."""
    return case.seqlen_q > 1 and case.seqlen_k > 1 and bool(seeing(case))


def seeing(case: Case) -> list[Segment]:
    """Return the documents that have queries and keys."""
    return [s for s in iter_segments(case) if s.q_stop > s.q_start and s.k_stop > s.k_start]


def backward(case: Case) -> bool:
    """Return whether the case has a backward that a fault can change."""
    return everywhere(case) and case.backward


def grouped(case: Case) -> bool:
    """Return whether query heads share kv heads."""
    return everywhere(case) and case.num_kv_heads < case.num_heads


def square(case: Case) -> bool:
    """Return whether the case is dense self-attention, long enough for each of four ranks to see keys of its own."""
    return case.layout == "dense" and case.seqlens_q == case.seqlens_k and case.seqlen_q >= 64
