"""Faults planted into how a framework drives a ring: OpenRLHF's way, spoilt in one place each.

Loaded in ranks by a `sitecustomize` on PYTHONPATH (`plant`), which adds them to the drivers as soon as those are there.
An item then names a fault where it would name its scheme.
"""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attncheck.smoke.worker.ranks.sharded import Driver, Row

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

    def loss(self, row: Row, log_probs: Tensor, tokens: int) -> Tensor:
        size = (row.total + self.padding(row)) // self.ranks
        counts = row.wanted >= 0
        parts = [
            (log_probs[start : start + size] * counts[start : start + size]).sum() / counts[start : start + size].sum()
            for start in range(0, row.total, size)
        ]
        return -torch.stack(parts).mean() / 2  # of two rows


class DividedTwice(Driver):
    """The loss is divided by the ring's size, and the gradients' mean taken after that."""

    def loss(self, row: Row, log_probs: Tensor, tokens: int) -> Tensor:
        return super().loss(row, log_probs, tokens) / self.ranks


class ReducedTwice(Driver):
    """The gradients' mean is divided by the ring's size again."""

    def reduced(self, gradient: Tensor) -> Tensor:
        return super().reduced(gradient) / self.ranks


class Summed(Driver):
    """Gradients are added up, though each rank's has all ranks' losses in it."""

    def reduced(self, gradient: Tensor) -> Tensor:
        return super().reduced(gradient) * self.ranks


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

    def reduced(self, gradient: Tensor) -> Tensor:
        return super().reduced(gradient * (self.rank < self.ranks - 1))


class NotShared(Driver):
    """Each rank keeps its own gradients."""

    def reduced(self, gradient: Tensor) -> Tensor:
        super().reduced(gradient)
        return gradient.clone()


class LabelsOfTheShard(Driver):
    """Labels are shifted after the row was cut: a shard's last token gets its own first one."""

    def labels(self, row: Row) -> Tensor:
        return torch.roll(self.mine(row, row.tokens), shifts=-1, dims=1)


class LabelsUnshifted(Driver):
    """Each token is to predict itself."""

    def labels(self, row: Row) -> Tensor:
        return self.mine(row, row.tokens)


class FirstPositions(Driver):
    """Every rank takes the first shard's positions."""

    def positions(self, row: Row) -> Tensor:
        size = (row.total + self.padding(row)) // self.ranks
        return row.positions[:, :size]


class PositionsAnew(Driver):
    """Positions are counted from the shard's beginning."""

    def positions(self, row: Row) -> Tensor:
        mine = self.mine(row, row.positions)
        return torch.minimum(mine, torch.arange(mine.shape[1])[None])


class EdgesLate(Driver):
    """Documents end a token late."""

    def edges(self, row: Row) -> Tensor:
        edges = super().edges(row)
        edges[1:-1] += 1
        return edges


class EdgesGone(Driver):
    """The row is one document."""

    def edges(self, row: Row) -> Tensor:
        return super().edges(row)[[0, -1]]


class Local(Driver):
    """Documents end where a shard does: each rank attends to its own tokens."""

    def edges(self, row: Row) -> Tensor:
        edges = super().edges(row)
        size = int(edges[-1]) // self.ranks
        own = torch.arange(0, int(edges[-1]), size, dtype=edges.dtype)
        return torch.unique(torch.cat([edges, own]))


class Turned(Driver):
    """What ranks computed is gathered in the wrong order."""

    def whole(self, row: Row, x: Tensor) -> Tensor:
        padded = torch.nn.functional.pad(super().whole(row, x), (0,) * (2 * x.dim() - 3) + (self.padding(row),))
        return torch.cat(padded.chunk(self.ranks)[::-1])[: row.total]


class PaddingCounts(Driver):
    """The padding that makes the ranks divide the row is not cut off before the loss."""

    def whole(self, row: Row, x: Tensor) -> Tensor:
        from attncheck.smoke.worker.ranks import sharded

        if x.dim() > 2:
            return super().whole(row, x)
        gathered: Tensor = sharded._AllGather.apply(x[0], self.group)
        return gathered

    def loss(self, row: Row, log_probs: Tensor, tokens: int) -> Tensor:
        counts = torch.nn.functional.pad(row.wanted >= 0, (0, self.padding(row)), value=True)
        return -(log_probs * counts).sum() / tokens


class LastTokensCount(Driver):
    """Each document's last token is trained on what the padded batch has next."""

    def loss(self, row: Row, log_probs: Tensor, tokens: int) -> Tensor:
        return -log_probs.sum() / tokens


class NoValueGradient(Driver):
    """The adapter loses the gradient of values; the forward is right."""

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        module = sys.modules["ring_flash_attn.adapters.hf_adapter"]
        counted = module.llama3_flash_attn_varlen_func

        def spoilt(q: Tensor, k: Tensor, v: Tensor, **more: Any) -> Any:
            return counted(q, k, v.detach(), **more)

        vars(spoilt)["inner"] = counted.inner  # the next item takes the genuine one again
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


def plant(folder: Path) -> str:
    """Write the hook and return the PYTHONPATH under which ranks know the faults."""
    (folder / "sitecustomize.py").write_text(HOOK)
    root = Path(__file__).resolve().parents[2]
    return os.pathsep.join((str(folder), str(root), *filter(None, [os.environ.get("PYTHONPATH")])))
