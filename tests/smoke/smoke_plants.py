"""Faults planted into transformers or the packer, one at a time: what users' stacks really get wrong.

Where a fault is one of an implementation, it is planted into "sdpa" only, so that the eager reference stays right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attncheck.smoke.worker import trainer
from attncheck.smoke.worker.data import packing
from attncheck.smoke.worker.data.packing import IGNORED, Batch

Attention = Callable[..., Any]


@contextmanager
def put(owner: Any, name: str, value: Any) -> Iterator[None]:
    kept = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, kept)


@contextmanager
def sdpa(change: Callable[[Attention], Attention], name: str = "sdpa") -> Iterator[None]:
    """Replace transformers' sdpa by a change of it."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    mapping: Any = ALL_ATTENTION_FUNCTIONS._global_mapping
    kept = mapping["sdpa"]
    mapping[name] = change(kept)
    try:
        yield
    finally:
        mapping["sdpa"] = kept
        if name != "sdpa":
            del mapping[name]


@contextmanager
def batches(change: Callable[[Batch], Batch]) -> Iterator[None]:
    """Replace what the packer makes by a change of it."""
    inner = packing.batch

    def batch(*arguments: Any) -> Batch:
        return change(inner(*arguments))

    with put(packing, "batch", batch):
        yield


def boundary_off_by_one() -> Any:
    def change(batch: Batch) -> Batch:
        where = batch.inputs["position_ids"].clone()
        spot = batch.spots[1]
        where[spot.row, spot.start] = where[spot.row, spot.start - 1] + 1
        where[spot.row, spot.start + 1 : spot.stop] -= 1
        return replace(batch, inputs={**batch.inputs, "position_ids": where})

    return batches(change)


def labels_across_documents() -> Any:
    def change(batch: Batch) -> Batch:
        ids = batch.inputs["input_ids"]
        labels = torch.cat([ids[:, 1:], torch.full_like(ids[:, :1], IGNORED)], 1)
        return replace(batch, labels=labels)

    return batches(change)


def mask_dropped() -> Any:
    def change(inner: Attention) -> Attention:
        return lambda module, q, k, v, mask, **words: inner(module, q, k, v, None, **words)

    return sdpa(change)


def window_ignored() -> Any:
    def change(inner: Attention) -> Attention:
        def attend(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **words: Any) -> Any:
            words.pop("sliding_window", None)
            return inner(module, q, k, v, None, **words)

        return attend

    return sdpa(change)


def looks_ahead() -> Any:
    """A mask that lets every token see the next one of its document."""

    def change(inner: Attention) -> Attention:
        def attend(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **words: Any) -> Any:
            size = q.shape[2]
            ahead = torch.ones(size, size, dtype=torch.bool, device=q.device).tril(1)
            return inner(module, q, k, v, ahead if mask is None else mask | mask.roll(-1, -2), **words)

        return attend

    return sdpa(change)


def rope_twice() -> Any:
    def change(inner: Attention) -> Attention:
        def attend(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **words: Any) -> Any:
            half = q.shape[-1] // 2
            angle = torch.arange(q.shape[2], device=q.device)[:, None] / 10000 ** (
                torch.arange(half, device=q.device) / half
            )
            cos, sin = (f(angle).repeat(1, 2).to(q.dtype) for f in (torch.cos, torch.sin))

            def turned(x: Tensor) -> Tensor:
                return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin

            return inner(module, turned(turned(q)), turned(k), v, mask, **words)

        return attend

    return sdpa(change)


def kv_tiled() -> Any:
    """kv heads repeated as a whole instead of each by itself."""

    def change(inner: Attention) -> Attention:
        def attend(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **words: Any) -> Any:
            times = q.shape[1] // k.shape[1]
            groups, module.num_key_value_groups = module.num_key_value_groups, 1
            try:
                return inner(module, q, k.repeat(1, times, 1, 1), v.repeat(1, times, 1, 1), mask, **words)
            finally:
                module.num_key_value_groups = groups

        return attend

    return sdpa(change)


def scaled(factor: float) -> Any:
    def change(inner: Attention) -> Attention:
        def attend(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **words: Any) -> Any:
            return inner(module, q * factor, k, v, mask, **words)

        return attend

    return sdpa(change)


def key_gradient_lost() -> Any:
    def change(inner: Attention) -> Attention:
        return lambda module, q, k, v, mask, **words: inner(module, q, k.detach(), v, mask, **words)

    return sdpa(change)


def becomes_eager() -> Any:
    from transformers.models.llama.modeling_llama import eager_attention_forward

    def change(inner: Attention) -> Attention:
        def attend(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **words: Any) -> Any:
            size = q.shape[2]
            seen = torch.ones(size, size, dtype=torch.bool, device=q.device).tril() if mask is None else mask
            added = torch.zeros_like(seen, dtype=q.dtype).masked_fill(~seen, torch.finfo(q.dtype).min)
            return eager_attention_forward(module, q, k, v, added, **words)

        return attend

    return sdpa(change)


def noisy_backward() -> Any:
    """A kernel whose gradient of q differs from call to call in a few last bits."""

    class Noisy(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            noise = torch.rand(gradients[0].shape, generator=_CHANCE)
            return gradients[0] * (1 + 0.01 * (noise < 1e-3)).to(gradients[0].dtype)

    def change(inner: Attention) -> Attention:
        return lambda module, q, k, v, mask, **words: inner(module, Noisy.apply(q), k, v, mask, **words)

    return sdpa(change)


_CHANCE = torch.Generator().manual_seed(99)


def rows_joined() -> Any:
    """All rows of a batch attended to as one."""

    def change(inner: Attention) -> Attention:
        def attend(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **words: Any) -> Any:
            b, _, s, _ = q.shape
            joined = [x.transpose(0, 1).reshape(1, x.shape[1], b * s, -1) for x in (q, k, v)]
            out, weights = inner(module, *joined, None, **words)
            return out.reshape(b, s, *out.shape[2:]), weights

        return attend

    return sdpa(change)


def nan_in_hollow_rows() -> Any:
    """A softmax over nothing, as kernels without a guard for rows that see no key make it."""

    def change(inner: Attention) -> Attention:
        def attend(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **words: Any) -> Any:
            out, weights = inner(module, q, k, v, mask, **words)
            if mask is not None:
                hollow = ~(mask if mask.dtype == torch.bool else mask > -1).any(-1).any(1)
                out = out.masked_fill(hollow[:, :, None, None], float("nan"))
            return out, weights

        return attend

    return sdpa(change)


def nan_at_a_step(step: int) -> Any:
    calls = [0]

    def change(inner: Attention) -> Attention:
        def attend(module: Any, *arguments: Any, **words: Any) -> Any:
            calls[0] += 1
            out, weights = inner(module, *arguments, **words)
            return (out * float("nan") if calls[0] > 10 * step else out), weights

        return attend

    return sdpa(change)


def mean_of_means() -> Any:
    """Each document's mean loss, averaged over documents, whatever the number of tokens in each."""

    def backward(self: Any, found: list[Batch]) -> float:
        total, count = 0.0, sum(len(batch.spots) for batch in found)
        for batch in found:
            logits = self.model(**batch.inputs).logits
            for spot in batch.spots:
                part = logits[spot.row, spot.start : spot.stop], batch.labels[spot.row, spot.start : spot.stop]
                loss = self.loss(*part) / max(1, spot.stop - spot.start - 1) / count
                loss.backward(retain_graph=True)
                total += float(loss.detach())
        return total

    return put(trainer.Trainer, "backward", backward)


def accumulation_not_divided() -> Any:
    """Batches' mean losses added up: the gradient is too large by the accumulation, which AdamW hides."""
    inner = trainer.Trainer.backward

    def backward(self: Any, found: list[Batch]) -> float:
        return sum(inner(self, [batch]) for batch in found) / len(found)

    return put(trainer.Trainer, "backward", backward)


def padding_attended() -> Any:
    def change(inner: Attention) -> Attention:
        def attend(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **words: Any) -> Any:
            plain = mask is not None and mask.shape[0] > 1
            return inner(module, q, k, v, None if plain else mask, **words)

        return attend

    return sdpa(change)


def without_mask() -> Any:
    """An implementation of a name that transformers' masks do not know: it is given none."""

    def change(inner: Attention) -> Attention:
        return inner

    return sdpa(change, name="my_attention")
