"""Known mistakes of attention kernels, each as the attention that a kernel with it computes.

To add one, yield its name, which completes "computed as if …", and the changed `DenseAttention`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attncheck.attention.reference.dense import DenseAttention, Places, alibi_bias
from attncheck.core.cases import UNBOUNDED, UNLIMITED, Layout

Mistakes = Iterator[tuple[str, DenseAttention]]
TILES = (16, 32, 64, 128, 256, 512, 1024, 2048)
GROUP_LIMITS = (1, 2, 4, 8, 16)
TABLES = (128, 64, 32, 16, 8, 4, 2)  # sizes of a table of heads, which a kernel reads modulo its size
HALF_TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
ROUNDED = {
    "product": "the products of q and k",
    "tanh": "the soft-cap's tanh",
    "scores": "the scores",
    "weights": "the weights",
    "lse": "the saved LSE",
    "delta": "delta = rowsum(dout * out)",
    "dp": "dP",
    "ds": "dS",
}


def iter_mistakes(right: DenseAttention) -> Mistakes:
    """Yield the name of each mistake that may concern this attention, with what it makes of it."""
    for family in (_masks, _documents, _tiles, _heads, _scores, _softmax, _gradients, _roundings):
        yield from family(right)


def _hook(right: DenseAttention, **hooks: Callable[[Tensor], Tensor]) -> DenseAttention:
    return replace(right, hooks={**right.hooks, **hooks})


def _with_mask(right: DenseAttention, **fields: Any) -> DenseAttention:
    case = replace(right.case, **fields)
    places = Places.of(case, str(right.q.device)) if "alignment" in fields else right.places
    bias = right.bias
    if right.slopes is not None and places is not right.places:
        bias = alibi_bias(places, right.slopes)
    return replace(right, visible=places.visible(case), bias=bias)


def _count(right: DenseAttention) -> Tensor:
    """Return the numbers of the query heads."""
    return torch.arange(right.case.num_heads, device=right.q.device).to(right.q.dtype)


def _masks(right: DenseAttention) -> Mistakes:
    case, places = right.case, right.places
    left, right_side = case.window_size
    if case.causal and right_side > 0:
        yield "the window's right side replaced the causal mask", _with_mask(right, causal=False)
    elif case.causal:
        yield "there was no causal mask", _with_mask(right, causal=False)
    else:
        yield "the mask was causal", _with_mask(right, causal=True)
    if case.seqlens_q != case.seqlens_k:
        other = "top_left" if case.alignment == "bottom_right" else "bottom_right"
        yield "the diagonal started in the other corner", _with_mask(right, alignment=other)
    if case.causal or case.windowed or case.attention_chunk:
        for step, words in ((1, "later"), (-1, "earlier")):
            moved = replace(places, q=places.q + step)
            yield f"the diagonal was one key {words}", replace(right, visible=moved.visible(case))
    if case.causal:  # without one of the sides: the window's is looked at below
        visible = replace(places, q=places.q - 1).visible(case) & right.visible
        yield "a query's own key was hidden", replace(right, visible=visible)
    if case.windowed:
        yield from {
            "there was no window": _with_mask(right, window_size=(UNBOUNDED, UNBOUNDED)),
            "the window's sides were swapped": _with_mask(right, window_size=(right_side, left)),
        }.items()
    for side, size, make in (("left", left, lambda n: (n, right_side)), ("right", right_side, lambda n: (left, n))):
        sizes = {
            "one larger": size + 1,
            "one smaller": size - 1,
            "twice as large": 2 * size,
            "half as large": size // 2,
            "infinite": UNLIMITED,
        }
        yield from (
            (f"the window's {side} side was {words}", _with_mask(right, window_size=make(other)))
            for words, other in sizes.items()
            if size != UNBOUNDED and other >= 0
        )
    if case.attention_chunk:
        sliding = (
            places.visible(replace(case, attention_chunk=0)) & (places.q - places.k < case.attention_chunk)[:, None]
        )
        moved = replace(places, q=places.q + places.k_start, k=_buffer(places.k))
        same = places.q_document == places.k_document
        yield from {
            "there were no attention chunks": _with_mask(right, attention_chunk=0),
            "chunks had one token more": _with_mask(right, attention_chunk=case.attention_chunk + 1),
            "chunks had one token less": _with_mask(right, attention_chunk=case.attention_chunk - 1),
            "chunks were a sliding window": replace(right, visible=sliding),
            "chunks were counted from the buffer's start": replace(right, visible=moved.visible(case, same)),
        }.items()
    if case.mask and right.visible.shape[-1] == right.visible.shape[-2]:
        yield "the mask was transposed", replace(right, visible=right.visible.mT)


def _buffer(k: Tensor) -> Tensor:
    """Return the positions of keys in the row."""
    return torch.arange(k.shape[-1], device=k.device).expand_as(k)


def _documents(right: DenseAttention) -> Mistakes:
    case, places = right.case, right.places
    if case.layout == "dense" and case.batch < 2:
        return
    shift = case.seqlen_k - case.seqlen_q if case.alignment == "bottom_right" else 0
    q = torch.arange(case.seqlen_q, device=places.q.device)[:, None].expand_as(places.q)
    row = replace(places, q=q + shift, k=_buffer(places.k))
    valid = (places.q_document >= 0) & (places.k_document >= 0)
    if case.layout == "packed" and len(case.seqlens_q) > 1:
        yield from {
            "packed documents were one": replace(right, visible=row.visible(case, valid)),
            "documents saw one another": replace(right, visible=places.visible(case, valid)),
        }.items()
        for count in (256, 128, 64, 32):
            if len(case.seqlens_q) > count:
                alike = places.q_document % count == places.k_document % count
                yield (
                    f"document numbers were taken modulo {count}",
                    replace(right, visible=row.visible(case, alike & valid)),
                )
        for step, words in ((1, "later"), (-1, "earlier")):
            moved = places.k_document.roll(step, -1), places.k.roll(step, -1)
            visible = replace(places, k_document=moved[0], k=moved[1]).visible(case)
            yield f"documents started one key {words}", replace(right, visible=visible)
    if case.padded:
        q_in, k_in = (places.q_document >= 0), torch.ones_like(places.k_document, dtype=torch.bool)
        yield "padding was attended to", replace(right, visible=row.visible(case, q_in & k_in))
        flipped: Layout = "left_padded" if case.layout == "right_padded" else "right_padded"
        other = Places.of(replace(case, layout=flipped), str(right.q.device))
        yield "padding was on the other side", replace(right, visible=other.visible(case))
    if len(set(case.seqlens_k)) > 1 or len(set(case.seqlens_q)) > 1:
        most = max(case.seqlens_k) - max(case.seqlens_q)
        own = torch.tensor([k - q for q, k in zip(case.seqlens_q, case.seqlens_k)], device=places.q.device)
        if case.alignment == "bottom_right" and bool((own != most).any()):
            moved_q = places.q - own[places.q_document.clamp_min(0)] + most
            visible = replace(places, q=moved_q).visible(case)
            yield "every document had the diagonal of the longest lengths", replace(right, visible=visible)


def _tiles(right: DenseAttention) -> Mistakes:
    """Yield masks that are applied, skipped or ended by tiles of queries or keys."""
    case, places = right.case, right.places
    same = places.q_document == places.k_document
    last = places.k_length - 1

    def hide(hidden: Tensor) -> DenseAttention:
        return replace(right, visible=right.visible & ~hidden[:, None])

    yield from {
        "the first key was hidden": hide(places.k == 0),
        "the last key was hidden": hide(places.k == last),
    }.items()
    for tile in TILES:
        if tile > max(128, *case.seqlens_k):
            break
        tail = places.k >= places.k_length // tile * tile
        q_tile, k_tile = (x - x % tile for x in (places.q, places.k))
        yield from {
            f"keys after the last whole tile of {tile} were hidden": hide(tail & (places.k_length % tile > 0)),
            f"keys from {tile} on were hidden": hide(places.k >= tile),
            f"the first tile of {tile} keys was hidden": hide(places.k < tile),
            f"the last tile of {tile} keys was hidden": hide(k_tile == last - last % tile),
            f"every second tile of {tile} keys was hidden": hide(k_tile // tile % 2 == 1),
        }.items()
        if case.mask:
            ignored = (places.q_document >= 0) & (_buffer(places.k) >= tile)
            yield f"the mask ended at key {tile}", replace(right, visible=right.visible | ignored[:, None])
        if case.causal or case.windowed or case.attention_chunk:
            by_tile = replace(places, q=q_tile, k=k_tile).visible(case)
            yield from {
                f"the mask held for whole tiles of {tile}": replace(right, visible=by_tile),
                f"the tiles of {tile} on the diagonal were left out": hide(same & (q_tile == k_tile)),
            }.items()
            open_diagonal = right.visible | (same & (q_tile == k_tile))[:, None]
            yield from {
                f"the tiles of {tile} on the diagonal had no mask": replace(right, visible=open_diagonal),
                f"queries before the first key of a tile of {tile} were left out": hide(places.q < k_tile),
                f"queries in tiles of {tile} before a key's tile were left out": hide(q_tile < k_tile),
            }.items()
        left = case.window_size[0]
        if left != UNBOUNDED:
            rest = places.visible(replace(case, window_size=(UNBOUNDED, case.window_size[1])))
            inside, own_row = places.k >= places.q - left, places.k >= places.q - _shift(right) - left
            is_first = places.q - _shift(right) < tile
            starts = {
                f"the tile's first query decided the window's left side, tile {tile}": places.k >= q_tile - left,
                f"the tile's last query decided the window's left side, tile {tile}": places.k
                >= q_tile + tile - 1 - left,
                f"the first query and the key's tile decided the window's left side, tile {tile}": inside
                | (k_tile >= q_tile - left),
                "the window's left side began at the query's own number": own_row,
                f"the window's left side began at the query's own number in the first {tile} queries": torch.where(
                    is_first, own_row, inside
                ),
            }
            yield from ((words, replace(right, visible=rest & kept[:, None])) for words, kept in starts.items())
            stop = -(-(k_tile + left + 1) // tile) * tile
            yield f"queries after the window of the first key in a tile of {tile} were left out", hide(places.q >= stop)


def _shift(right: DenseAttention) -> Tensor:
    """Return how far the diagonal of each query's document is moved, `(batch, seqlen_q, 1)`."""
    unmoved = Places.of(replace(right.case, alignment="top_left"), str(right.q.device))
    return right.places.q - unmoved.q


def _heads(right: DenseAttention) -> Mistakes:
    """Yield heads that read another head's keys, values, sinks or bias."""
    case = right.case
    heads, kv_heads = case.num_heads, case.num_kv_heads
    group = heads // kv_heads
    own = torch.arange(heads, device=right.q.device)
    maps: dict[str, Tensor] = {}
    if kv_heads > 1:
        maps = {
            "h mod the number of kv heads": own % kv_heads,
            "h >> ceil(log2(group))": own >> (group - 1).bit_length(),
            "0": own * 0,
            "h": own.clamp_max(kv_heads - 1),
            "that of the heads in reverse": kv_heads - 1 - own // group,
            "that of h - h mod 2": own // 2 * 2 // group,
            "that of the next head": (own + 1) % heads // group,
            "that of the head before": (own - 1) % heads // group,
            "the next one": (own // group + 1) % kv_heads,
        }
    for words, chosen in maps.items():
        if torch.equal(chosen, right.k_heads):
            continue
        yield from {
            f"query head h read kv head {words}": replace(right, k_heads=chosen, v_heads=chosen, dq_heads=chosen),
            f"query head h read k's head {words}": replace(right, k_heads=chosen, dq_heads=chosen),
            f"query head h read v's head {words}": replace(right, v_heads=chosen),
            f"the product of dS and K for query head h read k's head {words}": replace(right, dq_heads=chosen),
        }.items()
    tables = {f"h mod {size}": own % size for size in TABLES if size < heads} | {
        "h mod the group": own % group,
        "the first of the group": own // group * group,
        "h // group": own // group,
        "0": own * 0,
        "the next one": (own + 1) % heads,
        "in reverse": heads - 1 - own,
    }
    for words, chosen in tables.items():
        if torch.equal(chosen, own):
            continue
        if right.sinks is not None:
            yield f"head h had the sink of head {words}", replace(right, sinks=right.sinks[chosen])
        if right.bias is not None and right.bias.shape[1] == heads:
            noun = "slope" if case.alibi else "bias"
            yield f"head h had the {noun} of head {words}", replace(right, bias=right.bias[:, chosen])


def _scores(right: DenseAttention) -> Mistakes:
    """Yield scores with another scale, soft-cap or bias."""
    case, scale = right.case, right.scale
    padded = 1 << (case.head_dim - 1).bit_length()
    scales = {
        "1": 1.0,
        "1/sqrt(head_dim)": case.head_dim**-0.5,
        "1/sqrt(v_head_dim)": case.v_head_dim**-0.5,
        "1/sqrt of head_dim raised to a power of two": padded**-0.5,
        "1/head_dim": 1.0 / case.head_dim,
        "sqrt(head_dim)": case.head_dim**0.5,
        "applied twice": scale * scale,
        "its square root": scale**0.5,
        "without log2(e), though exponentials had base 2": scale * math.log(2.0),
        "multiplied by log2(e), though exponentials had base e": scale * math.log2(math.e),
    }
    for value, words in {value: words for words, value in reversed(scales.items())}.items():
        if abs(value / scale - 1.0) > 1e-3:
            yield f"the softmax scale was {words}", replace(right, scale=value)
    if right.softcap:
        cap = right.softcap
        yield from {
            "there was no soft-cap": replace(right, softcap=0.0),
            "the soft-cap came before the scale": replace(right, softcap=cap * scale),
            "the soft-cap did not multiply the tanh": _hook(right, tanh=lambda x: x / cap),
            "scores were cut off at the soft-cap": _hook(right, tanh=lambda x: torch.atanh(x).clamp(-1.0, 1.0)),
            "the soft-cap had no derivative": _hook(right, cap_slope=torch.ones_like),
        }.items()
        if right.bias is not None:
            bias = right.bias
            capped = _hook(replace(right, bias=None, softcap=0.0), product=lambda x: cap * torch.tanh((x + bias) / cap))
            yield "the soft-cap came after the bias", capped
    if right.bias is not None:
        noun = "ALiBi's bias" if case.alibi else "the mask's bias"
        yield f"there was no {noun.removeprefix('the ')}", replace(right, bias=None)
        for factor, words in ((2.0, "added twice"), (-1.0, "subtracted"), (scale, "multiplied by the softmax scale")):
            yield f"{noun} was {words}", replace(right, bias=right.bias * factor)
        if right.bias.shape[-1] == right.bias.shape[-2]:
            yield f"{noun} was transposed", replace(right, bias=right.bias.mT)
        yield f"every row had {noun} of the first", replace(right, bias=right.bias[:1])
    if right.slopes is not None:
        for name, dtype in HALF_TYPES.items():
            bias = alibi_bias(right.places, right.slopes, _round_to(dtype))
            yield f"ALiBi's key positions were in {name}", replace(right, bias=bias)
        buffer = replace(right.places, k=_buffer(right.places.k))
        yield from {
            "ALiBi's key positions were counted from the row's start": replace(
                right, bias=alibi_bias(buffer, right.slopes)
            ),
            "ALiBi's slopes were 2^(-8 (h + 1) / heads)": replace(
                right, bias=alibi_bias(right.places, 2.0 ** (-8.0 * (1 + _count(right)) / case.num_heads))
            ),
            "ALiBi's slopes were those of one head more": replace(
                right, bias=alibi_bias(right.places, right.slopes * 2.0 ** (8.0 / case.num_heads))
            ),
        }.items()


def _softmax(right: DenseAttention) -> Mistakes:
    """Yield sums of exponentials with other terms: sinks, hidden keys, parts without keys."""
    case, places = right.case, right.places
    yield from {
        "a hidden key had the score 0": replace(right, hidden_score=0.0),
        "a term of 1 was added to the softmax's sum": replace(right, extra=right.summed.new_ones(1)),
        "the values were averaged, not weighted": _hook(right, scores=lambda x: x * 0.0),
        "each hidden key added 1 to the softmax's sum": replace(right, extra=(~right.visible).sum(-1, keepdim=True)),
    }.items()
    if right.sinks is not None:
        yield from {
            "there were no sinks": replace(right, sinks=None),
            "the sinks were multiplied by the softmax scale": replace(right, sinks=right.sinks * right.scale),
            "the sinks were in base 2": replace(right, sinks=right.sinks * math.log(2.0)),
            "the sinks were multiplied by log2(e)": replace(right, sinks=right.sinks * math.log2(math.e)),
            "the sinks were subtracted": replace(right, sinks=-right.sinks),
            "the sinks were at most 1": replace(right, sinks=right.sinks.clamp_max(1.0)),
            "the sinks were not exponentiated": replace(right, sinks=right.sinks.clamp_min(1e-30).log()),
        }.items()
    for tile in TILES:
        if tile >= max(case.seqlens_k):
            break
        parts = torch.nn.functional.pad(right.visible, (0, -case.seqlen_k % tile)).unflatten(-1, (-1, tile)).any(-1)
        inside = torch.nn.functional.pad(places.q_document == places.k_document, (0, -case.seqlen_k % tile))
        empty = (inside.unflatten(-1, (-1, tile)).any(-1)[:, None] & ~parts).sum(-1, keepdim=True)
        if case.layout != "packed" and bool(empty.any()):
            yield (
                f"a part of {tile} keys without visible ones added 1 to the softmax's sum",
                replace(right, extra=empty),
            )
        if right.sinks is not None and case.layout != "packed":
            count = parts.sum(-1, keepdim=True).clamp_min(1)
            yield f"each part of {tile} keys added the sink", replace(right, sinks=right.sinks + count.log())
            rows = _by_tile(parts, 128).sum(-1, keepdim=True).clamp_min(1)
            yield (
                f"each part of {tile} keys that a tile of queries reads added the sink",
                replace(right, sinks=right.sinks + rows.log()),
            )


def _by_tile(x: Tensor, tile: int) -> Tensor:
    """Return `(batch, heads, rows, n)` bool with each row as any of its tile's rows."""
    rows = x.shape[2]
    padded = torch.nn.functional.pad(x, (0, 0, 0, -rows % tile)).unflatten(2, (-1, tile)).any(3)
    by_row: Tensor = padded.repeat_interleave(tile, 2)[:, :, :rows]
    return by_row


def _gradients(right: DenseAttention) -> Mistakes:
    """Yield mistakes that only a backward can make."""
    case, scale = right.case, right.scale
    group = case.num_heads // case.num_kv_heads
    yield from {
        "delta = rowsum(dout * out) was left out": _hook(right, delta=torch.zeros_like),
        "delta was subtracted twice": _hook(right, delta=lambda x: 2.0 * x),
        "delta was added": _hook(right, delta=torch.neg),
        "the backward's LSE was in base 2": _hook(right, lse=lambda x: x / math.log(2.0)),
    }.items()
    if right.softcap:
        yield "the soft-cap's derivative was applied twice", _hook(right, cap_slope=torch.square)
    factors = {"multiplied by the softmax scale again": scale, "not multiplied by the softmax scale": 1.0 / scale}
    if case.scale:
        factors["multiplied by 1/sqrt(head_dim), not by the softmax scale"] = case.head_dim**-0.5 / scale
    factors |= {"the group's mean": 1.0 / group} if group > 1 else {}
    for words, factor in factors.items():
        for name in ("dq", "dk", "dv") if "mean" not in words else ("dk", "dv"):
            yield f"{name} was {words}", _hook(right, **{name: lambda x, factor=factor: factor * x})
    member = torch.arange(case.num_heads, device=right.q.device) % group
    counted = {f"the first {limit} heads": member < limit for limit in GROUP_LIMITS if limit < group}
    counted |= {"the last head": member == group - 1} if group > 1 else {}
    for words, chosen in counted.items():
        yield f"only {words} of a group counted", replace(right, summed=chosen.to(right.summed.dtype))
    keys_mean = right.k.mean(2, keepdim=True)[:, right.k_heads]
    yield (
        "the saved LSE was that of keys less their mean",
        _hook(right, lse=lambda x: x - (right.q * keys_mean).sum(-1, keepdim=True) * scale),
    )
    if right.sinks is not None:
        sinks = right.sinks
        yield (
            "the saved LSE left out the sinks",
            _hook(right, lse=lambda x: x + torch.log1p(-torch.exp(sinks - x).clamp_max(1.0 - 1e-7))),
        )
        documents = right.places.q_document[:, None]
        ends = {"last": documents == len(case.seqlens_q) - 1, "first": documents == 0}
        for words, chosen in ends.items() if len(case.seqlens_q) > 1 else ():
            only = _hook(right, dsink_rows=chosen.to(right.q.dtype).mul)
            yield f"only the {words} sequence's gradient of the sinks counted", only
        yield "the sign of the sinks' gradient was wrong", _hook(right, dsink_rows=torch.neg)
    yield "dout's heads were in reverse", replace(right, dout=right.dout.flip(1))


def _roundings(right: DenseAttention) -> Mistakes:
    """Yield quantities that are kept in too few bits."""
    own = right.case.dtype
    for name, dtype in HALF_TYPES.items():
        for point, words in ROUNDED.items():
            if (point == "tanh" and not right.softcap) or (
                point == "product" and not right.softcap and right.bias is None
            ):
                continue
            yield (
                f"{words} {'were' if words.endswith('s') and point != 'ds' else 'was'} in {name}",
                _hook(right, **{point: _round_to(dtype)}),
            )
        if own != name:
            tensors: dict[str, Any] = {x: _round_to(dtype)(getattr(right, x)) for x in ("q", "k", "v", "dout")}
            yield f"the inputs were in {name}", replace(right, **tensors)
        yield (
            f"the scaled q was in {name}",
            replace(right, q=_round_to(dtype)(right.q * right.scale) / right.scale),
        )
        factor = right.scale * math.log2(math.e)
        yield f"the scaled k was in {name}", replace(right, k=_round_to(dtype)(right.k * factor) / factor)
    cut = _cut_to_bfloat16
    if own == "bfloat16":
        names = ("weights", "ds", "out", "dq", "dk", "dv")
        yield from {
            "float32 was cut to bfloat16, not rounded": _hook(right, **dict.fromkeys(names, cut)),
            "results were cut to bfloat16, not rounded": _hook(right, **dict.fromkeys(names[2:], cut)),
            "the weights and dS were cut to bfloat16, not rounded": _hook(right, **dict.fromkeys(names[:2], cut)),
        }.items()


def _round_to(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda x: x.to(dtype).to(x.dtype)


def _cut_to_bfloat16(x: Tensor) -> Tensor:
    return (x.float().contiguous().view(torch.int32) & -(1 << 16)).view(torch.float32).to(x.dtype)
