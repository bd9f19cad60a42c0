"""Describes what the errors of a failing run have in common: their positions along each axis, and their values.

Along heads, elements, batch rows and tokens the errors are compared with sets that a kernel's author has names for. All
that fit form one line, with what the results are in these places: zero, or a factor times what they should be.
"""

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from attncheck.attention.backend import Outputs
from attncheck.attention.masks import visible_spans
from attncheck.attention.reference.oracle import Reference
from attncheck.attention.reference.score import TENSORS, row_errors, select_rows
from attncheck.core.cases import SINK_LEVELS, Case, iter_segments
from attncheck.core.sharding import Sharding, shard_ranges
from attncheck.core.verdicts import BUDGETS, FAIL_FACTOR, HUGE, LSE_BUDGET

WRONG_ROW_Z = 20.0  # a place is named only if a row's error there is at least this many sigmas
FEW_PLACES = 3  # that may lie anywhere
MIN_SHARE = 0.8  # of the rows in a place that must be wrong
TILES = (128, 64, 32, 16, 8)  # of a kernel's queries or keys
MAX_SWAPPED = 128  # heads or batch rows that are compared with each other
MIN_FACTOR = 3.0 / 1024.0  # of a result's difference from a multiple of 1 that is named
SHORT_DOCUMENT = 4  # a document with at most this many tokens and no error may have been spared by chance


def describe_patterns(
    outputs: Outputs, reference: Reference, tensors: tuple[str, ...], sharding: Sharding | None = None
) -> tuple[str, ...]:
    """Return at most six lines on what the errors of the over-budget `tensors` have in common.

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
    if "dsinks" in tensors and outputs.dsinks is not None and reference.dsinks is not None:
        lines += (f"dsinks: {line}" for line in _describe_content(outputs.dsinks, reference.dsinks, reference.case))
    return tuple(dict.fromkeys(lines))[:6]


def _lse_patterns(got: Tensor, reference: Reference) -> Iterator[str]:
    want = reference.lse
    got = select_rows("lse", got, reference).to(want.dtype)
    is_finite = torch.isfinite(want) & torch.isfinite(got)
    want, got, logit = want[is_finite], got[is_finite], reference.expected_logit[is_finite].to(want.dtype)
    error = got - want
    size = float(error.norm())
    if size <= 1e-3 * math.sqrt(error.numel()):
        return
    if float((got - want / math.log(2.0)).norm()) < 1e-2 * size:
        yield "lse is in base 2"
    elif float((error - error.mean()).abs().max()) < abs(float(error.mean())) / 32.0:
        yield f"lse is shifted by {float(error.mean()):.4g} everywhere"
    elif not (reference.case.alibi or reference.case.mask == "additive"):  # the scale does not multiply a bias
        slope = float((error * logit).sum() / logit.square().sum().clamp_min(1e-30))
        # The second-order error of a scale that is off by `slope` is about `slope` times the error.
        if float((error - slope * logit).norm()) < (0.05 + abs(slope)) * size and abs(slope) < 0.5:
            yield f"the softmax scale is off by about {100 * slope:+.2g} %"


def _lse_places(got: Tensor, reference: Reference) -> Iterator[str]:
    """Yield where an LSE is wrong, if out and the gradients, which say more, are right."""
    assert reference.judged is not None
    error = (select_rows("lse", got, reference).to(reference.lse.dtype) - reference.lse).abs().transpose(1, 2)
    rows = torch.where(reference.judged[:, :, None], error, 0.0).nan_to_num(HUGE, HUGE, 0.0) / LSE_BUDGET
    if bool((rows > WRONG_ROW_Z).any()):
        places = [*_wrong_heads(rows, reference.case), *_wrong_positions("lse", rows, rows > FAIL_FACTOR, reference)]
        if places:
            yield f"errors only {', '.join(places)}"


def _tensor_patterns(name: str, got: Tensor, reference: Reference, sharding: Sharding | None) -> Iterator[str]:
    want, case = getattr(reference, name), reference.case
    rows, error = row_errors(name, got, reference)
    got = select_rows(name, got, reference).to(want.dtype)
    everywhere = list(_describe_content(got, want, case))
    if everywhere:
        yield everywhere[0].replace("zero", "zero everywhere")
        return
    if not bool((rows > WRONG_ROW_Z).any()):
        return
    wrong_rows = rows > 0.5 * BUDGETS[case.dtype].z_row  # correct kernels stay below: the other rows are clean
    if sharding is not None:
        yield from _wrong_ranks(name, wrong_rows, reference, sharding)
    for dim, noun in ((2, "head"), (0, "batch row")):
        yield from _swapped_results(got, want, dim, noun)
    largest_got, largest_want = (x.abs().amax((0, 1, 3)) for x in (got, want))
    zero = [int(h) for h in ((largest_want > 0.0) & (largest_got == 0.0)).nonzero()[:, 0]]
    places = list(_wrong_heads(rows, case))
    every_column = range(error.shape[3])
    is_uneven = case.values in ("negative", "first_key")  # inputs whose magnitude is almost all in element 0
    columns = every_column if is_uneven else _wrong_columns(error, wrong_rows)
    if columns != every_column:
        places.append(f"in head_dim elements {columns[0]} to {columns[-1]}")
    positions = list(_wrong_positions(name, rows, wrong_rows, reference))
    more_wrong = rows > BUDGETS[case.dtype].z_row
    if not bool(more_wrong.any()) or positions == list(_wrong_positions(name, rows, more_wrong, reference)):
        places += positions  # errors that fade have no edge, so it would move with the limit
    content = tuple(_describe_content(got[wrong_rows][:, columns], want[wrong_rows][:, columns], case))
    if places:
        yield ": there it is ".join((f"errors only {', '.join(places)}", *content))
    if zero and not (places and content):
        yield f"zero in head{_format_numbers(zero)} of {got.shape[2]}"


def _describe_content(got: Tensor, want: Tensor, case: Case) -> Iterator[str]:
    """Yield a description of results that are zero, or a multiple of the right ones."""
    got = got.to(want.dtype)
    if not bool(got.any()):
        yield "zero"
        return
    factor = float((got * want).sum() / want.square().sum().clamp_min(1e-30))
    rest, error = float((got - factor * want).norm()), float((got - want).norm())
    if abs(factor - 1.0) > MIN_FACTOR and rest < min(0.3 * error, 0.05 * abs(factor) * float(want.norm())):
        yield f"{factor:.4g} times what it should be" + "".join(_name_factor(factor, case))


def _name_factor(factor: float, case: Case) -> Iterator[str]:
    """Yield the meaning of a factor, unless it is a power of two, which has many possible causes."""
    usual, scale = case.head_dim**-0.5, case.softmax_scale
    numbers = {"the softmax scale": scale, "1/sqrt(head_dim)": usual, "the bases' log2(e)": math.log2(math.e)}
    numbers |= {"1/sqrt(head_dim) for the scale": usual / scale, "the bases' ln(2)": math.log(2.0)}
    for name, number in numbers.items():
        if abs(factor / number - 1.0) < 2.0**-8 and not math.log2(number).is_integer():
            yield f", as by {name}"
            return


def _swapped_results(got: Tensor, want: Tensor, dim: int, noun: str) -> Iterator[str]:
    """Yield a line naming the heads or batch rows that contain another one's result."""
    count = got.shape[dim]
    if count > MAX_SWAPPED:
        return
    got_rows, want_rows = (
        torch.nn.functional.normalize(x.float().transpose(0, dim).flatten(1), dim=1) for x in (got, want)
    )
    best, holder = (got_rows @ want_rows.T).max(1)
    own = (want_rows * want_rows[holder]).sum(1)  # nearly equal results cannot be distinguished
    got_size, want_size = (x.double().transpose(0, dim).flatten(1).norm(dim=1) for x in (got, want))
    is_held = (best > 1.0 - 2.0**-10) & (own < 0.875) & ((got_size / want_size[holder] - 1.0).abs() < 0.125)
    if pairs := [(i, int(holder[i])) for i in is_held.nonzero()[:, 0].tolist()]:
        yield "; ".join(f"{noun} {i} holds {noun} {other}'s result" for i, other in pairs[:3])


def _wrong_heads(rows: Tensor, case: Case) -> Iterator[str]:
    """Yield the wrong heads, unless their own sinks, slopes or inputs may explain why errors show only in these."""
    heads, count = _clearly_wrong(rows.amax((0, 1))), rows.shape[2]
    levels = len(SINK_LEVELS)
    are_alike = min(len(heads), count - len(heads)) >= levels and heads == list(range(count - len(heads), count))
    is_hidden = case.alibi or case.values == "cancelling" or (case.sinks and not are_alike)
    if (
        heads
        and not is_hidden
        and _is_regular(heads, case.num_heads // case.num_kv_heads if count == case.num_heads else 1)
    ):
        yield f"in head{_format_numbers(heads)} of {rows.shape[2]}"


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
    same_in_groups = group > 1 and len(set(map(frozenset, offsets.values()))) == 1
    return len(places) <= FEW_PLACES or len(steps) == 1 or same_in_groups


def _wrong_ranks(name: str, wrong_rows: Tensor, reference: Reference, sharding: Sharding) -> Iterator[str]:
    """Yield a line naming the ranks of the wrong rows, if other ranks have none."""
    case = reference.case
    row_indices = wrong_rows.any(2).any(0).nonzero()[:, 0]
    tokens = row_indices if reference.rows is None or name in ("dk", "dv") else reference.rows[row_indices]
    wrong_tokens = set(tokens.tolist())
    ranks = range(case.context_parallel_size)
    holders = [r for r in ranks if any(not wrong_tokens.isdisjoint(part) for part in shard_ranges(sharding, case, r))]
    if len(holders) < len(ranks):
        yield f"errors only on rank{_format_numbers(holders)} of {len(ranks)}"


def _wrong_columns(error: Tensor, wrong_rows: Tensor) -> range:
    """Return the elements of head_dim between the first and the last wrong one; all, if some of these are right."""
    size = error[wrong_rows].square().mean(0).sqrt()
    wrong = [int(index) for index in (size > 0.1 * size.max()).nonzero()[:, 0]]
    is_dense = bool(wrong) and len(wrong) == wrong[-1] - wrong[0] + 1
    return range(wrong[0], wrong[-1] + 1) if is_dense else range(error.shape[3])


class _Rows(NamedTuple):
    """The rows of a tensor that can show an error, one entry each, and whether they are wrong."""

    wrong: Tensor  # bool
    batch: Tensor
    document: Tensor
    token: Tensor  # in the batch row, whose length is…
    length: Tensor
    position: Tensor  # in the document, whose length is…
    document_length: Tensor

    def select(self, chosen: Tensor) -> "_Rows":
        """Return the chosen rows."""
        return _Rows(*(x[chosen] for x in self))


def _list_rows(name: str, wrong_rows: Tensor, reference: Reference) -> _Rows:
    case, of_keys = reference.case, name in ("dk", "dv")
    tokens = None if of_keys else reference.rows
    tokens = torch.arange(case.seqlen_k if of_keys else case.seqlen_q) if tokens is None else tokens.cpu()
    shape = (case.batch, case.seqlen_k if of_keys else case.seqlen_q)
    document, position, lengths = (torch.zeros(shape, dtype=torch.int64) for _ in range(3))  # 0 in padding
    is_telling = torch.zeros(shape, dtype=torch.bool)
    for s in iter_segments(case):
        start, stop = (s.k_start, s.k_stop) if of_keys else (s.q_start, s.q_stop)
        document[s.batch, start:stop], lengths[s.batch, start:stop] = s.index, stop - start
        position[s.batch, start:stop], is_telling[s.batch, start:stop] = torch.arange(stop - start), True
        if name in ("dq", "out"):  # a query with one key returns its v, and has no gradient
            rows, first, last = visible_spans(case, s, "cpu")
            is_telling[s.batch, rows[last - first < 2]] = False
    wrong = wrong_rows.any(2).cpu()
    is_telling = wrong | is_telling[:, tokens]
    batch = torch.arange(case.batch)[:, None].expand_as(is_telling)[is_telling]
    document, position, lengths = (x[:, tokens][is_telling] for x in (document, position, lengths))
    token = tokens.expand_as(is_telling)[is_telling]
    length = torch.full_like(token, shape[1])
    return _Rows(wrong[is_telling], batch, document, token, length, position, lengths)


def _wrong_positions(name: str, rows: Tensor, wrong_rows: Tensor, reference: Reference) -> Iterator[str]:
    """Yield the places along the batch and the sequence where the wrong rows are."""
    case, unit = reference.case, "key" if name in ("dk", "dv") else "query"
    listed = _list_rows(name, wrong_rows, reference)
    place = _find_place(listed, unit, case)
    if case.layout == "packed":
        wrong = sorted(set(listed.document[listed.wrong].tolist()))
        lengths = [s.k_stop - s.k_start for s in iter_segments(case) if s.index not in wrong]
        has_clean = max(lengths, default=0) > SHORT_DOCUMENT
        words, chosen = f"in document{_format_numbers(wrong)} of {len(case.seqlens_q)}", listed.document
    else:
        wrong = _clearly_wrong(rows.amax((1, 2)))
        has_clean = bool(wrong)
        words, chosen = f"in batch row{_format_numbers(wrong)} of {len(rows)}", listed.batch
    if not place and has_clean and _is_regular(wrong):
        yield words
        place = _find_place(listed.select(torch.isin(chosen, torch.tensor(wrong))), unit, case)
    if place:
        yield place


def _find_place(rows: _Rows, unit: str, case: Case) -> str:
    """Return the set of tokens, in words, that fits the wrong ones best, "" if none fits."""
    count = int(rows.wrong.sum())
    best, best_share = "", MIN_SHARE
    for words, inside in _iter_places(rows, unit, case):
        size = int(inside.sum())
        # One of hundreds of rows may have been spared by chance.
        if size < 0.995 * len(inside) and bool(inside[rows.wrong].all()) and count / size > best_share:
            best, best_share = words, count / size
    return best or _find_boundaries(rows, case)


def _find_boundaries(rows: _Rows, case: Case) -> str:
    from_end = rows.document_length - 1 - rows.position
    inside = (rows.position < 2) | (from_end < 2)
    documents = sum(min(q, k) > SHORT_DOCUMENT for q, k in zip(case.seqlens_q, case.seqlens_k))
    is_some = documents > 1 and case.layout == "packed" and int(rows.wrong.sum()) > 1
    return "on document boundaries" if is_some and bool(inside[rows.wrong].all()) else ""


def _iter_places(rows: _Rows, unit: str, case: Case) -> Iterator[tuple[str, Tensor]]:
    """Yield sets of tokens that a kernel's tiles, loops and bounds make, in words and as those of `rows`."""
    units = {"key": "keys", "query": "queries"}[unit]
    coordinates = [("", rows.token, rows.length)]
    if case.layout != "dense" and bool((rows.document_length[rows.wrong] > 0).all()):  # not if padding is wrong
        noun = "document" if case.layout == "packed" else "sequence"
        coordinates.append((f" of each {noun}", rows.position, rows.document_length))
    for whole, x, length in coordinates:
        wrong, from_end = x[rows.wrong], length - 1 - x
        first, last, rest = int(wrong.min()), int(wrong.max()), int(from_end[rows.wrong].max())
        yield f"in {unit} {first}{whole}", x == first
        period = math.gcd(*(wrong - first).tolist())
        if period > 1:
            yield f"in every {period}th {unit}{whole}, from {first} on", (x >= first) & ((x - first) % period == 0)
        if case.values in ("ramp", "rising", "first_key"):  # few keys have weight, so the end of errors says nothing
            continue
        tails = [tile for tile in TILES if bool(torch.eq(length // tile * tile, first).all())]
        tail = f" (after the last whole tile of {tails[0]})" if tails else ""
        yield f"in the {units}{whole} from {first} on{tail}", x >= first
        yield f"in the first {last + 1} {units}{whole}", x <= last
        yield f"in the last {rest + 1} {units}{whole}", from_end <= rest
        for tile in TILES:
            yield f"in the {units} after the last whole tile of {tile}{whole}", x >= length // tile * tile


def _format_numbers(numbers: list[int]) -> str:
    """Return " 1", "s 1, 2, 3" or "s 8 to 15": with their count if not all are shown."""
    if len(numbers) > FEW_PLACES and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"s {numbers[0]} to {numbers[-1]}"
    rest = f" … ({len(numbers)} in all)" if len(numbers) > 6 else ""
    return "s" * (len(numbers) > 1) + " " + ", ".join(map(str, numbers[:6])) + rest
