"""Reduces a wrong case to the fewest features with which it is still wrong: the mistake concerns these together.

Features are removed in halves, and a half that the mistake needs is halved again. Each feature that is left is then
removed once more from the reduced case, with other values, so that the case is not right by chance.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from attncheck.core.cases import BROADCAST_STRIDES, STRIDE_LETTERS, STRIDE_WORDS, UNBOUNDED, Case
from attncheck.measure.case_features import NEEDED, PLAIN, STALE_CONTENTS, STALE_PARAMETERS

MAX_NAMED = 4  # features that are needed; of more, none is the cause
MAX_CALLS = 24  # for one wrong case
MAX_CELLS = 1 << 22  # score entries of a case that is run again
SIZES = r"(over|several|\d+) (documents|batch rows|heads$|\d+ tokens)"
# No suite has them, so no kernel is compiled for them yet. Each attempt takes two, with one remainder to 32.
UNUSED_HEAD_DIMS = (136, 168, 152, 184, 200, 232, 216, 248)
TILE = 64
LIMITS = (32768, 8192, 2048, 512, 128)  # of lengths; the largest with which a case is right is named
FEW_HEADS = 4
IMPLIED = (  # by a feature that is named: features that are not
    (r"\d+ (documents|batch)", "several (documents|batch)"),
    ("documents of unequal lengths", "several documents|a packed layout"),
    ("more keys than queries, fewer keys than queries", "documents of unequal lengths"),
    ("a head_dim that is not", "head_dim"),
    ("one query in each sequence", "lengths that are not|more keys than queries"),
    ("one key in each sequence", "lengths that are not|fewer keys than queries"),
    ("documents without queries", "more keys than queries"),
    ("documents without keys", "fewer keys than queries"),
)
VALUES = {
    "large": "large scores",
    "cancelling": "sums that cancel",
    "first_key": "a first key that outweighs all others",
}
# Each feature's name, and the fields of the case without it. The first are usually irrelevant.
SIMPLE: tuple[tuple[str, dict[str, object]], ...] = (
    ("a scaled dout", {"dout_exponent": 0}),
    ("{values}", {"values": "normal"}),
    ("{dtype}", {"dtype": "bfloat16"}),
    ("a custom softmax scale", {"scale": 0.0}),
    ("a mask for each head", {"per_head": False}),
    ("a mask as a tensor ({mask})", {"mask": "", "per_head": False}),
    ("no backward", {"backward": True}),
    ("a window", {"window_size": (UNBOUNDED, UNBOUNDED)}),
    ("attention chunks", {"attention_chunk": 0}),
    ("soft-cap", {"softcap": 0.0}),
    ("sinks", {"sinks": False}),
    ("ALiBi", {"alibi": False}),
    ("top-left alignment", {"alignment": "bottom_right"}),
    ("no causal mask", {"causal": True}),
)
Change = Callable[[Case], Case]


def list_removals(case: Case) -> tuple[tuple[str, Change], ...]:
    """Return the features of a case that can be removed, each with the function that removes it."""
    return tuple((name, remove) for name, remove in _iter_removals(case) if remove(case) != case)


def _iter_removals(case: Case) -> Iterator[tuple[str, Change]]:
    letters = STRIDE_LETTERS.get(case.strides, case.strides)
    if case.strides == "sliced" or case.strides in BROADCAST_STRIDES:
        yield f"{case.strides.replace('_', ' ')} tensors", lambda x: replace(x, strides="contiguous")
    else:
        for index, name in enumerate(("q", "k", "v", "dout")):
            words = f"a {STRIDE_WORDS.get((letters * 4)[index], '')} {name}"
            yield words, lambda x, index=index: _make_contiguous(x, index)  # type: ignore[misc]
    for words, fields in SIMPLE:
        name = words.format(values=VALUES.get(case.values, f"{case.values} values"), dtype=case.dtype, mask=case.mask)
        yield name, lambda x, fields=fields: replace(x, **fields)  # type: ignore[misc]
    if not case.probe or case.dropout:
        yield "dropout", lambda x: replace(x, dropout=0.0, probe="" if x.dropout else x.probe)
    for side, token in (("seqlens_q", "query"), ("seqlens_k", "key")):
        if max(getattr(case, side)) == 1:
            yield f"one {token} in each sequence", lambda x, side=side: _allow_two(x, side)  # type: ignore[misc]
    yield "lengths that are not multiples of 64", _fill_tiles
    yield "documents without queries", lambda x: _drop_documents(x, lambda q, k: k and not q)
    yield "documents without keys", lambda x: _drop_documents(x, lambda q, k: q and not k)
    yield "documents without tokens", lambda x: _drop_documents(x, lambda q, k: not q and not k)
    yield (
        "a head_dim that is not a multiple of 32",
        lambda x: replace(x, head_dim=-(-x.head_dim // 32) * 32, v_head_dim=-(-x.v_head_dim // 32) * 32),
    )
    yield f"v_head_dim {case.v_head_dim}", lambda x: replace(x, v_head_dim=x.head_dim)
    yield f"head_dim {case.head_dim}", _shrink_head_dim
    yield f"{case.num_heads} heads", _keep_few_heads
    if case.num_kv_heads == case.num_heads:
        yield "one head for each kv head", lambda x: replace(x, num_heads=2 * x.num_kv_heads)
    yield "several heads for each kv head", lambda x: replace(x, num_kv_heads=x.num_heads)
    yield "more keys than queries", lambda x: _lengthen_side(x, "seqlens_q")
    yield "fewer keys than queries", lambda x: _lengthen_side(x, "seqlens_k")
    for size in LIMITS:
        yield f"over {size} tokens", lambda x, size=size: _map_lengths(x, lambda n: min(n, size - TILE + n % TILE))  # type: ignore[misc]
    noun = "documents" if case.layout == "packed" else "batch rows"
    if case.padded:
        yield "padding on the left", lambda x: replace(x, layout="right_padded")
        yield "padding", lambda x: _make_even(x) if x.layout == "right_padded" else x
    yield f"{noun} of unequal lengths", lambda x: x if x.padded else _make_even(x)
    yield f"{len(case.seqlens_q)} {noun}", lambda x: _keep_extremes(x, 2)
    yield f"several {noun}", lambda x: x if x.padded else _keep_extremes(x, 1)
    if case.layout == "packed":
        yield (
            "a packed layout",
            lambda x: replace(x, layout="dense" if len({*zip(x.seqlens_q, x.seqlens_k)}) == 1 else "right_padded"),
        )


def _make_contiguous(case: Case, index: int) -> Case:
    letters = STRIDE_LETTERS.get(case.strides, case.strides)
    letters = letters[:index] + "c" + letters[index + 1 :]
    return replace(case, strides={text: name for name, text in STRIDE_LETTERS.items()}.get(letters, letters))


def _allow_two(case: Case, side: str) -> Case:
    return replace(case, **{side: tuple(n and max(2, n) for n in getattr(case, side))})  # type: ignore[arg-type]


def _lengthen_side(case: Case, side: str) -> Case:
    """Return the case with at least as many queries (or keys) as keys (or queries) in each document."""
    longer = replace(case, **{side: tuple(map(max, case.seqlens_q, case.seqlens_k))})  # type: ignore[arg-type]
    return longer if longer.seqlens_q != longer.seqlens_k else replace(longer, alignment="bottom_right")


def _shrink_head_dim(case: Case) -> Case:
    """Return the case with a head_dim of 64, and v's equal to it, or its own if that is still smaller or larger."""
    v = case.v_head_dim
    return replace(
        case, head_dim=64, v_head_dim=64 if v == case.head_dim else max(v, 80) if v > case.head_dim else min(v, 48)
    )


def _map_lengths(case: Case, change: Callable[[int], int]) -> Case:
    q, k = (tuple(map(change, lengths)) for lengths in (case.seqlens_q, case.seqlens_k))
    return replace(case, seqlens_q=q, seqlens_k=k)


def lengthen(case: Case) -> tuple[Case, ...]:
    """Return the case with two and with six tiles more, where mistakes differ that are alike within a tile or two."""
    return tuple(_map_lengths(case, lambda n, tiles=tiles: n and n + tiles * TILE + 2) for tiles in (2, 6))  # type: ignore[misc]


def _fill_tiles(case: Case) -> Case:
    """Return the case with whole tiles of queries and of keys; lengths stay unequal if they were."""
    alike = len({-(-q // TILE) for q in case.seqlens_q}) == 1 < len(set(case.seqlens_q))
    pairs = []
    for q, k in zip(case.seqlens_q, case.seqlens_k):
        more = TILE * (alike and q == max(case.seqlens_q))
        whole_q, whole_k = (n and n + -n % TILE + more for n in (q, k))
        apart = TILE * (whole_q == whole_k)
        pairs.append((whole_q + apart * (q > k), whole_k + apart * (k > q)))
    seqlens_q, seqlens_k = zip(*pairs)
    return replace(case, seqlens_q=seqlens_q, seqlens_k=seqlens_k)


def _drop_documents(case: Case, is_empty: Callable[[int, int], object]) -> Case:
    lengths = [(q, k) for q, k in zip(case.seqlens_q, case.seqlens_k) if not is_empty(q, k)]
    q, k = zip(*lengths) if lengths else (case.seqlens_q, case.seqlens_k)
    return replace(case, seqlens_q=q, seqlens_k=k)


def _make_even(case: Case) -> Case:
    """Return the case with all documents or rows as long as the longest."""
    count, (q, k) = len(case.seqlens_q), max(zip(case.seqlens_q, case.seqlens_k))
    layout = "dense" if case.padded else case.layout
    return replace(case, seqlens_q=(q,) * count, seqlens_k=(k,) * count, layout=layout)


def _keep_extremes(case: Case, count: int) -> Case:
    """Return the case with its longest document or row only, or with the shortest too, in their order."""
    pairs = tuple(zip(case.seqlens_q, case.seqlens_k))
    first, *others = sorted(range(len(pairs)), key=lambda index: -math.prod(pairs[index]))
    kept = sorted([first, *others[-1:]][:count])
    q, k = zip(*(pairs[index] for index in kept))
    return replace(case, seqlens_q=q, seqlens_k=k)


def _keep_few_heads(case: Case) -> Case:
    group = case.num_heads // case.num_kv_heads
    kv_heads = min(case.num_kv_heads, max(1, FEW_HEADS // group), 2 if group > 1 else FEW_HEADS)
    return replace(case, num_heads=group * kv_heads, num_kv_heads=kv_heads)


class _Reduction:
    """The calls on simpler variants of a wrong case, and the features that turned out to be needed."""

    def __init__(self, is_right: Callable[[Case], bool | None]) -> None:
        self._is_right, self._known = is_right, dict[Case, "bool | None"]()
        self.needed: list[tuple[str, Change]] = []

    def judge(self, case: Case) -> bool | None:
        """Return whether a case is right, None if it does not run, is too large or one of too many."""
        if case not in self._known:
            can_run = len(self._known) < MAX_CALLS and 0 < case.cells <= MAX_CELLS
            self._known[case] = self._is_right(case) if can_run else None
        return self._known[case]

    def reduce(self, case: Case, removals: tuple[tuple[str, Change], ...]) -> Case:
        """Return the wrong case without those of some features that it does not need; note the others."""
        simpler = case
        for _, remove in removals:
            simpler = remove(simpler)
        if simpler == case:
            return case
        is_right = self.judge(simpler)
        if is_right is False:
            return simpler
        if len(removals) == 1:
            self.needed += removals if is_right else ()
            return case
        middle = len(removals) // 2
        return self.reduce(self.reduce(case, removals[:middle]), removals[middle:])


def find_cause(case: Case, is_right: Callable[[Case], bool | None]) -> tuple[Case, tuple[str, ...]] | None:
    """Return the reduced case that is still wrong, and the features that it needs for that; None if there are many.

    `is_right` returns None for a case that the backend does not run.
    """
    reduction = _Reduction(is_right)
    if reduction.judge(case) is not False:  # it is right in another call, or too large
        return None
    reduced = reduction.reduce(case, list_removals(case))
    other = replace(reduced, seed=reduced.seed + 1)
    if reduction.judge(other) is not False:
        return None
    named = [name for name, remove in reduction.needed if remove(other) != other and reduction.judge(remove(other))]
    lengths = [name for name in named if re.match("over .* tokens", name)]
    named = [name for name in named if name not in lengths[1:]]
    for stronger, implied in IMPLIED:
        if re.search(stronger, ", ".join(named)):
            named = [name for name in named if not re.match(implied, name)]
    return (reduced, tuple(named)) if len(named) <= MAX_NAMED else None


def describe_cause(
    case: Case, is_right: Callable[[Case], bool | None], is_gross: bool = True
) -> tuple[Case, tuple[str, ...]]:
    """Return a wrong case reduced, and a line on the features with which it is still wrong, () if none was found.

    An error that is not `is_gross` may be too small to show in a smaller case, so sizes are not named then.
    """
    cause = find_cause(case, is_right)
    if cause is None:
        return case, ()
    reduced, needed = cause
    named = [name for name in needed if is_gross or not re.match(SIZES, name)]
    if not needed:
        return reduced, (f"{PLAIN}{max(reduced.seqlens_q)} tokens, head_dim {reduced.head_dim}",)
    if not named:
        return reduced, ()
    features = " and ".join(filter(None, (", ".join(named[:-1]), named[-1])))
    only = "only " if len(named) == len(needed) else ""
    return reduced, (f"{NEEDED}{only}{features}; right without {'it' if len(named) == 1 else 'any one of them'}",)


def describe_state(case: Case, is_right: Callable[[Case], bool | None], attempt: int = 0) -> str:
    """Return a line on what a kernel keeps of an earlier call, "" if nothing was found.

    The second of two calls is wrong. In another size, where no call came before, the same call is right. The first call
    of a size has new head_dims, or new lengths.
    """
    case = replace(case, probe="", dropout=0.0)  # a probe fixes the contents
    words, parameters = change_parameters(case)
    kv_heads = 1 if case.num_kv_heads > 1 else case.num_heads
    strides: Any = "transposed" if case.strides == "contiguous" else "contiguous"
    changes: list[tuple[str, Change]] = [
        (STALE_CONTENTS, lambda x: replace(make_decoy(x), backward=x.backward)),
        (STALE_PARAMETERS + words, lambda x: replace(x, **parameters)),
        (STALE_PARAMETERS + "number of kv heads", lambda x: replace(x, num_kv_heads=kv_heads)),
        (STALE_PARAMETERS + "strides", lambda x: replace(x, strides=strides)),
        (STALE_PARAMETERS + "lengths", lambda x: _map_lengths(x, lambda n: n and n + TILE)),
    ]
    start = 2 * attempt % len(UNUSED_HEAD_DIMS)
    wider = [replace(case, head_dim=size, v_head_dim=size) for size in UNUSED_HEAD_DIMS[start : start + 2]]
    longer = [_map_lengths(case, lambda n, more=more: n and n + more) for more in (TILE, 2 * TILE)]  # type: ignore[misc]
    for (first, later), tried in ((wider, changes), (longer, changes[:-1])):
        if later.cells > MAX_CELLS or not is_right(first):
            continue
        for line, change in tried:
            other = replace(change(first), seed=first.seed + 1)
            if replace(other, seed=first.seed) != first and is_right(other) is False and is_right(change(later)):
                return line
    return ""


def change_parameters(case: Case) -> tuple[str, dict[str, Any]]:
    """Return the names and other values of the parameters that a case has."""
    window: Any = tuple(size if size == UNBOUNDED else size // 2 + 3 * (size < 2) for size in case.window_size)
    changes = {"window": {"window_size": window}, "soft-cap": {"softcap": case.softcap / 4}}
    changes |= {"softmax scale": {"scale": case.scale / 4}, "chunks": {"attention_chunk": case.attention_chunk // 2}}
    used = {words: fields for words, fields in changes.items() if replace(case, **fields) != case}
    return " or ".join(used), {name: value for fields in used.values() for name, value in fields.items()}


def make_decoy(case: Case) -> Case:
    """Return a case with the same shapes and other contents: results cached by shape would spoil `case`."""
    return replace(
        case,
        seed=case.seed + 1,
        seqlens_q=case.seqlens_q[::-1],
        seqlens_k=case.seqlens_k[::-1],
        window_size=(UNBOUNDED, UNBOUNDED),
        softcap=0.0,
        scale=0.0,
        backward=False,
    )
