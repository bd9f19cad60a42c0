"""Faults injected into how a framework drives a ring: OpenRLHF's way, spoilt in one place each.

Loaded in ranks by a `sitecustomize` on PYTHONPATH (`install_faults`), which adds them to the drivers once those are
imported.
An item then names a fault if it would name its scheme.
"""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attncheck.smoke.worker.ranks.sharded import Driver, PackedRow

HOOK = """
import importlib.machinery, sys

class Finder(importlib.machinery.PathFinder):
    def find_spec(name, path=None, target=None):
        if name != "attncheck.smoke.worker.ranks.parallel":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        inner = spec.loader.exec_module
        def exec_module(module):
            inner(module)
            from tests.smoke.parallel_faults import FAULTS
            module.DRIVERS.update(FAULTS)
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder)
"""


class MeanOfMeans(Driver):
    """The loss is the mean of the ranks' own means, as OpenRLHF's GPTLMLoss has it."""

    def row_loss(self, row: PackedRow, log_probs: Tensor, predicted_tokens: int) -> Tensor:
        shard_tokens = (row.total_tokens + self.padding_tokens(row)) // self.ranks
        is_predicted = row.targets >= 0
        rank_means = [
            (log_probs[start : start + shard_tokens] * is_predicted[start : start + shard_tokens]).sum()
            / is_predicted[start : start + shard_tokens].sum()
            for start in range(0, row.total_tokens, shard_tokens)
        ]
        return -torch.stack(rank_means).mean() / 2  # of two rows


class DividedTwice(Driver):
    """The loss is divided by the ring's size, and the gradients' mean taken after that."""

    def row_loss(self, row: PackedRow, log_probs: Tensor, predicted_tokens: int) -> Tensor:
        return super().row_loss(row, log_probs, predicted_tokens) / self.ranks


class ReducedTwice(Driver):
    """The gradients' mean is divided by the ring's size again."""

    def reduce_gradient(self, gradient: Tensor) -> Tensor:
        return super().reduce_gradient(gradient) / self.ranks


class Summed(Driver):
    """Gradients are added up, though each rank's has all ranks' losses in it."""

    def reduce_gradient(self, gradient: Tensor) -> Tensor:
        return super().reduce_gradient(gradient) * self.ranks


class Missing(Driver):
    """The last rank drops its gradients."""

    def backward(self, model: nn.Module, loss: Tensor) -> None:
        super().backward(model, loss)
        if self.rank == self.ranks - 1:
            model.zero_grad(set_to_none=True)


class MissingOne(Driver):
    """The last rank drops one parameter's gradient."""

    def backward(self, model: Any, loss: Tensor) -> None:
        super().backward(model, loss)
        if self.rank == self.ranks - 1:
            model.lm_head.weight.grad = None


class NotFinite(Driver):
    """One value of the first rank's gradients is NaN."""

    def backward(self, model: Any, loss: Tensor) -> None:
        super().backward(model, loss)
        if self.rank == 0:
            model.lm_head.weight.grad[0, 0] = torch.nan


class NotAdded(Driver):
    """The last rank's gradients are left out of the mean."""

    def reduce_gradient(self, gradient: Tensor) -> Tensor:
        return super().reduce_gradient(gradient * (self.rank < self.ranks - 1))


class NotShared(Driver):
    """Each rank keeps its own gradients."""

    def reduce_gradient(self, gradient: Tensor) -> Tensor:
        super().reduce_gradient(gradient)
        return gradient.clone()


class LabelsOfTheShard(Driver):
    """Labels are shifted after the row was cut: a shard's last token gets its own first one."""

    def local_labels(self, row: PackedRow) -> Tensor:
        return torch.roll(self.shard(row, row.tokens), shifts=-1, dims=1)


class LabelsUnshifted(Driver):
    """Each token is to predict itself."""

    def local_labels(self, row: PackedRow) -> Tensor:
        return self.shard(row, row.tokens)


class FirstPositions(Driver):
    """Every rank takes the first shard's positions."""

    def local_positions(self, row: PackedRow) -> Tensor:
        shard_tokens = (row.total_tokens + self.padding_tokens(row)) // self.ranks
        return row.positions[:, :shard_tokens]


class PositionsAnew(Driver):
    """Positions are counted from the shard's beginning."""

    def local_positions(self, row: PackedRow) -> Tensor:
        positions = self.shard(row, row.positions)
        return torch.minimum(positions, torch.arange(positions.shape[1])[None])


class EdgesLate(Driver):
    """Documents end a token late."""

    def cu_seqlens(self, row: PackedRow) -> Tensor:
        cu_seqlens = super().cu_seqlens(row)
        cu_seqlens[1:-1] += 1
        return cu_seqlens


class EdgesGone(Driver):
    """The row is one document."""

    def cu_seqlens(self, row: PackedRow) -> Tensor:
        return super().cu_seqlens(row)[[0, -1]]


class Local(Driver):
    """Documents end where a shard does: each rank attends to its own tokens."""

    def cu_seqlens(self, row: PackedRow) -> Tensor:
        cu_seqlens = super().cu_seqlens(row)
        shard_tokens = int(cu_seqlens[-1]) // self.ranks
        shard_starts = torch.arange(0, int(cu_seqlens[-1]), shard_tokens, dtype=cu_seqlens.dtype)
        return torch.unique(torch.cat([cu_seqlens, shard_starts]))


class Turned(Driver):
    """What ranks computed is gathered in the wrong order."""

    def gather(self, row: PackedRow, x: Tensor) -> Tensor:
        padded = torch.nn.functional.pad(super().gather(row, x), (0,) * (2 * x.dim() - 3) + (self.padding_tokens(row),))
        return torch.cat(padded.chunk(self.ranks)[::-1])[: row.total_tokens]


class PaddingCounts(Driver):
    """The padding that makes the ranks divide the row is not cut off before the loss."""

    def gather(self, row: PackedRow, x: Tensor) -> Tensor:
        from attncheck.smoke.worker.ranks import sharded

        if x.dim() > 2:
            return super().gather(row, x)
        gathered: Tensor = sharded._AllGather.apply(x[0], self.group)
        return gathered

    def row_loss(self, row: PackedRow, log_probs: Tensor, predicted_tokens: int) -> Tensor:
        is_predicted = torch.nn.functional.pad(row.targets >= 0, (0, self.padding_tokens(row)), value=True)
        return -(log_probs * is_predicted).sum() / predicted_tokens


class LastTokensCount(Driver):
    """Each document's last token is trained on what the padded batch has next."""

    def row_loss(self, row: PackedRow, log_probs: Tensor, predicted_tokens: int) -> Tensor:
        return -log_probs.sum() / predicted_tokens


class NoValueGradient(Driver):
    """The adapter loses the gradient of values; the forward is right."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        module = sys.modules["ring_flash_attn.adapters.hf_adapter"]
        recorded = module.llama3_flash_attn_varlen_func

        def spoilt(q: Tensor, k: Tensor, v: Tensor, **kwargs: Any) -> Any:
            return recorded(q, k, v.detach(), **kwargs)

        vars(spoilt)["inner"] = recorded.inner  # the next item starts from the genuine one
        vars(module)["llama3_flash_attn_varlen_func"] = spoilt


FAULTS: dict[str, type[Driver]] = {
    "mean_of_means": MeanOfMeans,
    "divided_twice": DividedTwice,
    "reduced_twice": ReducedTwice,
    "summed": Summed,
    "missing": Missing,
    "missing_one": MissingOne,
    "not_finite": NotFinite,
    "not_added": NotAdded,
    "not_shared": NotShared,
    "labels_of_the_shard": LabelsOfTheShard,
    "labels_unshifted": LabelsUnshifted,
    "first_positions": FirstPositions,
    "positions_anew": PositionsAnew,
    "edges_late": EdgesLate,
    "edges_gone": EdgesGone,
    "local": Local,
    "turned": Turned,
    "padding_counts": PaddingCounts,
    "last_tokens_count": LastTokensCount,
    "no_value_gradient": NoValueGradient,
}


def install_faults(folder: Path) -> str:
    """Write the hook and return the PYTHONPATH under which ranks know the faults."""
    (folder / "sitecustomize.py").write_text(HOOK)
    root = Path(__file__).resolve().parents[2]
    return os.pathsep.join((str(folder), str(root), *filter(None, [os.environ.get("PYTHONPATH")])))
