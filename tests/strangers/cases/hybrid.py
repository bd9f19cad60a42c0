"""Several documents in a row of a model with recurrent layers.

Their kernels (flash-linear-attention, causal-conv1d, mamba-ssm) run on GPUs. `separate_documents` replaces the model's
functions by what these compute: each document alone if its boundaries arrive.
"""

# mypy: ignore-errors
from __future__ import annotations

import itertools
import sys

import torch

from tests.strangers.cases.packing import Packed
from tests.strangers.loop import Loop


def by_documents(compute, boundaries: list[int], dim: int, row, *arguments, **options):
    """Return the outputs of a function for a row along a dimension, each document computed alone."""
    cuts = itertools.pairwise(boundaries)
    return torch.cat([compute(row.narrow(dim, a, b - a), *arguments, **options) for a, b in cuts], dim)


def separate_documents(model) -> None:
    """Give a model of gated delta nets kernels that take `seq_idx` and `cu_seqlens`."""
    module = sys.modules[type(model).__module__]
    convolve, recur = module.causal_conv1d_fn, module.torch_chunk_gated_delta_rule

    def causal_conv1d_fn(row, *arguments, seq_idx=None, **options):
        begins = [] if seq_idx is None else (seq_idx[0].diff().nonzero().flatten() + 1).tolist()
        return by_documents(convolve, [0, *begins, row.shape[-1]], -1, row, *arguments, **options)

    def chunk_gated_delta_rule(q, k, v, g, beta, cu_seqlens=None, **options):
        cuts = [0, q.shape[1]] if cu_seqlens is None else cu_seqlens.tolist()
        parts = [
            recur(*(value[:, a:b] for value in (q, k, v)), g=g[:, a:b], beta=beta[:, a:b], **options)[0]
            for a, b in itertools.pairwise(cuts)
        ]
        return torch.cat(parts, 1), None

    module.causal_conv1d_fn, module.torch_chunk_gated_delta_rule = causal_conv1d_fn, chunk_gated_delta_rule


def list_recurrent_layers(model) -> list:
    names = ("linear_attn", "mamba")
    found = [getattr(layer, name) for layer in model.model.layers for name in names if hasattr(layer, name)]
    assert found
    return found


class Kernels(Packed):
    """A batch of `DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)`, with kernels."""

    lost: tuple[str, ...] = ()  # what the broken half's layers do not get

    def load(self):
        model = super().load()
        separate_documents(model)
        for layer in list_recurrent_layers(model) if self.broken else ():
            layer.forward = self.drop(layer.forward)
        return model

    def drop(self, forward):
        return lambda *arguments, **options: forward(
            *arguments, **{name: value for name, value in options.items() if name not in self.lost}
        )

    def collate(self, documents):
        lengths = [len(tokens) for tokens, _ in documents]
        borders = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        return super().collate(documents) | {
            "cu_seq_lens_q": borders,
            "cu_seq_lens_k": borders,
            "max_length_q": max(lengths),
            "max_length_k": max(lengths),
            "seq_idx": torch.repeat_interleave(torch.tensor(lengths))[None].int(),
        }


class BoundariesDropped(Kernels):
    """huggingface/transformers#46093, modelscope/ms-swift#9618, NVIDIA-NeMo/Automodel#2147,
    EvolvingLMMs-Lab/lmms-engine#167: the layer above hands its recurrent layer no boundaries."""

    lost = ("cu_seq_lens_q", "seq_idx")


class RecurrenceLeaks(Kernels):
    """THUDM/slime#1686: the convolution is given the boundaries, the recurrence is not."""

    lost = ("cu_seq_lens_q",)


class ConvolutionLeaks(Kernels):
    """EvolvingLMMs-Lab/lmms-engine#167, NVIDIA-NeMo/Automodel#2147: without `seq_idx` the convolution sees the last
    tokens of the document before."""

    lost = ("seq_idx",)


class PositionsAlone(Kernels):
    """huggingface/transformers#46859, #46851, modelscope/ms-swift#9565: a batch with `position_ids` alone, from which
    attention finds the documents, but a recurrent layer does not."""

    def collate(self, documents):
        batch = super().collate(documents)
        return {name: batch[name] for name in ("input_ids", "labels", "position_ids")} if self.broken else batch


class NoBoundaries(Kernels):
    """PrimeIntellect-ai/prime-rl#2485: under sdpa a row of text has no boundaries, for attention and recurrence."""

    def compute_logits(self, batch):
        if self.broken:
            batch = {name: batch[name] for name in ("input_ids", "labels", "position_ids")}
            batch["attention_mask"] = torch.ones_like(batch["input_ids"])
        return super().compute_logits(batch)


class RecurrentLayersLeak(Packed):
    """modelscope/ms-swift#7981, unslothai/unsloth#4160, huggingface/transformers#44836: nothing of a recurrent layer
    begins again with a document."""

    def load(self):
        model = super().load()
        for layer in list_recurrent_layers(model) if not self.broken else ():
            compute = layer.forward
            layer.forward = lambda hidden_states, *arguments, compute=compute, attention_mask=None, **options: (
                by_documents(compute, self.borders, 1, hidden_states, *arguments, **options)
            )
        return model


class MambaLeaks(RecurrentLayersLeak):
    """NovaSky-AI/SkyRL#2056, huggingface/transformers#39677: Mamba's layers get no `seq_idx`."""


class PaddingReachesState(Loop):
    """state-spaces/mamba#66, huggingface/transformers#47086: the recurrent layers are not told what is padding."""

    def collate(self, documents):
        batch = super().collate(documents)
        lengths = batch["attention_mask"].sum(1).tolist()
        return {  # padded on the left
            name: torch.stack([row.roll(-length) for row, length in zip(value, lengths)])
            for name, value in batch.items()
        }

    def load(self):
        model = super().load()
        for layer in list_recurrent_layers(model) if self.broken else ():
            compute = layer.forward
            layer.forward = lambda *arguments, compute=compute, **options: compute(
                *arguments, **options | {"attention_mask": None}
            )
        return model
