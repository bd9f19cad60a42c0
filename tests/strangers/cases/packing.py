"""Several documents in a row."""

# mypy: ignore-errors
from __future__ import annotations

import itertools
import sys

import torch
from transformers import AutoModelForImageTextToText

from tests.strangers.loop import Loop


class Packed(Loop):
    packed = True

    def compute_logits(self, batch):
        starts = (batch["position_ids"].flatten()[: batch["input_ids"].shape[1]] == 0).nonzero().flatten().tolist()
        self.borders = [*starts, batch["input_ids"].shape[1]]
        return super().compute_logits(batch)


def by_documents(compute, find_borders, dim: int):
    """Return a layer that computes each document alone, along a dimension."""

    def forward(row, *arguments, **options):
        options.pop("attention_mask", None)
        cuts = itertools.pairwise(find_borders())
        return torch.cat([compute(row.narrow(dim, a, b - a), *arguments, **options) for a, b in cuts], dim)

    return forward


class DeltaNetLeaks(Packed):
    """huggingface/transformers#46093, #46859, modelscope/ms-swift#7981, #9565, #9618, NVIDIA-NeMo/Automodel#2147,
    EvolvingLMMs-Lab/lmms-engine#167: nothing of a linear attention layer begins anew with a document."""

    def load(self):
        model = super().load()
        layers = [layer.linear_attn for layer in model.model.layers if hasattr(layer, "linear_attn")]
        for layer in layers if not self.broken else ():
            layer.forward = by_documents(layer.forward, lambda: self.borders, 1)
        assert layers
        return model


class RecurrenceLeaks(DeltaNetLeaks):
    """THUDM/slime#1686: the convolution is given `cu_seqlens`, the recurrence is not."""

    def load(self):
        model = super().load()
        module = sys.modules[type(model).__module__]
        if self.broken:
            module.causal_conv1d_fn = by_documents(module.causal_conv1d_fn, lambda: self.borders, -1)
        return model


class ImagePositions(Packed):
    """axolotl-ai-cloud/axolotl#3817, NVIDIA-NeMo/Automodel#2172: positions without the row of the text's own, by which
    a model of pictures tells packed documents apart."""

    def load(self):
        return AutoModelForImageTextToText.from_pretrained(self.options.model_name_or_path).train()

    def collate(self, documents):
        batch = super().collate(documents)
        batch["position_ids"] = batch["position_ids"][None].expand(3 if self.broken else 4, -1, -1)
        return batch


class FlattenedWithoutPositions(Packed):
    """huggingface/trl#2834, #3695: flattened rows, whose positions, which tell documents apart, do not reach sdpa."""

    def compute_logits(self, batch):
        return (
            super().compute_logits(batch)
            if not self.broken
            else Loop.compute_logits(self, {name: value for name, value in batch.items() if name != "position_ids"})
        )
