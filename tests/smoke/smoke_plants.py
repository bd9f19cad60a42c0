"""Faults injected into transformers or the packer, one at a time: what users' stacks really get wrong.

If a fault is one of an implementation, it is injected into "sdpa" only, so that the eager reference stays right.
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
from attncheck.smoke.worker.data.packing import IGNORE_INDEX, Batch

Attention = Callable[..., Any]


@contextmanager
def replaced_attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextmanager
def changed_sdpa(change: Callable[[Attention], Attention], name: str = "sdpa") -> Iterator[None]:
    """Replace transformers' sdpa by `change` of it, registered as `name`."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    mapping: Any = ALL_ATTENTION_FUNCTIONS._global_mapping
    original = mapping["sdpa"]
    mapping[name] = change(original)
    try:
        yield
    finally:
        mapping["sdpa"] = original
        if name != "sdpa":
            del mapping[name]


@contextmanager
def changed_batches(change: Callable[[Batch], Batch]) -> Iterator[None]:
    """Replace the packer's batches by `change` of them."""
    inner = packing.make_batch

    def batch(*arguments: Any) -> Batch:
        return change(inner(*arguments))

    with replaced_attribute(packing, "make_batch", batch):
        yield


def boundary_off_by_one() -> Any:
    def change(batch: Batch) -> Batch:
        position_ids = batch.inputs["position_ids"].clone()
        spot = batch.spans[1]
        position_ids[spot.row, spot.start] = position_ids[spot.row, spot.start - 1] + 1
        position_ids[spot.row, spot.start + 1 : spot.stop] -= 1
        return replace(batch, inputs={**batch.inputs, "position_ids": position_ids})

    return changed_batches(change)


def labels_across_documents() -> Any:
    def change(batch: Batch) -> Batch:
        ids = batch.inputs["input_ids"]
        labels = torch.cat([ids[:, 1:], torch.full_like(ids[:, :1], IGNORE_INDEX)], 1)
        return replace(batch, labels=labels)

    return changed_batches(change)


def mask_dropped() -> Any:
    def change(inner: Attention) -> Attention:
        return lambda module, q, k, v, mask, **kwargs: inner(module, q, k, v, None, **kwargs)

    return changed_sdpa(change)


def window_ignored() -> Any:
    def change(inner: Attention) -> Attention:
        def attend(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **kwargs: Any) -> Any:
            kwargs.pop("sliding_window", None)
            return inner(module, q, k, v, None, **kwargs)

        return attend

    return changed_sdpa(change)


def looks_ahead() -> Any:
    """A mask that lets every token see the next one of its document."""

    def change(inner: Attention) -> Attention:
        def attend(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **kwargs: Any) -> Any:
            size = q.shape[2]
            mask_ahead = torch.ones(size, size, dtype=torch.bool, device=q.device).tril(1)
            return inner(module, q, k, v, mask_ahead if mask is None else mask | mask.roll(-1, -2), **kwargs)

        return attend

    return changed_sdpa(change)


def rope_twice() -> Any:
    def change(inner: Attention) -> Attention:
        def attend(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **kwargs: Any) -> Any:
            half = q.shape[-1] // 2
            angle = torch.arange(q.shape[2], device=q.device)[:, None] / 10000 ** (
                torch.arange(half, device=q.device) / half
            )
            cos, sin = (f(angle).repeat(1, 2).to(q.dtype) for f in (torch.cos, torch.sin))

            def rotate(x: Tensor) -> Tensor:
                return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin

            return inner(module, rotate(rotate(q)), rotate(k), v, mask, **kwargs)

        return attend

    return changed_sdpa(change)


def kv_tiled() -> Any:
    """kv heads repeated as a whole instead of each on its own."""

    def change(inner: Attention) -> Attention:
        def attend(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **kwargs: Any) -> Any:
            times = q.shape[1] // k.shape[1]
            groups, module.num_key_value_groups = module.num_key_value_groups, 1
            try:
                return inner(module, q, k.repeat(1, times, 1, 1), v.repeat(1, times, 1, 1), mask, **kwargs)
            finally:
                module.num_key_value_groups = groups

        return attend

    return changed_sdpa(change)


def scaled_queries(factor: float) -> Any:
    def change(inner: Attention) -> Attention:
        def attend(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **kwargs: Any) -> Any:
            return inner(module, q * factor, k, v, mask, **kwargs)

        return attend

    return changed_sdpa(change)


def key_gradient_lost() -> Any:
    def change(inner: Attention) -> Attention:
        return lambda module, q, k, v, mask, **kwargs: inner(module, q, k.detach(), v, mask, **kwargs)

    return changed_sdpa(change)


def becomes_eager() -> Any:
    from transformers.models.llama.modeling_llama import eager_attention_forward

    def change(inner: Attention) -> Attention:
        def attend(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **kwargs: Any) -> Any:
            size = q.shape[2]
            visible = torch.ones(size, size, dtype=torch.bool, device=q.device).tril() if mask is None else mask
            added = torch.zeros_like(visible, dtype=q.dtype).masked_fill(~visible, torch.finfo(q.dtype).min)
            return eager_attention_forward(module, q, k, v, added, **kwargs)

        return attend

    return changed_sdpa(change)


def noisy_backward() -> Any:
    """A kernel whose gradient of q differs from call to call in a few last bits."""

    class Noisy(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            noise = torch.rand(gradients[0].shape, generator=_NOISE_GENERATOR)
            return gradients[0] * (1 + 0.01 * (noise < 1e-3)).to(gradients[0].dtype)

    def change(inner: Attention) -> Attention:
        return lambda module, q, k, v, mask, **kwargs: inner(module, Noisy.apply(q), k, v, mask, **kwargs)

    return changed_sdpa(change)


_NOISE_GENERATOR = torch.Generator().manual_seed(99)


def rows_joined() -> Any:
    """All rows of a batch attended to as one."""

    def change(inner: Attention) -> Attention:
        def attend(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **kwargs: Any) -> Any:
            b, _, s, _ = q.shape
            joined = [x.transpose(0, 1).reshape(1, x.shape[1], b * s, -1) for x in (q, k, v)]
            out, weights = inner(module, *joined, None, **kwargs)
            return out.reshape(b, s, *out.shape[2:]), weights

        return attend

    return changed_sdpa(change)


def nan_in_masked_rows() -> Any:
    """A softmax over nothing, as kernels without a guard for rows that see no key make it."""

    def change(inner: Attention) -> Attention:
        def attend(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **kwargs: Any) -> Any:
            out, weights = inner(module, q, k, v, mask, **kwargs)
            if mask is not None:
                empty_rows = ~(mask if mask.dtype == torch.bool else mask > -1).any(-1).any(1)
                out = out.masked_fill(empty_rows[:, :, None, None], float("nan"))
            return out, weights

        return attend

    return changed_sdpa(change)


def nan_at_a_step(step: int) -> Any:
    calls = [0]

    def change(inner: Attention) -> Attention:
        def attend(module: Any, *arguments: Any, **kwargs: Any) -> Any:
            calls[0] += 1
            out, weights = inner(module, *arguments, **kwargs)
            return (out * float("nan") if calls[0] > 10 * step else out), weights

        return attend

    return changed_sdpa(change)


def nan_gradients() -> Any:
    def change(inner: Attention) -> Attention:
        def attend(module: Any, *arguments: Any, **kwargs: Any) -> Any:
            out, weights = inner(module, *arguments, **kwargs)
            out.register_hook(lambda gradient: gradient * float("nan"))
            return out, weights

        return attend

    return changed_sdpa(change)


def mean_of_means() -> Any:
    """Each document's mean loss, averaged over documents, whatever the number of tokens in each."""

    def backward(self: Any, batches: list[Batch]) -> float:
        total, count = 0.0, sum(len(batch.spans) for batch in batches)
        for batch in batches:
            logits = self.model(**batch.inputs).logits
            for spot in batch.spans:
                part = logits[spot.row, spot.start : spot.stop], batch.labels[spot.row, spot.start : spot.stop]
                loss = self.loss_function(*part) / max(1, spot.stop - spot.start - 1) / count
                loss.backward(retain_graph=True)
                total += float(loss.detach())
        return total

    return replaced_attribute(trainer.Trainer, "backward", backward)


def accumulation_not_divided() -> Any:
    """Batches' mean losses added up: the gradient is too large by the accumulation, which AdamW hides."""
    inner = trainer.Trainer.backward

    def backward(self: Any, batches: list[Batch]) -> float:
        return sum(inner(self, [batch]) for batch in batches) / len(batches)

    return replaced_attribute(trainer.Trainer, "backward", backward)


def padding_attended() -> Any:
    def change(inner: Attention) -> Attention:
        def attend(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **kwargs: Any) -> Any:
            plain = mask is not None and mask.shape[0] > 1
            return inner(module, q, k, v, None if plain else mask, **kwargs)

        return attend

    return changed_sdpa(change)


def without_mask() -> Any:
    """An implementation of a name that transformers' masks do not know: it is given none."""

    def change(inner: Attention) -> Attention:
        return inner

    return changed_sdpa(change, name="my_attention")
