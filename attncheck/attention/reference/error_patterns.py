"""Describes what a failing run's errors have in common: a factor, a shift, some heads, rows, documents."""

import itertools
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from attncheck.attention.backend import Outputs
from attncheck.attention.masks import visible_spans
from attncheck.attention.reference.oracle import Reference
from attncheck.attention.reference.score import TENSORS, row_errors, select_rows
from attncheck.core.cases import SINK_LEVELS, Case, iter_segments
from attncheck.core.sharding import Sharding, shard_ranges
from attncheck.core.verdicts import BUDGETS, FAIL_FACTOR, HUGE, LSE_BUDGET

WRONG_ROW_Z = 20.0  # a position is named only if a row's error there is at least this many sigmas
FEW_PLACES = 3  # so few positions may be anywhere
SHORT_DOCUMENT = 4  # a document with at most this many tokens may be without error by chance


def describe_patterns(
    outputs: Outputs, reference: Reference, tensors: tuple[str, ...], sharding: Sharding | None = None
) -> tuple[str, ...]:
    """Return at most six lines about what the errors of the over-budget `tensors` have in common.

    `sharding` is the distribution of tokens across ranks, if several computed the case.
    """
    lines: list[str] = []
    if outputs.lse is not None:
        lines += _lse_patterns(outputs.lse, reference)
        if tensors == ("lse",):
            lines += (f"lse: {line}" for line in _lse_places(outputs.lse, reference))
    for name in TENSORS:
        got = getattr(outputs, name)
        if name in tensors and got is not None and bool(torch.isfinite(got).all()):
            lines += (f"{name}: {line}" for line in _tensor_patterns(name, got, reference, sharding))
    return tuple(dict.fromkeys(lines))[:6]


def _lse_patterns(got: Tensor, reference: Reference) -> Iterator[str]:
    want = reference.lse
    got = select_rows("lse", got, reference).to(want.dtype)
    is_finite = torch.isfinite(want) & torch.isfinite(got)
    if not bool(is_finite.any()):
        return
    want, got, logit = want[is_finite], got[is_finite], reference.expected_logit[is_finite].to(want.dtype)
    error = got - want
    size = float(error.norm())
    if size <= 1e-3 * math.sqrt(error.numel()):
        return
    if float((got - want / math.log(2.0)).norm()) < 1e-2 * size:
        yield "lse is in base 2"
    elif float((error - error.mean()).abs().max()) < 3e-2 * abs(float(error.mean())):
        yield f"lse is shifted by {float(error.mean()):.4g} everywhere"
    else:
        slope = float((error * logit).sum() / logit.square().sum().clamp_min(1e-30))
        # The second-order error of a scale that is off by `slope` is about `slope` times the error.
        if float((error - slope * logit).norm()) < (0.05 + abs(slope)) * size and abs(slope) < 0.5:
            yield f"the softmax scale is off by about {100 * slope:+.2g} %"


def _lse_places(got: Tensor, reference: Reference) -> Iterator[str]:
    """Yield where an LSE is wrong, if out and the gradients, which are more informative, are right."""
    assert reference.judged is not None
    error = (select_rows("lse", got, reference).to(reference.lse.dtype) - reference.lse).abs().transpose(1, 2)
    rows = torch.where(reference.judged[:, :, None], error, 0.0).nan_to_num(HUGE, HUGE, 0.0) / LSE_BUDGET
    wrong_rows = rows > FAIL_FACTOR
    if bool((rows > WRONG_ROW_Z).any()):
        yield from _wrong_heads(rows, reference.case)
        yield from _wrong_positions("lse", rows, wrong_rows, reference)


def _tensor_patterns(name: str, got: Tensor, reference: Reference, sharding: Sharding | None) -> Iterator[str]:
    want = getattr(reference, name)
    rows, error = row_errors(name, got, reference)
    got = select_rows(name, got, reference).to(want.dtype)
    if not bool(got.any()):
        yield "zero everywhere"
        return
    factor = float((got * want).sum() / want.square().sum().clamp_min(1e-30))
    rest = float((got - factor * want).norm())
    if abs(factor - 1.0) > 3e-3 and rest < min(0.3 * float(error.norm()), 0.05 * abs(factor) * float(want.norm())):
        yield f"{factor:.4g} times what it should be"
        return
    if not bool((rows > WRONG_ROW_Z).any()):
        return
    wrong_rows = (
        rows > 0.5 * BUDGETS[reference.case.dtype].z_row
    )  # correct kernels err less, so the other rows are clean
    if sharding is not None:
        yield from _wrong_ranks(name, wrong_rows, reference, sharding)
    yield from _swapped_heads(got, want)
    yield from _wrong_heads(rows, reference.case)
    if reference.case.values != "negative":  # these inputs have nearly all their magnitude in element 0
        yield from _wrong_columns(error, wrong_rows)
    yield from _wrong_positions(name, rows, wrong_rows, reference)


def _swapped_heads(got: Tensor, want: Tensor) -> Iterator[str]:
    """Yield a line naming the heads that hold another head's result."""
    heads = got.shape[2]
    if heads == 1:
        return
    got_heads = torch.nn.functional.normalize(got.float().transpose(0, 2).reshape(heads, -1), dim=-1)
    want_heads = torch.nn.functional.normalize(want.float().transpose(0, 2).reshape(heads, -1), dim=-1)
    similarity = got_heads @ want_heads.T
    best, holder = similarity.max(-1)
    pairs = [(h, int(holder[h])) for h in range(heads) if int(holder[h]) != h and float(best[h]) > 0.98]
    if pairs:
        yield "; ".join(f"head {h} holds head {other}'s result" for h, other in pairs[:3])


def _wrong_heads(rows: Tensor, case: Case) -> Iterator[str]:
    """Yield a line naming the wrong heads, unless their sinks or slopes may explain why only they show errors."""
    heads, count = _clearly_wrong(rows.amax((0, 1))), rows.shape[2]
    levels = len(SINK_LEVELS)
    are_alike = min(len(heads), count - len(heads)) >= levels and heads == list(range(count - len(heads), count))
    is_hidden = case.alibi or (case.sinks and not are_alike)
    if (
        heads
        and not is_hidden
        and _is_regular(heads, case.num_heads // case.num_kv_heads if count == case.num_heads else 1)
    ):
        yield f"errors only in head{_format_numbers(heads)} of {rows.shape[2]}"


def _clearly_wrong(z: Tensor) -> list[int]:
    """Return the positions with z beyond `WRONG_ROW_Z` if all others are far better, [] if there is no clear gap."""
    is_wrong = z > WRONG_ROW_Z
    if not bool(is_wrong.any()) or bool(is_wrong.all()) or float(z[~is_wrong].max()) > 0.2 * float(z[is_wrong].min()):
        return []
    return [int(index) for index in is_wrong.nonzero()[:, 0]]


def _is_regular(places: list[int], group: int = 1) -> bool:
    """Return whether positions are few, equally spaced or the same in each group; others may be wrong by chance."""
    steps = {later - earlier for earlier, later in itertools.pairwise(places)}
    offsets: dict[int, set[int]] = {}
    for place in places:
        offsets.setdefault(place // group, set()).add(place % group)
    same_in_groups = group > 1 and all(own == offsets[places[0] // group] for own in offsets.values())
    return len(places) <= FEW_PLACES or len(steps) == 1 or same_in_groups


def _wrong_ranks(name: str, wrong_rows: Tensor, reference: Reference, sharding: Sharding) -> Iterator[str]:
    """Yield a line naming the ranks of the wrong rows, if other ranks have none."""
    case = reference.case
    row_indices = wrong_rows.any(-1).any(0).nonzero()[:, 0]
    tokens = row_indices if reference.rows is None or name in ("dk", "dv") else reference.rows[row_indices]
    wrong_tokens = set(tokens.tolist())
    ranks = range(case.context_parallel_size)
    holders = [r for r in ranks if any(not wrong_tokens.isdisjoint(part) for part in shard_ranges(sharding, case, r))]
    if len(holders) < len(ranks):
        yield f"errors only on rank{_format_numbers(holders)} of {len(ranks)}"


def _wrong_columns(error: Tensor, wrong_rows: Tensor) -> Iterator[str]:
    size = error[wrong_rows].square().mean(0).sqrt()
    wrong_columns = size > 0.1 * size.max()
    if wrong_columns.any() and not wrong_columns.all():
        first, last = int(wrong_columns.nonzero()[0]), int(wrong_columns.nonzero()[-1])
        if int(wrong_columns.sum()) == last - first + 1:
            yield f"errors only in head_dim elements {first} to {last}"


def _wrong_positions(name: str, rows: Tensor, wrong_rows: Tensor, reference: Reference) -> Iterator[str]:
    """Yield lines with the positions of the wrong rows in the batch and the sequence."""
    case = reference.case
    of_keys = name in ("dk", "dv")
    batches = _clearly_wrong(rows.amax((1, 2)))
    if batches and _is_regular(batches):
        yield f"errors only in batch row{_format_numbers(batches)} of {len(rows)}"
    row_indices = wrong_rows.any(-1).any(0).nonzero()[:, 0]
    tokens = row_indices if reference.rows is None or of_keys else reference.rows[row_indices]
    wrong_tokens = sorted(int(token) for token in tokens.tolist())
    unit, total = ("key", case.seqlen_k) if of_keys else ("query", case.seqlen_q)
    boundaries = {
        token
        for s in iter_segments(case)
        for token in _boundary_tokens(s.k_start, s.k_stop, s.q_start, s.q_stop, of_keys)
    }
    documents = [s for s in iter_segments(case) if s.k_stop - s.k_start > 4]
    if len(documents) > 1 and len(wrong_tokens) > 1 and all(token in boundaries for token in wrong_tokens):
        yield "errors only on document boundaries"
        return
    if case.layout == "packed":
        yield from _wrong_documents(case, wrong_tokens, of_keys)
    first, last = wrong_tokens[0], wrong_tokens[-1]
    period = math.gcd(*(token - first for token in wrong_tokens))
    # In a ramp of keys only the first keys have weight, so the end of the errors shows nothing about the kernel.
    is_dense = case.values != "ramp" and _is_dense(wrong_tokens, reference, of_keys)
    if first == last:
        yield f"errors only in {unit} {first}"
    elif period > 1 and len(wrong_tokens) >= max(3, 0.8 * (total - first) / period):
        yield f"errors only in every {period}th {unit}, from {first} on"
    elif first > _first_telling_token(reference, of_keys) and last == total - 1 and is_dense:
        yield f"errors in every {unit} from {first} on"
    elif first == 0 and last < total - 1 and is_dense:
        yield f"errors in the first {last + 1} {unit} rows only"


def _first_telling_token(reference: Reference, of_keys: bool) -> int:
    """Return the first token that can show an error: a query with only one key returns its v, and has no gradient."""
    if of_keys:
        return 0
    telling = [
        rows[last - first > 1].min()
        for rows, first, last in (visible_spans(reference.case, s, "cpu") for s in iter_segments(reference.case))
        if bool((last - first > 1).any())
    ]
    return int(min(telling, default=torch.zeros(())))


def _boundary_tokens(k_start: int, k_stop: int, q_start: int, q_stop: int, of_keys: bool) -> set[int]:
    start, stop = (k_start, k_stop) if of_keys else (q_start, q_stop)
    return {start, start + 1, stop - 1, stop - 2, start - 1}


def _wrong_documents(case: Case, wrong_tokens: list[int], of_keys: bool) -> Iterator[str]:
    spans = [
        (s.index, s.k_start if of_keys else s.q_start, s.k_stop if of_keys else s.q_stop) for s in iter_segments(case)
    ]
    wrong = [index for index, start, stop in spans if any(start <= token < stop for token in wrong_tokens)]
    clean = [index for index, start, stop in spans if index not in wrong and stop - start > SHORT_DOCUMENT]
    if wrong and clean and _is_regular(wrong):
        yield f"errors only in document{_format_numbers(wrong)} of {len(spans)}"


def _format_numbers(numbers: list[int]) -> str:
    """Return " 1" or "s 1, 2, 3": with a plural s for several numbers, and their count if not all are shown."""
    rest = f" … ({len(numbers)} in all)" if len(numbers) > 6 else ""
    return "s" * (len(numbers) > 1) + " " + ", ".join(map(str, numbers[:6])) + rest


def _is_dense(wrong_tokens: list[int], reference: Reference, of_keys: bool) -> bool:
    """Return whether nearly every compared row between the first and the last wrong token is wrong."""
    if reference.rows is None or of_keys:
        span = wrong_tokens[-1] - wrong_tokens[0] + 1
    else:
        rows = reference.rows.tolist()
        span = sum(wrong_tokens[0] <= row <= wrong_tokens[-1] for row in rows)
    return len(wrong_tokens) >= 0.8 * span
