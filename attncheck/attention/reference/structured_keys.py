"""Structured probes of which keys are seen, and by which heads: code, heads, retrieve."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from attncheck.attention.backend import Outputs
from attncheck.attention.inputs import Inputs
from attncheck.attention.reference.structured_common import (
    Call,
    Examined,
    blank,
    dressed,
    first_few,
    places,
    spans,
    where,
)
from attncheck.attention.reference.structured_targets import targets
from attncheck.core.cases import Case, Segment, segments


def code(case: Case, device: str, call: Call) -> Examined:
    """Check how many keys each query sees, by LSE, and which, by their sum."""
    base = blank(case, device)
    codes = torch.where(base.v > 0, 1.0, -1.0)
    inputs = dressed(replace(base, q=base.q * 0, k=base.k * 0, v=codes), case)
    outputs = call(inputs)
    return tuple(first_few(_code_faults(case, inputs, outputs))), outputs


def _code_faults(case: Case, inputs: Inputs, outputs: Outputs) -> Iterator[str]:
    group = case.num_heads // case.num_kv_heads
    for segment in segments(case):
        rows, first, last = spans(case, segment, inputs.device)
        seen = last - first
        kept = seen > 0
        if not bool(kept.any()):
            continue
        rows, first, last, seen = rows[kept], first[kept], last[kept], seen[kept]
        if outputs.lse is not None:
            counted = outputs.lse[segment.batch][:, rows].double().exp()
            vague = 1e-4 if inputs.device == "cpu" else 2e-6  # torch's CPU kernels approximate exp and log
            wrong = (counted - seen).abs() > 0.25 + vague * seen
            wrong |= ~torch.isfinite(counted)
            for head, row in places(wrong):
                yield (
                    f"query {int(rows[row])}{where(case, segment)}, head {head} sees "
                    f"{float(counted[head, row]):.6g} keys, not {int(seen[row])}"
                )
        totals = inputs.v[segment.batch].double().cumsum(0)
        totals = torch.cat((torch.zeros_like(totals[:1]), totals)).repeat_interleave(group, 1)
        want = totals[last] - totals[first]
        got = outputs.out[segment.batch, rows].double() * seen[:, None, None]
        # Rounding costs a few units of the sum's own size, and the sum of 16-bit weights 1/n what their rounding does.
        unit = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-20}[case.dtype]
        allowed = 0.75 + 2 * unit * want.abs() + 1e-6 * seen[:, None, None]
        wrong = (((got - want).abs() > allowed) | ~torch.isfinite(got)).any(-1)
        for row, head in places(wrong):
            yield (
                f"query {int(rows[row])}{where(case, segment)}, head {head} does not sum the {int(seen[row])} keys "
                f"{int(first[row])} to {int(last[row]) - 1} that it sees"
            )


def heads(case: Case, device: str, call: Call) -> Examined:
    """Check that each query head reads its own kv head, and that dv gathers its whole group."""
    base = blank(case, device)
    kv = torch.arange(case.num_kv_heads, device=device)
    v = torch.stack((1.0 + kv % 16, 1.0 + torch.div(kv, 16, rounding_mode="floor")), -1)
    v = v.repeat(1, math.ceil(case.v_head_dim / 2))[:, : case.v_head_dim].expand_as(base.v)
    weights = 4.0 + (5 * torch.arange(case.num_heads, device=device)) % 4
    dout = torch.zeros_like(base.dout)
    asked = []
    for segment in segments(case):
        rows, first, last = spans(case, segment, device)
        seen = last - first
        if not bool((seen > 0).any()):
            continue
        chosen = int(torch.where(seen > 0, seen, 1 << 40).argmin())
        dout[segment.batch, rows[chosen]] = weights[:, None]
        asked.append((segment, int(first[chosen]), int(last[chosen])))
    inputs = dressed(replace(base, q=base.q * 0, k=base.k * 0, v=v, dout=dout), case)
    outputs = call(inputs)
    return tuple(first_few(_head_faults(case, inputs, outputs, weights, asked))), outputs


def _head_faults(
    case: Case, inputs: Inputs, outputs: Outputs, weights: Tensor, asked: list[tuple[Segment, int, int]]
) -> Iterator[str]:
    group = case.num_heads // case.num_kv_heads
    want = inputs.v[0, 0].double().repeat_interleave(group, 0)
    for segment in segments(case):
        rows, first, last = spans(case, segment, inputs.device)
        got = outputs.out[segment.batch, rows[last > first]].double()
        wrong = ((got - want).abs() > 0.25).any(-1).any(0)
        for (head,) in places(wrong):
            number = got[0, head, 0].item() - 1 + 16 * (got[0, head, 1].item() - 1 if case.v_head_dim > 1 else 0)
            yield f"head {head} returns the v of kv head {number:.3g}, not of {head // group}"
    if outputs.dv is None:
        return
    sums = weights.view(case.num_kv_heads, group).sum(-1).double()
    for segment, first_key, last_key in asked:
        got = outputs.dv[segment.batch, first_key:last_key].double().mean(-1) * (last_key - first_key)
        wrong = ((got - sums).abs() > 0.25 + sums / 64).any(0)
        for (head,) in places(wrong):
            yield (
                f"dv of kv head {head} gathers {float(got[0, head]):.4g} from its group of query heads, "
                f"not {float(sums[head]):.4g}"
            )


def retrieve(case: Case, device: str, call: Call) -> Examined:
    """Check that each query finds the key that it asks for where it sees it, and nowhere else."""
    base = blank(case, device)
    codes = torch.where(base.k > 0, 1.0, -1.0)
    group = case.num_heads // case.num_kv_heads
    wanted = torch.tensor(targets(case), device=device)  # (batch, seqlen_q)
    picked = codes.gather(1, wanted[:, :, None, None].expand(-1, -1, *codes.shape[2:]))
    digits = max(1, (case.seqlen_k - 1).bit_length())
    numbers = torch.arange(case.seqlen_k, device=device)[:, None] >> torch.arange(digits, device=device)
    v = base.v.sign()
    v[..., :digits] = ((numbers & 1) * 2.0 - 1.0)[None, :, None, :]
    inputs = dressed(replace(base, q=2.0 * picked.repeat_interleave(group, 2), k=2.0 * codes, v=v), case)
    outputs = call(inputs)
    return tuple(first_few(_retrieve_faults(case, outputs, wanted, digits))), outputs


def _retrieve_faults(case: Case, outputs: Outputs, wanted: Tensor, digits: int) -> Iterator[str]:
    powers = 1 << torch.arange(digits, device=wanted.device)
    for segment in segments(case):
        rows, first, last = spans(case, segment, str(wanted.device))
        asked = wanted[segment.batch, rows]
        seen = (asked >= first) & (asked < last)
        spelled = outputs.out[segment.batch, rows][..., :digits].float()
        found = ((spelled > 0) * powers).sum(-1)  # (rows, heads)
        crisp = (spelled.abs() > 0.5).all(-1)
        lost = seen[:, None] & ~(crisp & (found == asked[:, None]))
        for row, head in places(lost):
            yield (
                f"query {int(rows[row])}{where(case, segment)}, head {head} does not find key {int(asked[row])}, "
                f"which it sees (it finds {int(found[row, head])})"
            )
        leaked = ~seen[:, None] & (last > first)[:, None] & (spelled.abs() > 0.9).all(-1) & (found == asked[:, None])
        for row, head in places(leaked):
            yield (
                f"query {int(rows[row])}{where(case, segment)}, head {head} finds key {int(asked[row])}, "
                "which it must not see"
            )
