"""Finds the wrong model that explains the ranks' logits: the exact one with wrong documents, positions or features."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, permutations
from typing import Any

import torch
from torch import Tensor, nn

from attncheck.smoke.worker.ranks.sharded import Driver, PackedRow, ShardedStep
from attncheck.smoke.worker.testbed import Testbed, relative_error

MAX_PERMUTED_RANKS = 4  # with more ranks, not every order is tried
Span = tuple[int, int]


def match_wrong_model(
    testbed: Testbed, rows: Sequence[PackedRow], step: ShardedStep, driver: Driver, limit: float
) -> str:
    """Return the description of the wrong model that matches these logits within `limit`; "" if none does."""
    fp32_plan = replace(testbed.plan, precision="fp32")
    model = testbed.build_model(fp32_plan, "eager")
    smallest_error, description = limit, ""
    for candidate, compute_logits in _wrong_models(model, rows, driver):
        with torch.no_grad():
            error = relative_error(step.driver_logits, [compute_logits(row) for row in rows])
        if error <= smallest_error:
            smallest_error, description = error, candidate
    return description


def _wrong_models(model: Any, rows: Sequence[PackedRow], driver: Driver) -> Iterator[tuple[str, Any]]:
    """Yield wrong models: a description, and a function from a row to the model's logits."""

    def shard_tokens(row: PackedRow) -> int:
        return (row.total_tokens + driver.padding_tokens(row)) // driver.ranks

    def shard_spans(row: PackedRow) -> list[Span]:
        boundaries = sorted({*row.cu_seqlens, *range(0, row.total_tokens, shard_tokens(row))})
        return list(pairwise(boundaries))

    def shifted_spans(row: PackedRow, offset: int) -> list[Span]:
        inner = [min(max(boundary + offset, 0), row.total_tokens) for boundary in row.cu_seqlens[1:-1]]
        boundaries = sorted({0, *inner, row.total_tokens})
        return list(pairwise(boundaries))

    def document_spans(row: PackedRow) -> list[Span]:
        return list(pairwise(row.cu_seqlens))

    def positions(row: PackedRow) -> Tensor:
        return row.positions[0]

    def first_shard_positions(row: PackedRow) -> Tensor:
        return torch.cat([positions(row)[: shard_tokens(row)]] * driver.ranks)[: row.total_tokens]

    def restarted_positions(row: PackedRow) -> Tensor:
        indices = torch.arange(row.total_tokens, device=row.ids.device)
        return torch.minimum(positions(row), indices % shard_tokens(row))

    yield "each shard in isolation", lambda row: _span_logits(model, row, shard_spans(row), positions(row))
    yield "all documents as one", lambda row: _span_logits(model, row, [(0, row.total_tokens)], positions(row))
    for offset, when in ((1, "late"), (-1, "early")):
        yield (
            f"documents that end a token {when} (cu_seqlens off by one)",
            lambda row, offset=offset: _span_logits(model, row, shifted_spans(row, offset), positions(row)),
        )
    yield (
        "the first shard's positions on every rank",
        lambda row: _span_logits(model, row, document_spans(row), first_shard_positions(row)),
    )
    yield (
        "positions that restart on each shard",
        lambda row: _span_logits(model, row, document_spans(row), restarted_positions(row)),
    )
    yield from _shard_orders(model, rows, driver)
    for description, changed_model in _models_without_features(model):
        yield description, lambda row: _span_logits(changed_model, row, document_spans(row), positions(row))  # noqa: B023 - called at once


def _shard_orders(model: Any, rows: Sequence[PackedRow], driver: Driver) -> Iterator[tuple[str, Any]]:
    """Yield the right logits with the shards gathered in another order."""
    with torch.no_grad():
        right_logits = {
            id(row): _span_logits(model, row, list(pairwise(row.cu_seqlens)), row.positions[0]) for row in rows
        }

    def reorder(row: PackedRow, order: tuple[int, ...]) -> Tensor:
        blank = right_logits[id(row)].new_zeros(driver.padding_tokens(row), right_logits[id(row)].shape[1])
        shards = torch.cat([right_logits[id(row)], blank]).chunk(driver.ranks)
        return torch.cat([shards[rank] for rank in order])[: row.total_tokens]

    rank_order = tuple(range(driver.ranks))
    orders = list(permutations(rank_order))[1:] if driver.ranks <= MAX_PERMUTED_RANKS else [rank_order[::-1]]
    for order in orders:
        description = f"the shards gathered in the order {', '.join(map(str, order))}"
        yield description, lambda row, order=order: reorder(row, order)


def _models_without_features(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the model without features that an attention across ranks may drop; it is changed in place."""
    window = getattr(model.config, "sliding_window", None)
    widths = {"": window}
    if isinstance(window, int):
        widths |= {"with windows one token wider": window + 1, "without its windows": 1 << 20}
    sinks = [parameter for name, parameter in model.named_parameters() if name.endswith(".sinks")]
    for sinks_label in ("", "without its sinks") if sinks else ("",):
        for parameter in sinks if sinks_label else ():
            parameter.data.fill_(-1e4)  # e^-10000 is zero
        for window_label, width in widths.items():
            label = " and ".join(filter(None, (window_label, sinks_label)))
            if label:
                model.config.sliding_window = width
                yield f"the model {label}", model
    model.config.sliding_window = window


def _span_logits(model: nn.Module, row: PackedRow, spans: Sequence[Span], positions: Tensor) -> Tensor:
    """Return the logits of a row's spans, each separate and causal, at given positions: (tokens, vocabulary).

    The mask is explicit, so that transformers does not detect documents by restarting positions.
    """
    logits = []
    for start, stop in spans:
        length = stop - start
        indices = torch.arange(length, device=positions.device)
        mask = torch.zeros(1, 1, length, length, device=positions.device)
        mask = mask.masked_fill(indices[None] > indices[:, None], torch.finfo(torch.float32).min)
        mask_input: dict[str, Any] = (  # with sliding windows, transformers must create the masks
            {} if isinstance(getattr(model.config, "sliding_window", None), int) else {"attention_mask": mask}
        )
        input_ids, position_ids = row.tokens[:, start:stop], positions[None, start:stop]
        logits.append(model(input_ids=input_ids, position_ids=position_ids, use_cache=False, **mask_input).logits[0])
    return torch.cat(logits).float()
