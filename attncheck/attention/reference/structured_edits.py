"""Structured probes that change what must not be seen: prefix, poison."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from attncheck.attention.backend import Outputs
from attncheck.attention.inputs import Inputs, make, strided
from attncheck.attention.reference.structured_common import Call, Examined
from attncheck.attention.reference.structured_targets import factor, gentle_factor, middle, watched
from attncheck.core.cases import Case, Segment, visible_bounds


def prefix(case: Case, device: str, call: Call) -> Examined:
    """Multiply the keys of the second half: rows that see none of them must keep every bit."""
    inputs = make(case, device)
    split = middle(case)
    k, v = inputs.k.clone(), inputs.v.clone()
    k[:, split:] *= factor(case)
    v[:, split:] *= factor(case)
    before = copied(call(inputs))
    after = call(strided(replace(inputs, k=k, v=v)))
    _, high = visible_bounds(case, case.seqlen_q, case.seqlen_k)
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


def _leaks(case: Case, inputs: Inputs, before: Outputs, tested: list[Segment], call: Call) -> Iterator[str]:
    inside_q = torch.zeros(case.batch, case.seqlen_q, dtype=torch.bool, device=inputs.device)
    inside_k = torch.zeros(case.batch, case.seqlen_k, dtype=torch.bool, device=inputs.device)
    for s in tested:
        inside_q[s.batch, s.q_start : s.q_stop] = True
        inside_k[s.batch, s.k_start : s.k_stop] = True
    times = math.nan if case.probe == "nan_poison" else factor(case)
    gentle = math.nan if case.probe == "nan_poison" else gentle_factor(case)

    def spoiled(x: Tensor, inside: Tensor, by: float) -> Tensor:
        return torch.where(inside[:, :, None, None], x, x * by)

    q = spoiled(inputs.q, inside_q, gentle)
    k, v = spoiled(inputs.k, inside_k, times), spoiled(inputs.v, inside_k, times)
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
