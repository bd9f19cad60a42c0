"""Context parallel: each rank has a slice of every packed row, and attention gathers the keys of all."""

# mypy: ignore-errors
from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn import functional
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from tests.strangers.loop import IGNORED, Loop


def gather(part):
    """Return the slices (batch, heads, tokens, d) of all ranks, one after another."""
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, part.contiguous())
    return torch.cat(parts, 2)


class Ring(torch.autograd.Function):
    """Attention of this rank's queries over the keys and values of all ranks: (batch, heads, tokens, d) each."""

    @staticmethod
    def forward(ctx, query, key, value, mask, scale, is_stale):
        ctx.save_for_backward(query, key, value, mask)
        ctx.scale, ctx.is_stale = scale, is_stale
        return functional.scaled_dot_product_attention(query, gather(key), gather(value), mask, scale=scale)

    @staticmethod
    def backward(ctx, gradient):
        query, key, value, mask = ctx.saved_tensors
        size, rank = dist.get_world_size(), dist.get_rank()
        keys = (
            [key.repeat(1, 1, size, 1), value.repeat(1, 1, size, 1)] if ctx.is_stale else [gather(key), gather(value)]
        )
        with torch.enable_grad():
            own = [x.detach().requires_grad_() for x in (query, *keys)]
            out = functional.scaled_dot_product_attention(*own, mask, scale=ctx.scale)
            dq, *others = torch.autograd.grad(out, own, gradient)
        for other in others:
            dist.all_reduce(other)
        dk, dv = (other.split(key.shape[2], 2)[rank].contiguous() for other in others)
        return dq, dk, dv, None, None, None


class Sliced(Loop):
    attention = "gathered"
    shares_rows = True
    is_stale = False

    def wrap(self, model):
        return model

    def load(self):
        def attend(module, query, key, value, attention_mask, scaling=None, **options):
            groups = query.shape[1] // key.shape[1]
            key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
            out = Ring.apply(query, key, value, self.mask, scaling, self.is_stale)
            return out.transpose(1, 2).contiguous(), None

        ALL_ATTENTION_FUNCTIONS.register("gathered", attend)
        ALL_MASK_ATTENTION_FUNCTIONS.register("gathered", lambda *arguments, **options: None)
        return super().load()

    def collate(self, documents):
        """Return this rank's slice of a row; its labels are those of the tokens that follow."""
        size = self.world
        columns = [
            [token for own, _ in documents for token in own],
            [label for _, own in documents for label in (*own[1:], IGNORED)],
            [place for own, _ in documents for place in range(len(own))],
            [number for number, (own, _) in enumerate(documents) for _ in own],
        ]
        missing = -len(columns[0]) % size
        fill = (self.tokenizer.pad_token_id, IGNORED, 0, -1)
        row = [torch.tensor(column + [value] * missing) for column, value in zip(columns, fill)]
        length = len(row[0]) // size
        own = slice(self.rank * length, (self.rank + 1) * length)
        same = row[3][own][:, None] == row[3][None, :]
        causal = torch.arange(len(row[0]))[own][:, None] >= torch.arange(len(row[0]))[None, :]
        return {
            "input_ids": row[0][own][None],
            "position_ids": row[2][own][None],
            "labels": row[1][own][None],
            "mask": (same & causal)[None, None],
        }

    def count(self, batches):
        total = torch.tensor(sum(int((batch["labels"] != IGNORED).sum()) for batch in batches))
        dist.all_reduce(total)
        return int(total)

    def compute_loss(self, batch, batches, total):
        self.mask = batch["mask"]
        inputs = {name: batch[name] for name in ("input_ids", "position_ids")}
        logits = self.forward(**inputs, use_cache=False).logits[0].float()
        return functional.cross_entropy(logits, batch["labels"][0], ignore_index=IGNORED, reduction="sum") / total

    def reduce(self):
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad)


class CountsWithoutContext(Sliced):
    """verl-project/verl#5983, #6049: targets are counted over data parallel ranks, not over context parallel ones."""

    def count(self, batches):
        return super().count(batches) / (self.world if self.broken else 1)


class StaleKeys(Sliced):
    """huggingface/diffusers#14265, NVIDIA-NeMo/Automodel#3157: the ring's backward reads its first keys each turn."""

    @property
    def is_stale(self):
        return self.broken


class SliceMeans(Sliced):
    """verl-project/verl#6836, #6609: each context parallel rank divides by the targets of its own slice."""

    def count(self, batches):
        own = sum(int((batch["labels"] != IGNORED).sum()) for batch in batches)
        return own * self.world if self.broken else super().count(batches)


class ContextScaledTwice(Sliced):
    """NVIDIA/Megatron-LM#673, #906: gradients are multiplied by the size of the context parallel group once more."""

    def reduce(self):
        super().reduce()
        for parameter in self.model.parameters():
            parameter.grad *= self.world if self.broken else 1
