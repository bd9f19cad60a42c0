"""Names the wrong model that logits over ranks are those of: the exact one, driven wrongly in one way or another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, permutations
from typing import Any

import torch
from torch import Tensor, nn

from attncheck.smoke.worker.ranks.sharded import Driver, Row, Step
from attncheck.smoke.worker.testbed import Bed, relative

MOST_PERMUTED = 4  # ranks of which every order is tried
Span = tuple[int, int]


def nearest(bed: Bed, rows: Sequence[Row], made: Step, driver: Driver, limit: float) -> str:
    """Return the wrong model, in words, whose logits these are within `limit`; "" where it is none that is known."""
    exact = replace(bed.plan, precision="fp32")
    model = bed.model(exact, "eager")
    best, name = limit, ""
    for words, way in _ways(model, rows, driver):
        with torch.no_grad():
            error = relative(made.seen, [way(each) for each in rows])
        if error <= best:
            best, name = error, words
    return name


def _ways(model: Any, rows: Sequence[Row], driver: Driver) -> Iterator[tuple[str, Any]]:
    """Yield wrong ways in words, each a function from a row to its logits."""

    def size(each: Row) -> int:
        return (each.total + driver.padding(each)) // driver.ranks

    def cut(each: Row) -> list[Span]:
        edges = sorted({*each.edges, *range(0, each.total, size(each))})
        return list(pairwise(edges))

    def moved(each: Row, by: int) -> list[Span]:
        inner = [min(max(edge + by, 0), each.total) for edge in each.edges[1:-1]]
        edges = sorted({0, *inner, each.total})
        return list(pairwise(edges))

    def whole(each: Row) -> list[Span]:
        return list(pairwise(each.edges))

    def places(each: Row) -> Tensor:
        return each.positions[0]

    def of_the_first(each: Row) -> Tensor:
        return torch.cat([places(each)[: size(each)]] * driver.ranks)[: each.total]

    def anew(each: Row) -> Tensor:
        starts = torch.arange(each.total, device=each.ids.device)
        return torch.minimum(places(each), starts % size(each))

    yield "each shard by itself", lambda each: _logits(model, each, cut(each), places(each))
    yield "all documents as one", lambda each: _logits(model, each, [(0, each.total)], places(each))
    for by, words in ((1, "late"), (-1, "early")):
        yield (
            f"documents that end a token {words} (cu_seqlens off by one)",
            lambda each, by=by: _logits(model, each, moved(each, by), places(each)),
        )
    yield (
        "the first shard's positions on every rank",
        lambda each: _logits(model, each, whole(each), of_the_first(each)),
    )
    yield "positions that begin anew on each shard", lambda each: _logits(model, each, whole(each), anew(each))
    yield from _orders(model, rows, driver)
    for words, spoilt in _without(model):
        yield words, lambda each: _logits(spoilt, each, whole(each), places(each))  # noqa: B023 - called at once


def _orders(model: Any, rows: Sequence[Row], driver: Driver) -> Iterator[tuple[str, Any]]:
    """Yield the right logits with the shards in another order."""
    with torch.no_grad():
        right = {id(each): _logits(model, each, list(pairwise(each.edges)), each.positions[0]) for each in rows}

    def ordered(each: Row, order: tuple[int, ...]) -> Tensor:
        blank = right[id(each)].new_zeros(driver.padding(each), right[id(each)].shape[1])
        shards = torch.cat([right[id(each)], blank]).chunk(driver.ranks)
        return torch.cat([shards[rank] for rank in order])[: each.total]

    known = tuple(range(driver.ranks))
    orders = list(permutations(known))[1:] if driver.ranks <= MOST_PERMUTED else [known[::-1]]
    for order in orders:
        words = f"the shards gathered in the order {', '.join(map(str, order))}"
        yield words, lambda each, order=order: ordered(each, order)


def _without(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the model without what an attention over ranks may drop; it is changed in place."""
    window = getattr(model.config, "sliding_window", None)
    widths = {"": window}
    if isinstance(window, int):
        widths |= {"with windows one token wider": window + 1, "without its windows": 1 << 20}
    sinks = [parameter for name, parameter in model.named_parameters() if name.endswith(".sinks")]
    for dropped in ("", "without its sinks") if sinks else ("",):
        for parameter in sinks if dropped else ():
            parameter.data.fill_(-1e4)  # e^-10000 is nothing
        for words, width in widths.items():
            told = " and ".join(filter(None, (words, dropped)))
            if told:
                model.config.sliding_window = width
                yield f"the model {told}", model
    model.config.sliding_window = window


def _logits(model: nn.Module, each: Row, spans: Sequence[Span], places: Tensor) -> Tensor:
    """Return the logits of spans of a row, each by itself, causal, at the given positions: (total, vocabulary).

    The mask is written out, so that transformers does not look for documents in positions that begin anew.
    """
    found = []
    for start, stop in spans:
        length = stop - start
        own = torch.arange(length, device=places.device)
        mask = torch.zeros(1, 1, length, length, device=places.device)
        mask = mask.masked_fill(own[None] > own[:, None], torch.finfo(torch.float32).min)
        words: dict[str, Any] = {} if _windowed(model) else {"attention_mask": mask}
        ids, where = each.tokens[:, start:stop], places[None, start:stop]
        found.append(model(input_ids=ids, position_ids=where, use_cache=False, **words).logits[0])
    return torch.cat(found).float()


def _windowed(model: Any) -> bool:
    """Say whether layers have windows, so that transformers must make their masks."""
    return isinstance(getattr(model.config, "sliding_window", None), int)
