"""Several documents in a row."""

# mypy: ignore-errors
from __future__ import annotations

from transformers import AutoModelForImageTextToText

from tests.strangers.loop import Loop


class Packed(Loop):
    packed = True

    def compute_logits(self, batch):
        starts = (batch["position_ids"].flatten()[: batch["input_ids"].shape[1]] == 0).nonzero().flatten().tolist()
        self.borders = [*starts, batch["input_ids"].shape[1]]
        return super().compute_logits(batch)


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
