"""Makes a context-parallel backend look like one of a single device: shards the inputs, gathers the outputs.

Every rank makes the same inputs from the seed, takes its shard, runs, and gets everybody's outputs back in the order of
the row, so that what measures one device measures a group. Outputs travel as bytes: whatever they hold arrives.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from attncheck.attention.backend import Backend, Outputs
from attncheck.attention.inputs import Inputs
from attncheck.core.cases import Case
from attncheck.core.sharding import Sharding, shards

NAMES = ("out", "lse", "dq", "dk", "dv")


def gathered(backend: Backend, rank: int, group: Any) -> Backend:
    """Return `backend` with a `run` that takes and returns whole rows; all ranks of `group` must call it alike."""
    assert backend.sharding is not None
    sharding = backend.sharding

    def run(inputs: Inputs, deterministic: bool) -> Outputs:
        outputs = backend.run(shard(inputs, sharding, rank, group), deterministic)
        return _whole(inputs, outputs, sharding, group)

    return replace(backend, run=run)


def shard(inputs: Inputs, sharding: Sharding, rank: int, group: Any) -> Inputs:
    """Return the tokens of `inputs` that lie on `rank`, as tensors of their own."""
    kept = _places(sharding, inputs.case, rank, inputs.q.device)
    q, k, v, dout = (x[:, kept].contiguous() for x in (inputs.q, inputs.k, inputs.v, inputs.dout))
    return replace(inputs, q=q, k=k, v=v, dout=dout, rank=rank, group=group)


def _places(sharding: Sharding, case: Case, rank: int, device: torch.device) -> Tensor:
    return torch.tensor(list(chain(*shards(sharding, case, rank))), dtype=torch.int64, device=device)


def _whole(inputs: Inputs, outputs: Outputs, sharding: Sharding, group: Any) -> Outputs:
    case = inputs.case
    world = case.context_parallel_size
    order = torch.cat([_places(sharding, case, rank, inputs.q.device) for rank in range(world)])
    found: dict[str, Tensor | None] = {}
    for name in NAMES:
        local = getattr(outputs, name)
        if local is None:
            found[name] = None
            continue
        tokens = 2 if name == "lse" else 1
        whole = torch.cat(_exchanged(_fitting(name, local, inputs, tokens), group), tokens)
        found[name] = torch.empty_like(whole).index_copy_(tokens, order, whole)
    return replace(outputs, **found)  # type: ignore[arg-type]


def _fitting(name: str, local: Tensor, inputs: Inputs, tokens: int) -> Tensor:
    """Return a rank's output. Raises ValueError where its shape would keep the others waiting for more."""
    case = inputs.case
    length = case.seqlen_q // case.context_parallel_size
    heads = case.num_kv_heads if name in ("dk", "dv") else case.num_heads
    shape = (case.batch, heads, length) if name == "lse" else (case.batch, length, heads, local.shape[-1])
    if tuple(local.shape) != shape:
        raise ValueError(f"{name} has the shape {tuple(local.shape)} on this rank, not {shape}")
    return local.contiguous()


def _exchanged(local: Tensor, group: Any) -> list[Tensor]:
    sent = local.view(torch.uint8)
    parts = [torch.empty_like(sent) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, sent, group=group)
    return [part.view(local.dtype) for part in parts]
