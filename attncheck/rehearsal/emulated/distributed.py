"""The source of `flash_attn/utils/distributed.py`: the functions that frameworks import (flash-attn 2.8.3)."""

from typing import Any

import torch
from torch import Tensor
from torch.distributed import all_gather_into_tensor, reduce_scatter_tensor


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, group: Any) -> Tensor:
        """Return the parts of all ranks, one after another along the first axis."""
        ctx.group = group
        whole = torch.empty(group.size() * part.shape[0], *part.shape[1:], dtype=part.dtype, device=part.device)
        all_gather_into_tensor(whole, part.contiguous(), group=group)
        return whole

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Return this rank's part of the sum of gradients across ranks."""
        part = gradient.new_empty(gradient.shape[0] // ctx.group.size(), *gradient.shape[1:])
        reduce_scatter_tensor(part, gradient.contiguous(), group=ctx.group)
        return part, None


def all_gather(part: Tensor, group: Any) -> Tensor:
    """Return the parts of all ranks along the first axis; gradients flow back to each."""
    gathered: Tensor = _AllGather.apply(part, group)
    return gathered
