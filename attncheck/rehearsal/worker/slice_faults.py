"""Faults of attention over the slices of a row: the tokens of the row that each token would then attend to."""

from collections.abc import Iterator

import torch
from torch import Tensor

from attncheck.rehearsal.worker.evidence import causal
from attncheck.rehearsal.worker.layouts import ORDER_TEXTS, ORDERS, Order, list_places


def iter_slice_faults(places: Tensor, documents: Tensor, order: Order) -> Iterator[tuple[str, Tensor]]:
    """Yield each fault, described, and the attention that it causes between tokens: (seqlen, seqlen) bool.

    `places` (ranks, tokens) is the position of each rank's tokens in the row, `documents` (seqlen,) each one's
    document.
    """
    length = places.numel()
    holder, local = torch.empty(length, dtype=torch.long), torch.empty(length, dtype=torch.long)
    holder[places] = torch.arange(places.shape[0])[:, None].expand_as(places)
    local[places] = torch.arange(places.shape[1]).expand_as(places)
    same_rank, same_document = _equal(holder), _equal(documents)
    before = causal(length)
    here = "its tokens do not attend to the row's parts on other ranks: attention covers each rank"
    yield f"{here}'s slice alone", same_rank & before & same_document
    in_slice = same_rank & (local[:, None] >= local[None, :])
    yield f"{here}'s slice only, in its token order", in_slice & same_document
    yield f"{here}'s slice only, including the earlier documents in it", in_slice
    numbers = _number_documents(places, documents)
    text = "tokens attend to other ranks' documents: cu_seqlens describe each rank's slice, not the row"
    yield text, _equal(numbers) & before
    for other in ORDERS:
        if other != order and (other != "zigzag" or places.shape[1] % 2 == 0):
            assumed = _assume_places(places, other)
            text = f"attention takes the row's {ORDER_TEXTS[order]} for {other} ones"
            sees = assumed[:, None] >= assumed[None, :]
            yield text, sees & same_document
            yield f"{text}, and therefore document boundaries too", sees & _equal(documents[assumed])


def _assume_places(places: Tensor, order: Order) -> Tensor:
    """Return each token's position if the slices were in another order."""
    assumed = torch.empty(places.numel(), dtype=torch.long)
    assumed[places] = list_places(order, *places.shape)
    return assumed


def _number_documents(places: Tensor, documents: Tensor) -> Tensor:
    """Return, for each token of a row, the number of its document among those of its rank's slice."""
    numbers = torch.empty_like(documents)
    for rank in range(places.shape[0]):
        own = documents[places[rank]]
        begins = torch.cat([torch.zeros(1, dtype=torch.bool), own[1:] != own[:-1]])
        numbers[places[rank]] = begins.cumsum(0)
    return numbers


def _equal(values: Tensor) -> Tensor:
    return values[:, None] == values[None, :]
