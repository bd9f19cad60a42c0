"""One step of training with a packed row cut over ranks, the way OpenRLHF 0.11.2 takes it.

A batch of documents is unpadded to one row; labels are the next tokens, taken before anything is cut; tokens, positions
and labels are padded with zeros to a multiple of the ranks and sliced, and the padding is told to the attention as the
end of the last document (openrlhf/models/ring_attn_utils.py, `unpad_and_slice_tensor`). Each rank computes the
log-probabilities of its tokens; they are gathered by an all-gather whose backward is a reduce-scatter, cut and padded
back to the batch (`gather_and_pad_tensor`; flash_attn/utils/distributed.py, `AllGatherFunc`). So every rank has the
whole loss, a sum over the documents' tokens by their number in the optimiser's step (openrlhf/models/loss.py,
`aggregate_loss`; utils/loss_utils.py), and ranks times its share of the gradients, of which DeepSpeed takes the mean.
flash_attn.bert_padding is written out in torch here: it is a matter of indices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import pad

PADDING = 0  # OpenRLHF's `pad_id` of tokens, positions and labels alike


@dataclass(frozen=True)
class Row:
    """A batch of documents padded on the right, (documents, longest), and the same as one packed row, (1, total)."""

    ids: Tensor
    mask: Tensor
    tokens: Tensor
    labels: Tensor  # the next token of the padded batch, a document's last one too: the loss leaves that out
    positions: Tensor
    edges: tuple[int, ...]

    @property
    def total(self) -> int:
        """Return the tokens of the packed row, without padding."""
        return self.edges[-1]

    @property
    def wanted(self) -> Tensor:
        """Return what each token of the row is to predict, -1 where nothing: (total,)."""
        last = torch.zeros(self.total, dtype=torch.bool, device=self.tokens.device)
        last[[edge - 1 for edge in self.edges[1:]]] = True
        return self.labels[0].masked_fill(last, -1)


def row(documents: Sequence[Tensor], device: Any) -> Row:
    """Return documents as a batch and as a packed row."""
    longest = max(map(len, documents))
    ids = torch.stack([pad(document, (0, longest - len(document)), value=PADDING) for document in documents])
    mask = torch.stack([pad(torch.ones(len(document)), (0, longest - len(document))) for document in documents])
    ids, mask = ids.to(device), mask.to(device)
    kept = mask.bool()
    next_ones = torch.roll(ids, shifts=-1, dims=1)
    positions = (mask.cumsum(-1) - 1).clip(min=0).long()
    edges = tuple(accumulate(map(len, documents), initial=0))
    return Row(ids, mask, ids[kept][None], next_ones[kept][None], positions[kept][None], edges)


class Driver:
    """What a framework does around the model on one rank. `tell` gives the attention the documents' edges."""

    def __init__(self, group: Any, rank: int, ranks: int, tell: Callable[[Tensor], None]) -> None:
        self.group, self.rank, self.ranks, self.tell = group, rank, ranks, tell

    def padding(self, row: Row) -> int:
        """Return how many tokens are added to the row so that the ranks divide it."""
        return -row.total % self.ranks

    def mine(self, row: Row, x: Tensor) -> Tensor:
        """Return this rank's slice of a tensor of the row, (1, total), padded."""
        whole = pad(x, (0, self.padding(row)), value=PADDING)
        size = whole.shape[1] // self.ranks
        return whole[:, self.rank * size : (self.rank + 1) * size]

    def positions(self, row: Row) -> Tensor:
        """Return the position of each of this rank's tokens in its document."""
        return self.mine(row, row.positions)

    def labels(self, row: Row) -> Tensor:
        """Return what each of this rank's tokens is to predict."""
        return self.mine(row, row.labels)

    def edges(self, row: Row) -> Tensor:
        """Return where documents begin and end, `cu_seqlens`; the padding belongs to the last one."""
        edges = torch.tensor(row.edges, dtype=torch.int32, device=row.ids.device)
        edges[-1] += self.padding(row)
        return edges

    def whole(self, row: Row, x: Tensor) -> Tensor:
        """Return the row's values of all ranks in the order of its tokens, without padding: (total, …)."""
        gathered: Tensor = _AllGather.apply(x[0], self.group)
        return gathered[: row.total]

    def loss(self, row: Row, log_probs: Tensor, tokens: int) -> Tensor:
        """Return the row's part of the loss, `tokens` being those of the whole step; of each rank alike."""
        batch = torch.zeros_like(row.mask).masked_scatter(row.mask.bool(), log_probs)
        return -(batch[:, :-1] * row.mask[:, 1:]).sum() / tokens

    def backward(self, model: nn.Module, loss: Tensor) -> None:
        """Add this rank's gradients up in the model."""
        loss.backward()

    def reduced(self, gradient: Tensor) -> Tensor:
        """Return the gradient over all ranks: their mean, as DeepSpeed takes it."""
        found = gradient.clone()
        dist.all_reduce(found, group=self.group)
        return found / self.ranks


class _AllGather(torch.autograd.Function):
    """Gathers along the first dimension; the gradient of a rank's part is the sum of what all ranks have for it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return gathered(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        # A reduce-scatter, in two steps: not every gloo has that.
        summed = gradient.contiguous().clone()
        dist.all_reduce(summed, group=ctx.group)
        return summed.chunk(dist.get_world_size(ctx.group))[dist.get_rank(ctx.group)], None


def gathered(x: Tensor, group: Any) -> Tensor:
    """Return the tensors of all ranks, which are alike in shape, one after the other along the first dimension."""
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, x.contiguous(), group=group)
    return torch.cat(parts)


@dataclass(frozen=True)
class Step:
    """What a step made, gathered from all ranks: the same on each of them but for `own`.

    `seen` are the logits that the driver gathered, `logits` the same gathered plainly, padding too; `pulls` are the
    loss's gradients at these logits, weighed as each rank's gradients are in the mean: by `weights`.
    """

    loss: float
    seen: tuple[Tensor, ...]  # of each row: (total, vocabulary) float32
    logits: tuple[Tensor, ...]  # (total + padding, vocabulary)
    pulls: tuple[Tensor, ...]
    weights: tuple[float, ...]  # of each rank
    own: Mapping[str, Tensor]  # this rank's gradients before they are reduced
    gradients: Mapping[str, Tensor]  # after


def step(driver: Driver, model: nn.Module, rows: Sequence[Row], arithmetic: Callable[[], Any]) -> Step:
    """Run rows forward and backward, one after the other, as the batches of one optimiser's step."""
    tokens = sum(int((row.wanted >= 0).sum()) for row in rows)
    model.zero_grad(set_to_none=True)
    losses, seen, logits, pulls = 0.0, [], [], []
    weights = _weights(driver, rows[0].ids.device)
    for row in rows:
        driver.tell(driver.edges(row))
        ids, places = driver.mine(row, row.tokens), driver.positions(row)
        with arithmetic():
            found = model(ids, attention_mask=None, position_ids=places, use_cache=False).logits
        local = found.float()
        local.retain_grad()
        chosen = local.gather(-1, driver.labels(row)[..., None])[..., 0] - local.logsumexp(-1)
        loss = driver.loss(row, driver.whole(row, chosen), tokens)
        driver.backward(model, loss)
        losses += float(loss.detach())
        seen.append(driver.whole(row, local.detach()))
        logits.append(gathered(local.detach()[0], driver.group))
        pull = torch.zeros_like(local) if local.grad is None else local.grad
        pulls.append(gathered(pull[0] * weights[driver.rank], driver.group))
    own = {name: p.grad.detach().float().clone() for name, p in model.named_parameters() if p.grad is not None}
    return Step(losses, tuple(seen), tuple(logits), tuple(pulls), weights, own, _reduced(driver, model, own))


def _weights(driver: Driver, device: Any) -> tuple[float, ...]:
    """Return the weight with which each rank's gradient enters the reduced one."""
    one = torch.zeros(driver.ranks, device=device)
    one[driver.rank] = 1.0
    return tuple(driver.reduced(one).tolist())


def _reduced(driver: Driver, model: nn.Module, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the gradients over all ranks; a rank that has none for a parameter gives zeros, as DeepSpeed does."""
    return {
        name: driver.reduced(own.get(name, torch.zeros_like(parameter, dtype=torch.float32)))
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
