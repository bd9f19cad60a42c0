"""Structured probes that change tokens which must be invisible: prefix, poison."""

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from attncheck.attention.backend import Outputs
from attncheck.attention.inputs import Inputs, apply_strides, make_inputs
from attncheck.attention.masks import rows_with_keys
from attncheck.attention.reference.structured_common import BackendCall, ProbeResult
from attncheck.attention.reference.structured_targets import (
    kv_poison_factor,
    prefix_split,
    q_poison_factor,
    tested_documents,
)
from attncheck.core.cases import Case, Segment, visible_bounds


def probe_prefix(case: Case, device: str, call: BackendCall) -> ProbeResult:
    """Multiply the keys of the second half; rows that attend to none of them must keep every bit.

    A change of rounding alone is a warning: SageAttention subtracts the mean of all keys, hidden ones too, and adds its
    product with q to the LSE.
    """
    inputs = make_inputs(case, device)
    split = prefix_split(case)
    k, v = inputs.k.clone(), inputs.v.clone()
    k[:, split:] *= kv_poison_factor(case)
    v[:, split:] *= kv_poison_factor(case)
    before = call(inputs)
    after = call(apply_strides(replace(inputs, k=k, v=v)))
    _, high = visible_bounds(case, case.seqlen_q, case.seqlen_k)
    rows = slice(
        max(0, -high), min(max(0, split - high), case.seqlen_q)
    )  # rows that have a key, but none of the edited keys
    violations, warnings = [], []
    for name in ("out", "lse"):
        a, b = getattr(before, name), getattr(after, name)
        if a is None or b is None:
            continue
        if name == "lse":
            a, b = a.transpose(1, 2), b.transpose(1, 2)
        a, b = a[:, rows], b[:, rows]
        if torch.equal(a, b):
            continue
        change = f"{name} of query {rows.start + _first_difference(a, b)} changes with keys after {split - 1}"
        if _is_nearly_equal(a, b, case.dtype):
            warnings.append(f"{change}, which must be hidden, as much as rounding may change it")
        else:
            violations.append(f"{change}, which must be hidden")
    state = find_state(inputs, before, call) if violations or warnings else ()
    return ProbeResult(before, state or tuple(violations), tuple(warnings))


def find_state(inputs: Inputs, before: Outputs, call: BackendCall) -> tuple[str, ...]:
    """Return what changes if the same call is repeated twice, because then the edit is not the cause."""
    case, all_keys = inputs.case, torch.ones(inputs.k.shape[:2], dtype=torch.bool, device=inputs.device)
    why = "when the same call is made again: it keeps state or reads unwritten memory"
    for after in (call(inputs) for _ in range(2)):
        changes = [
            f"{name} of token {token} changes {why}"
            for name, token in _list_changes(case, before, after, rows_with_keys(case, inputs.device), all_keys)
        ]
        a, b = (x if x is None else x.nan_to_num(0.0, 0.0, 0.0) for x in (before.dsinks, after.dsinks))
        if a is not None and b is not None and not _is_nearly_equal(a, b, case.dtype):
            changes.append(f"dsinks changes {why}")
        if changes:
            return tuple(changes)
    return ()


def probe_poison(case: Case, device: str, call: BackendCall) -> ProbeResult:
    """Multiply everything outside some documents in turn, or in the padding; the rest must keep every bit.

    A kernel whose last tile reaches into the next document multiplies that document's keys by weights of zero, so only
    NaN leaks. This is harmless unless memory next to the documents is uninitialised.
    """
    inputs = make_inputs(case, device)
    before = call(inputs)
    factors = (math.nan, math.nan) if case.probe == "nan_poison" else (kv_poison_factor(case), q_poison_factor(case))
    leaks = _find_all_leaks(case, inputs, before, factors, call)
    if not leaks or case.probe != "nan_poison":
        return ProbeResult(before, leaks)
    finite = _find_all_leaks(case, inputs, before, (kv_poison_factor(case), q_poison_factor(case)), call)
    return ProbeResult(
        before, finite, () if finite else tuple(f"{leak} by NaN, but not by finite values" for leak in leaks)
    )


def _find_all_leaks(
    case: Case, inputs: Inputs, before: Outputs, factors: tuple[float, float], call: BackendCall
) -> tuple[str, ...]:
    leaks: list[str] = []
    for documents in tested_documents(case):
        leaks += _find_leaks(case, inputs, before, documents, factors, call)
    return (leaks and find_state(inputs, before, call)) or tuple(dict.fromkeys(leaks))


def _find_leaks(
    case: Case,
    inputs: Inputs,
    before: Outputs,
    documents: list[Segment],
    factors: tuple[float, float],
    call: BackendCall,
) -> Iterator[str]:
    """Yield the changes in `documents` when k and v, and q, outside them are multiplied by `factors`."""
    inside_q = torch.zeros(case.batch, case.seqlen_q, dtype=torch.bool, device=inputs.device)
    inside_k = torch.zeros(case.batch, case.seqlen_k, dtype=torch.bool, device=inputs.device)
    sees_keys = rows_with_keys(case, inputs.device)
    for s in documents:
        inside_q[s.batch, s.q_start : s.q_stop] = True
        inside_k[s.batch, s.k_start : s.k_stop] = True
    kv_factor, q_factor = factors

    def multiply_outside(x: Tensor, inside: Tensor, times: float) -> Tensor:
        return torch.where(inside[:, :, None, None], x, x * times)

    q = multiply_outside(inputs.q, inside_q, q_factor)
    k, v = multiply_outside(inputs.k, inside_k, kv_factor), multiply_outside(inputs.v, inside_k, kv_factor)
    after = call(replace(inputs, q=q, k=k, v=v))
    location = "" if case.padded else f" of document {documents[0].index}"
    edited = "the padding" if case.padded else "other documents"
    for name, token in _list_changes(case, before, after, inside_q & sees_keys, inside_k):
        yield f"{name} of token {token}{location} changes with {edited}"


def _list_changes(
    case: Case, before: Outputs, after: Outputs, inside_q: Tensor, inside_k: Tensor
) -> Iterator[tuple[str, int]]:
    """Yield each tensor that changed inside the given tokens `(batch, seqlen)`, and the first such token there."""
    for name, inside in (("out", inside_q), ("lse", inside_q), ("dq", inside_q), ("dk", inside_k), ("dv", inside_k)):
        a, b = getattr(before, name), getattr(after, name)
        if a is None or b is None:
            continue
        if name == "lse":
            a, b = a.transpose(1, 2), b.transpose(1, 2)
        a, b = a[inside], b[inside]
        is_nan = a.isnan() & b.isnan()  # NaN in both calls is wrong, but not a change
        a, b = a.masked_fill(is_nan, 0.0), b.masked_fill(is_nan, 0.0)
        if not torch.equal(a, b) and not (name in ("dq", "dk", "dv") and _is_nearly_equal(a, b, case.dtype)):
            yield name, _first_difference(a[None], b[None])


def _is_nearly_equal(before: Tensor, after: Tensor, dtype: str) -> bool:
    """Return whether a different order of summation can explain the difference of two gradients."""
    unit = {"bfloat16": 2.0**-6, "float16": 2.0**-9, "float32": 2.0**-16}[dtype]
    largest = float(before.float().abs().max())
    return (
        float((before.float() - after.float()).abs().max()) <= unit * largest < math.inf
    )  # comparisons with NaN are false


def _first_difference(before: Tensor, after: Tensor) -> int:
    """Return the first token, along dimension 1, where two tensors differ."""
    differs = (before != after) | ~torch.isfinite(after)
    tokens = differs.reshape(*differs.shape[:2], -1).any(-1).any(0)
    return int(tokens.nonzero()[0]) if bool(tokens.any()) else 0
