"""What the errors of a failing run have in common, in words: a factor, a shift, some heads, rows, documents."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from attncheck.attention.backend import Outputs
from attncheck.attention.reference.oracle import Reference
from attncheck.attention.reference.score import TENSORS, row_errors, taken
from attncheck.core.cases import Case, segments
from attncheck.core.sharding import Sharding, shards

BAD = 20.0  # a row's error in sigma beyond which it is plainly wrong


def patterns(
    outputs: Outputs, reference: Reference, tensors: tuple[str, ...], sharding: Sharding | None = None
) -> tuple[str, ...]:
    """Return what is telling about the errors of `tensors`, the ones over budget, at most a few lines.

    `sharding` is how tokens lie on ranks, where the case was computed by several.
    """
    found: list[str] = []
    if outputs.lse is not None:
        found += _lse(outputs.lse, reference)
    for name in TENSORS:
        got = getattr(outputs, name)
        if name in tensors and got is not None and bool(torch.isfinite(got).all()):
            found += (f"{name}: {line}" for line in _tensor(name, got, reference, sharding))
    return tuple(dict.fromkeys(found))[:6]


def _lse(got: Tensor, reference: Reference) -> Iterator[str]:
    want = reference.lse
    got = taken("lse", got, reference).to(want.dtype)
    kept = torch.isfinite(want) & torch.isfinite(got)
    if not bool(kept.any()):
        return
    want, got, logit = want[kept], got[kept], reference.expected_logit[kept].to(want.dtype)
    error = got - want
    size = float(error.norm())
    if size <= 1e-3 * math.sqrt(error.numel()):
        return
    if float((got - want / math.log(2.0)).norm()) < 1e-2 * size:
        yield "lse is in base 2"
    elif float((error - error.mean()).norm()) < 1e-2 * size:
        yield f"lse is shifted by {float(error.mean()):.4g} everywhere"
    else:
        slope = float((error * logit).sum() / logit.square().sum().clamp_min(1e-30))
        if float((error - slope * logit).norm()) < 0.3 * size and abs(slope) < 0.5:
            yield f"the softmax scale is off by about {100 * slope:+.2g} %"


def _tensor(name: str, got: Tensor, reference: Reference, sharding: Sharding | None) -> Iterator[str]:
    want = getattr(reference, name)
    rows, error = row_errors(name, got, reference)
    got = taken(name, got, reference).to(want.dtype)
    size = float(error.norm())
    factor = float((got * want).sum() / want.square().sum().clamp_min(1e-30))
    if abs(factor - 1.0) > 3e-3 and float((got - factor * want).norm()) < 0.3 * size:
        yield f"{factor:.4g} times what it should be"
        return
    bad = rows > BAD
    if not bool(bad.any()):
        return
    if sharding is not None:
        yield from _ranks(name, bad, reference, sharding)
    yield from _swapped(got, want)
    yield from _heads(bad)
    yield from _columns(error, bad)
    yield from _rows(name, bad, reference)


def _swapped(got: Tensor, want: Tensor) -> Iterator[str]:
    """Name heads that hold another head's result."""
    heads = got.shape[2]
    if heads == 1:
        return
    ours = torch.nn.functional.normalize(got.float().transpose(0, 2).reshape(heads, -1), dim=-1)
    theirs = torch.nn.functional.normalize(want.float().transpose(0, 2).reshape(heads, -1), dim=-1)
    alike = ours @ theirs.T
    best, holder = alike.max(-1)
    pairs = [(h, int(holder[h])) for h in range(heads) if int(holder[h]) != h and float(best[h]) > 0.98]
    if pairs:
        yield "; ".join(f"head {h} holds head {other}'s result" for h, other in pairs[:3])


def _heads(bad: Tensor) -> Iterator[str]:
    wrong = bad.any(1).any(0)
    count, heads = int(wrong.sum()), len(wrong)
    if count < heads:
        yield f"errors only in head{_listed(wrong.nonzero()[:, 0].tolist())} of {heads}"


def _ranks(name: str, bad: Tensor, reference: Reference, sharding: Sharding) -> Iterator[str]:
    """Name the ranks that hold the wrong rows, where others hold none."""
    case = reference.case
    places = bad.any(-1).any(0).nonzero()[:, 0]
    tokens = places if reference.rows is None or name in ("dk", "dv") else reference.rows[places]
    wrong = set(tokens.tolist())
    ranks = range(case.context_parallel_size)
    holders = [r for r in ranks if any(not wrong.isdisjoint(part) for part in shards(sharding, case, r))]
    if len(holders) < len(ranks):
        yield f"errors only on rank{_listed(holders)} of {len(ranks)}"


def _columns(error: Tensor, bad: Tensor) -> Iterator[str]:
    size = error[bad].square().mean(0).sqrt()
    wrong = size > 0.1 * size.max()
    if wrong.any() and not wrong.all():
        first, last = int(wrong.nonzero()[0]), int(wrong.nonzero()[-1])
        if int(wrong.sum()) == last - first + 1:
            yield f"errors only in head_dim elements {first} to {last}"


def _rows(name: str, bad: Tensor, reference: Reference) -> Iterator[str]:
    """Say where along the batch and the sequence the wrong rows lie."""
    case = reference.case
    keys = name in ("dk", "dv")
    by_token = bad.any(-1)  # (batch, rows)
    wrong_batches = by_token.any(1)
    if int(wrong_batches.sum()) < len(wrong_batches):
        numbers = wrong_batches.nonzero()[:, 0].tolist()
        yield f"errors only in batch row{_listed(numbers)} of {len(wrong_batches)}"
    places = by_token.any(0).nonzero()[:, 0]
    tokens = places if reference.rows is None or keys else reference.rows[places]
    found = sorted(int(token) for token in tokens.tolist())
    what, total = ("key", case.seqlen_k) if keys else ("query", case.seqlen_q)
    edges = {edge for s in segments(case) for edge in _edges(s.k_start, s.k_stop, s.q_start, s.q_stop, keys)}
    documents = [s for s in segments(case) if s.k_stop - s.k_start > 4]
    if len(documents) > 1 and len(found) > 1 and all(token in edges for token in found):
        yield "errors only on document boundaries"
        return
    if case.layout == "packed":
        yield from _documents(case, found, keys)
    if len(found) == 1:
        yield f"errors only in {what} {found[0]}"
    elif found[0] > 0 and found[-1] == total - 1 and _dense(found, reference, keys):
        yield f"errors in every {what} from {found[0]} on"
    elif found[0] == 0 and found[-1] < total - 1 and _dense(found, reference, keys):
        yield f"errors in the first {found[-1] + 1} {what} rows only"


def _edges(k_start: int, k_stop: int, q_start: int, q_stop: int, keys: bool) -> set[int]:
    start, stop = (k_start, k_stop) if keys else (q_start, q_stop)
    return {start, start + 1, stop - 1, stop - 2, start - 1}


def _documents(case: Case, found: list[int], keys: bool) -> Iterator[str]:
    spans = [(s.index, s.k_start if keys else s.q_start, s.k_stop if keys else s.q_stop) for s in segments(case)]
    wrong = [index for index, start, stop in spans if any(start <= token < stop for token in found)]
    alive = sum(stop > start for _, start, stop in spans)
    if 0 < len(wrong) < alive:
        yield f"errors only in document{_listed(wrong)} of {len(spans)}"


def _listed(numbers: list[int]) -> str:
    """Return "s 1, 2, 3 … (8)": a plural where there are several, and their count where not all are named."""
    more = f" … ({len(numbers)} in all)" if len(numbers) > 6 else ""
    return "s" * (len(numbers) > 1) + " " + ", ".join(map(str, numbers[:6])) + more


def _dense(found: list[int], reference: Reference, keys: bool) -> bool:
    """Say whether nearly every looked-at row between the first and the last is wrong."""
    if reference.rows is None or keys:
        span = found[-1] - found[0] + 1
    else:
        rows = reference.rows.tolist()
        span = sum(found[0] <= row <= found[-1] for row in rows)
    return len(found) >= 0.8 * span
