"""Structured probes of the visible keys, for each head: code, heads, retrieve."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from attncheck.attention.backend import Outputs
from attncheck.attention.inputs import Inputs
from attncheck.attention.masks import visible_spans
from attncheck.attention.reference.structured_common import (
    BackendCall,
    ProbeResult,
    cast_to_case,
    describe_segment,
    first_indices,
    limit_violations,
    make_normal_inputs,
)
from attncheck.attention.reference.structured_targets import retrieval_targets
from attncheck.core.cases import Case, Segment, iter_segments


def probe_code(case: Case, device: str, call: BackendCall) -> ProbeResult:
    """Check the number of each query's visible keys by LSE, and which keys they are by their sum."""
    normal = make_normal_inputs(case, device)
    codes = torch.where(normal.v > 0, 1.0, -1.0)
    inputs = cast_to_case(replace(normal, q=normal.q * 0, k=normal.k * 0, v=codes), case)
    outputs = call(inputs)
    return ProbeResult(outputs, tuple(limit_violations(_code_violations(case, inputs, outputs))))


def _code_violations(case: Case, inputs: Inputs, outputs: Outputs) -> Iterator[str]:
    group = case.num_heads // case.num_kv_heads
    for segment in iter_segments(case):
        rows, first, last = visible_spans(case, segment, inputs.device)
        key_counts = last - first
        sees_keys = key_counts > 0
        rows, first, last, key_counts = rows[sees_keys], first[sees_keys], last[sees_keys], key_counts[sees_keys]
        if outputs.lse is not None:
            counted = outputs.lse[segment.batch][:, rows].double().exp()
            tolerance = 1e-4 if inputs.device == "cpu" else 2e-6  # torch's CPU kernels approximate exp and log
            wrong = (counted - key_counts).abs() > 0.25 + tolerance * key_counts
            wrong |= ~torch.isfinite(counted)
            for head, row in first_indices(wrong):
                yield (
                    f"query {int(rows[row])}{describe_segment(case, segment)}, head {head} attends to "
                    f"{float(counted[head, row]):.6g} keys, not {int(key_counts[row])}"
                )
        totals = inputs.v[segment.batch].double().cumsum(0)
        totals = torch.cat((torch.zeros_like(totals[:1]), totals)).repeat_interleave(group, 1)
        want = totals[last] - totals[first]
        got = outputs.out[segment.batch, rows].double() * key_counts[:, None, None]
        # Rounding costs a few units of the sum's size; a sum of 16-bit weights 1/n also has the weights' rounding.
        unit = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-20}[case.dtype]
        allowed = 0.75 + 2 * unit * want.abs() + 1e-6 * key_counts[:, None, None]
        wrong = (((got - want).abs() > allowed) | ~torch.isfinite(got)).any(-1)
        for row, head in first_indices(wrong):
            yield (
                f"query {int(rows[row])}{describe_segment(case, segment)}, head {head} does not sum its "
                f"{int(key_counts[row])} visible keys {int(first[row])} to {int(last[row]) - 1}"
            )


def probe_heads(case: Case, device: str, call: BackendCall) -> ProbeResult:
    """Check that each query head reads its own kv head, and that dv sums its whole group."""
    normal = make_normal_inputs(case, device)
    kv = torch.arange(case.num_kv_heads, device=device)
    v = torch.stack((1.0 + kv % 16, 1.0 + torch.div(kv, 16, rounding_mode="floor")), 1)
    v = v.repeat(1, case.v_head_dim)[:, : case.v_head_dim].expand_as(normal.v)
    weights = 4.0 + torch.arange(case.num_heads, device=device) % 4
    dout = torch.zeros_like(normal.dout)
    watched_spans = []
    for segment in iter_segments(case):
        rows, first, last = visible_spans(case, segment, device)
        sees_keys = last > first
        if not bool(sees_keys.any()):
            continue
        rows, first, last = rows[sees_keys], first[sees_keys], last[sees_keys]
        shortest = int((last - first).argmin())
        dout[segment.batch, rows[shortest]] = weights[:, None]
        watched_spans.append((segment, int(first[shortest]), int(last[shortest])))
    inputs = cast_to_case(replace(normal, q=normal.q * 0, k=normal.k * 0, v=v, dout=dout), case)
    outputs = call(inputs)
    return ProbeResult(
        outputs, tuple(limit_violations(_head_violations(case, inputs, outputs, weights, watched_spans)))
    )


def _head_violations(
    case: Case, inputs: Inputs, outputs: Outputs, weights: Tensor, watched_spans: list[tuple[Segment, int, int]]
) -> Iterator[str]:
    group = case.num_heads // case.num_kv_heads
    want = inputs.v[0, 0].double().repeat_interleave(group, 0)
    for segment in iter_segments(case):
        rows, first, last = visible_spans(case, segment, inputs.device)
        got = outputs.out[segment.batch, rows[last > first]].double()
        wrong = ~((got - want).abs() <= 0.25).all(-1)
        for row, head in _first_of_each_head(wrong):
            number = got[row, head, 0].item() - 1 + 16 * (got[row, head, 1].item() - 1 if case.v_head_dim > 1 else 0)
            yield f"head {head} returns the v of kv head {number:.3g}, not of {head // group}"
    if outputs.dv is None:
        return
    sums = weights.view(case.num_kv_heads, group).sum(1).double()
    for segment, first_key, last_key in watched_spans:
        got = outputs.dv[segment.batch, first_key:last_key].double().mean(-1) * (last_key - first_key)
        wrong = ~((got - sums).abs() <= 0.25 + sums / 64)
        for key, head in _first_of_each_head(wrong):
            yield (
                f"dv of kv head {head}, key {first_key + key} gathers {float(got[key, head]):.4g} "
                f"from its group of query heads, not {float(sums[head]):.4g}"
            )


def _first_of_each_head(wrong: Tensor) -> Iterator[tuple[int, int]]:
    """Yield the first wrong row and the head, for each wrong head; `wrong` is bool `(rows, heads)`."""
    for (head,) in first_indices(wrong.any(0)):
        yield first_indices(wrong[:, head])[0][0], head


def probe_retrieve(case: Case, device: str, call: BackendCall) -> ProbeResult:
    """Check that each query finds its target key if it is visible, and nothing otherwise."""
    normal = make_normal_inputs(case, device)
    codes = torch.where(normal.k > 0, 2.0, -2.0)
    group = case.num_heads // case.num_kv_heads
    target_keys = torch.tensor(retrieval_targets(case), device=device)  # (batch, seqlen_q)
    target_codes = codes.gather(1, target_keys[:, :, None, None].expand(-1, -1, *codes.shape[2:]))
    digits = max(1, (case.seqlen_k - 1).bit_length())
    numbers = torch.arange(case.seqlen_k, device=device)[:, None] >> torch.arange(digits, device=device)
    v = normal.v.sign()
    v[..., :digits] = ((numbers & 1) * 2.0 - 1.0)[None, :, None, :]
    inputs = cast_to_case(replace(normal, q=target_codes.repeat_interleave(group, 2), k=codes, v=v), case)
    outputs = call(inputs)
    return ProbeResult(outputs, tuple(limit_violations(_retrieve_violations(case, outputs, target_keys, digits))))


def _retrieve_violations(case: Case, outputs: Outputs, target_keys: Tensor, digits: int) -> Iterator[str]:
    powers = 1 << torch.arange(digits, device=target_keys.device)
    for segment in iter_segments(case):
        rows, first, last = visible_spans(case, segment, str(target_keys.device))
        row_targets = target_keys[segment.batch, rows]
        is_visible = (row_targets >= first) & (row_targets < last)
        digit_values = outputs.out[segment.batch, rows][..., :digits].float()
        decoded = ((digit_values > 0) * powers).sum(-1)  # (rows, heads)
        is_clear = (digit_values.abs() > 0.5).all(-1)
        missed = is_visible[:, None] & ~(is_clear & (decoded == row_targets[:, None]))
        for row, head in first_indices(missed):
            key, number = int(row_targets[row]), int(decoded[row, head])
            weight = float(digit_values[row, head].abs().min())
            miss = f"does not find key {key}, which is visible (it finds {number})"
            if number == key:
                miss = f"finds key {key}, which is visible, with a weight of {weight:.2g}, not 1"
            elif not is_clear[row, head]:
                miss = f"does not find key {key}, which is visible (no key is out)"
            yield f"query {int(rows[row])}{describe_segment(case, segment)}, head {head} {miss}"
        leaked = (
            ~is_visible[:, None]
            & (last > first)[:, None]
            & (digit_values.abs() > 0.9).all(-1)
            & (decoded == row_targets[:, None])
        )
        for row, head in first_indices(leaked):
            yield (
                f"query {int(rows[row])}{describe_segment(case, segment)}, head {head} finds key "
                f"{int(row_targets[row])}, which must be hidden"
            )
