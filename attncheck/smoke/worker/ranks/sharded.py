"""One training step with a packed row split across ranks, in the way of OpenRLHF 0.11.2.

A batch of documents is unpadded to one row. Labels are the next tokens, taken before the row is split. Tokens,
positions and labels are padded with zeros to a multiple of the ranks and sliced; for the attention the padding is the
end of the last document (openrlhf/models/ring_attn_utils.py, `unpad_and_slice_tensor`). Each rank computes the
log-probabilities of its tokens. They are gathered by an all-gather whose backward is a reduce-scatter, cut and padded
back to the batch (`gather_and_pad_tensor`; flash_attn/utils/distributed.py, `AllGatherFunc`). Every rank thus has the
full loss: the sum over the documents' tokens divided by their number in the optimiser's step (openrlhf/models/loss.py,
`aggregate_loss`; utils/loss_utils.py). Its gradients are its share times the number of ranks, and DeepSpeed takes their
mean. flash_attn.bert_padding is implemented in torch here, because it only computes indices.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import pad

PADDING_ID = 0  # OpenRLHF's `pad_id` for tokens, positions and labels


@dataclass(frozen=True)
class PackedRow:
    """Documents as a batch padded on the right, (documents, longest), and as one packed row, (1, total_tokens)."""

    ids: Tensor
    mask: Tensor
    tokens: Tensor
    labels: Tensor  # the next token of the padded batch, also for a document's last token, which the loss ignores
    positions: Tensor
    cu_seqlens: tuple[int, ...]

    @property
    def total_tokens(self) -> int:
        """The number of tokens of the packed row, without padding."""
        return self.cu_seqlens[-1]

    @property
    def targets(self) -> Tensor:
        """The target of each token of the row, -1 if there is none: (total_tokens,)."""
        is_last = torch.zeros(self.total_tokens, dtype=torch.bool, device=self.tokens.device)
        is_last[[end - 1 for end in self.cu_seqlens[1:]]] = True
        return self.labels[0].masked_fill(is_last, -1)


def pack_row(documents: Sequence[Tensor], device: Any) -> PackedRow:
    """Return documents as a padded batch and as a packed row."""
    longest = max(map(len, documents))
    ids = torch.stack([pad(document, (0, longest - len(document)), value=PADDING_ID) for document in documents])
    mask = torch.stack([pad(torch.ones(len(document)), (0, longest - len(document))) for document in documents])
    ids, mask = ids.to(device), mask.to(device)
    is_token = mask.bool()
    next_tokens = torch.roll(ids, shifts=-1, dims=1)
    positions = (mask.cumsum(-1) - 1).clip(min=0).long()
    cu_seqlens = tuple(accumulate(map(len, documents), initial=0))
    return PackedRow(ids, mask, ids[is_token][None], next_tokens[is_token][None], positions[is_token][None], cu_seqlens)


class Driver:
    """A framework's operations around the model on one rank; `set_cu_seqlens` passes the boundaries to the
    attention."""

    def __init__(self, group: Any, rank: int, ranks: int, set_cu_seqlens: Callable[[Tensor], None]) -> None:
        self.group, self.rank, self.ranks, self.set_cu_seqlens = group, rank, ranks, set_cu_seqlens

    def padding_tokens(self, row: PackedRow) -> int:
        """Return the number of tokens that make the row's length a multiple of the ranks."""
        return -row.total_tokens % self.ranks

    def shard(self, row: PackedRow, x: Tensor) -> Tensor:
        """Return this rank's shard of a tensor of the row, (1, total_tokens), padded."""
        padded = pad(x, (0, self.padding_tokens(row)), value=PADDING_ID)
        shard_tokens = padded.shape[1] // self.ranks
        return padded[:, self.rank * shard_tokens : (self.rank + 1) * shard_tokens]

    def local_positions(self, row: PackedRow) -> Tensor:
        """Return the position of each of this rank's tokens in its document."""
        return self.shard(row, row.positions)

    def local_labels(self, row: PackedRow) -> Tensor:
        """Return the label of each of this rank's tokens."""
        return self.shard(row, row.labels)

    def cu_seqlens(self, row: PackedRow) -> Tensor:
        """Return the boundaries of the row's documents, int32; the padding belongs to the last one."""
        boundaries = torch.tensor(row.cu_seqlens, dtype=torch.int32, device=row.ids.device)
        boundaries[-1] += self.padding_tokens(row)
        return boundaries

    def gather(self, row: PackedRow, x: Tensor) -> Tensor:
        """Return the values of all ranks in the order of the row's tokens, without padding: (total_tokens, …)."""
        gathered: Tensor = _AllGather.apply(x[0], self.group)
        return gathered[: row.total_tokens]

    def row_loss(self, row: PackedRow, log_probs: Tensor, predicted_tokens: int) -> Tensor:
        """Return the row's part of the loss, the same on each rank; `predicted_tokens` is for the full step."""
        batch = torch.zeros_like(row.mask).masked_scatter(row.mask.bool(), log_probs)
        return -(batch[:, :-1] * row.mask[:, 1:]).sum() / predicted_tokens

    def backward(self, model: nn.Module, loss: Tensor) -> None:
        """Accumulate this rank's gradients in the model."""
        loss.backward()

    def reduce_gradient(self, gradient: Tensor) -> Tensor:
        """Return a gradient reduced over all ranks: their mean, as in DeepSpeed."""
        summed = gradient.clone()
        dist.all_reduce(summed, group=self.group)
        return summed / self.ranks


class _AllGather(torch.autograd.Function):
    """Gathers along the first dimension; the gradient of a rank's part is the sum of all ranks' gradients of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return all_gather(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        # A reduce-scatter, in two steps, because some gloo builds lack it.
        summed = gradient.contiguous().clone()
        dist.all_reduce(summed, group=ctx.group)
        return summed.chunk(dist.get_world_size(ctx.group))[dist.get_rank(ctx.group)], None


def all_gather(x: Tensor, group: Any) -> Tensor:
    """Return the tensors of all ranks, which have the same shape, concatenated along the first dimension."""
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, x.contiguous(), group=group)
    return torch.cat(parts)


@dataclass(frozen=True)
class ShardedStep:
    """The results of a step, gathered from all ranks: identical on each of them, except for `local_gradients`.

    `driver_logits` are the logits that the driver gathered; `padded_logits` are gathered directly, with padding.
    `logit_gradients` are the loss's gradients at these, weighted by `rank_weights`, like each rank's gradients in the
    mean.
    """

    loss: float
    driver_logits: tuple[Tensor, ...]  # for each row: (total_tokens, vocabulary) float32
    padded_logits: tuple[Tensor, ...]  # (total_tokens + padding, vocabulary)
    logit_gradients: tuple[Tensor, ...]
    rank_weights: tuple[float, ...]
    local_gradients: Mapping[str, Tensor]  # this rank's gradients before they are reduced
    gradients: Mapping[str, Tensor]  # the same, reduced over all ranks


def run_step(
    driver: Driver, model: nn.Module, rows: Sequence[PackedRow], autocast_context: Callable[[], Any]
) -> ShardedStep:
    """Run rows forward and backward, one after another, as the batches of one optimiser's step."""
    predicted_tokens = sum(int((row.targets >= 0).sum()) for row in rows)
    model.zero_grad(set_to_none=True)
    total_loss, driver_logits, padded_logits, logit_gradients = 0.0, [], [], []
    rank_weights = _rank_weights(driver, rows[0].ids.device)
    for row in rows:
        driver.set_cu_seqlens(driver.cu_seqlens(row))
        input_ids, position_ids = driver.shard(row, row.tokens), driver.local_positions(row)
        with autocast_context():
            logits = model(input_ids, attention_mask=None, position_ids=position_ids, use_cache=False).logits
        local_logits = logits.float()
        local_logits.retain_grad()
        log_probs = local_logits.gather(-1, driver.local_labels(row)[..., None])[..., 0] - local_logits.logsumexp(-1)
        loss = driver.row_loss(row, driver.gather(row, log_probs), predicted_tokens)
        driver.backward(model, loss)
        total_loss += float(loss.detach())
        driver_logits.append(driver.gather(row, local_logits.detach()))
        padded_logits.append(all_gather(local_logits.detach()[0], driver.group))
        logit_gradient = torch.zeros_like(local_logits) if local_logits.grad is None else local_logits.grad
        logit_gradients.append(all_gather(logit_gradient[0] * rank_weights[driver.rank], driver.group))
    local_gradients = {
        name: p.grad.detach().float().clone() for name, p in model.named_parameters() if p.grad is not None
    }
    return ShardedStep(
        total_loss,
        tuple(driver_logits),
        tuple(padded_logits),
        tuple(logit_gradients),
        rank_weights,
        local_gradients,
        _reduce_gradients(driver, model, local_gradients),
    )


def _rank_weights(driver: Driver, device: Any) -> tuple[float, ...]:
    """Return the weight of each rank's gradient in the reduced one."""
    indicator = torch.zeros(driver.ranks, device=device)
    indicator[driver.rank] = 1.0
    return tuple(driver.reduce_gradient(indicator).tolist())


def _reduce_gradients(driver: Driver, model: nn.Module, local_gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the gradients reduced over all ranks; a rank that lacks one contributes zeros, as with DeepSpeed."""
    return {
        name: driver.reduce_gradient(local_gradients.get(name, torch.zeros_like(parameter, dtype=torch.float32)))
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
