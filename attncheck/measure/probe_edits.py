"""Structured probes that change what must not be seen: prefix, poison."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from attncheck.backends import Outputs
from attncheck.cases import Case, Segment, bounds, segments
from attncheck.measure.inputs import Inputs, make, strided
from attncheck.measure.probing import Call, Examined


def _factor(case: Case) -> float:
    return 64.0 if case.dtype == "float16" else 1000.0  # float16 would overflow in a correct kernel


def prefix(case: Case, device: str, call: Call) -> Examined:
    """Multiply the keys of the second half: rows that see none of them must keep every bit."""
    inputs = make(case, device)
    split = case.seqlen_k // 2 + 1
    k, v = inputs.k.clone(), inputs.v.clone()
    k[:, split:] *= _factor(case)
    v[:, split:] *= _factor(case)
    before = copied(call(inputs))
    after = call(strided(replace(inputs, k=k, v=v)))
    _, high = bounds(case, case.seqlen_q, case.seqlen_k)
    rows = slice(max(0, -high), min(max(0, split - high), case.seqlen_q))  # that see a key, and none of the edited
    faults = []
    for name in ("out", "lse"):
        one, two = getattr(before, name), getattr(after, name)
        if one is None or two is None:
            continue
        if name == "lse":
            one, two = one.transpose(1, 2), two.transpose(1, 2)
        one, two = one[:, rows], two[:, rows]
        if not _same(one, two):
            query = rows.start + _first_difference(one, two)
            faults.append(f"{name} of query {query} changes with keys after {split - 1}, which it must not see")
    return tuple(faults), before


def poison(case: Case, device: str, call: Call) -> Examined:
    """Change what lies outside some documents in turn, or in the padding, and compare what lies inside bit by bit."""
    inputs = make(case, device)
    before = copied(call(inputs))
    faults: list[str] = []
    for tested in watched(case):
        faults += _leaks(case, inputs, before, tested, call)
    return tuple(dict.fromkeys(faults)), before


def watched(case: Case) -> list[list[Segment]]:
    """Return the documents that must not change, group by group: of a padded case all, else one at a time."""
    alive = [s for s in segments(case) if s.q_stop > s.q_start and s.k_stop > s.k_start]
    if case.padded:
        return [alive]
    longest = max(alive, key=lambda s: s.k_stop - s.k_start)
    chosen = (longest, alive[len(alive) // 2], alive[-1])
    return [[s] for s in dict.fromkeys(chosen)]


def _leaks(case: Case, inputs: Inputs, before: Outputs, tested: list[Segment], call: Call) -> Iterator[str]:
    inside_q = torch.zeros(case.batch, case.seqlen_q, dtype=torch.bool, device=inputs.device)
    inside_k = torch.zeros(case.batch, case.seqlen_k, dtype=torch.bool, device=inputs.device)
    for s in tested:
        inside_q[s.batch, s.q_start : s.q_stop] = True
        inside_k[s.batch, s.k_start : s.k_stop] = True
    factor = math.nan if case.probe == "nan_poison" else _factor(case)
    gentle = 1.0 if factor == 64.0 else factor  # of q: float16 scores of the other documents must not overflow

    def spoiled(x: Tensor, inside: Tensor, times: float) -> Tensor:
        return torch.where(inside[:, :, None, None], x, x * times)

    q = spoiled(inputs.q, inside_q, gentle)
    k, v = spoiled(inputs.k, inside_k, factor), spoiled(inputs.v, inside_k, factor)
    after = call(replace(inputs, q=q, k=k, v=v))
    where = "" if case.padded else f" of document {tested[0].index}"
    what = "the padding" if case.padded else "other documents"
    for name, inside in (("out", inside_q), ("lse", inside_q), ("dq", inside_q), ("dk", inside_k), ("dv", inside_k)):
        one, two = getattr(before, name), getattr(after, name)
        if one is None or two is None:
            continue
        if name == "lse":
            one, two = one.transpose(1, 2), two.transpose(1, 2)
        one, two = one[inside], two[inside]
        if not _same(one, two) and not (name in ("dq", "dk", "dv") and _nearly(one, two, case.dtype)):
            yield f"{name} of token {_first_difference(one[None], two[None])}{where} changes with {what}"


def copied(outputs: Outputs) -> Outputs:
    """Return outputs in memory of their own: a backend may answer twice from one buffer."""
    tensors = {name: getattr(outputs, name) for name in ("out", "lse", "dq", "dk", "dv")}
    own = {name: None if x is None else x.clone() for name, x in tensors.items()}
    assert own["out"] is not None
    return Outputs(own["out"], own["lse"], own["dq"], own["dk"], own["dv"], outputs.dsinks, outputs.ran)


def _same(one: Tensor, two: Tensor) -> bool:
    return bool(torch.equal(one, two))


def _nearly(one: Tensor, two: Tensor, dtype: str) -> bool:
    """Say whether two gradients differ by no more than a reduction in another order explains."""
    if not bool(torch.isfinite(two).all()):
        return False
    size = float(one.float().square().mean().sqrt())
    unit = {"bfloat16": 2.0**-6, "float16": 2.0**-9, "float32": 2.0**-16}[dtype]
    largest = float(one.float().abs().max())
    return float((one.float() - two.float()).abs().max()) <= unit * max(size, largest)


def _first_difference(one: Tensor, two: Tensor) -> int:
    """Return the first token, along dimension 1, where two tensors differ."""
    differs = (one != two) | ~torch.isfinite(two)
    tokens = differs.reshape(*differs.shape[:2], -1).any(-1).any(0)
    return int(tokens.nonzero()[0]) if bool(tokens.any()) else 0
