"""Makes a context-parallel backend look like a single-device one: shards the inputs, gathers the outputs.

Every rank makes the same inputs from the seed, takes its shard, runs, and receives all ranks' outputs in the row's
order. Code that measures one device can thus measure a group. Outputs travel as bytes, so that any bit pattern arrives
unchanged.
"""

from dataclasses import replace
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from attncheck.attention.backend import Backend, Outputs
from attncheck.attention.inputs import Inputs
from attncheck.core.cases import Case
from attncheck.core.sharding import Sharding, shard_ranges

OUTPUT_NAMES = ("out", "lse", "dq", "dk", "dv")


def as_single_device(backend: Backend, rank: int, group: Any) -> Backend:
    """Return `backend` with a `run` on complete rows; all ranks of `group` must call it together."""
    assert backend.sharding is not None
    sharding = backend.sharding

    def run(inputs: Inputs, deterministic: bool) -> Outputs:
        outputs = backend.run(shard_inputs(inputs, sharding, rank, group), deterministic)
        return _gather_outputs(inputs, outputs, sharding, group)

    return replace(backend, run=run)


def shard_inputs(inputs: Inputs, sharding: Sharding, rank: int, group: Any) -> Inputs:
    """Return the tokens of `inputs` that `rank` holds, as separate tensors."""
    tokens = _token_indices(sharding, inputs.case, rank, inputs.q.device)
    q, k, v, dout = (x[:, tokens].contiguous() for x in (inputs.q, inputs.k, inputs.v, inputs.dout))
    return replace(inputs, q=q, k=k, v=v, dout=dout, rank=rank, group=group)


def _token_indices(sharding: Sharding, case: Case, rank: int, device: torch.device) -> Tensor:
    return torch.tensor(list(chain(*shard_ranges(sharding, case, rank))), dtype=torch.int64, device=device)


def _gather_outputs(inputs: Inputs, outputs: Outputs, sharding: Sharding, group: Any) -> Outputs:
    case = inputs.case
    world_size = case.context_parallel_size
    order = torch.cat([_token_indices(sharding, case, rank, inputs.q.device) for rank in range(world_size)])
    gathered: dict[str, Tensor | None] = {}
    for name in OUTPUT_NAMES:
        local = getattr(outputs, name)
        if local is None:
            gathered[name] = None
            continue
        token_dim = 2 if name == "lse" else 1
        rows = torch.cat(_all_gather_bytes(_check_shape(name, local, inputs), group), token_dim)
        gathered[name] = torch.empty_like(rows).index_copy_(token_dim, order, rows)
    return replace(outputs, **gathered)  # type: ignore[arg-type]


def _check_shape(name: str, local: Tensor, inputs: Inputs) -> Tensor:
    """Return a rank's output, contiguous. Raises ValueError for a shape that would leave the other ranks waiting."""
    case = inputs.case
    length = case.seqlen_q // case.context_parallel_size
    heads = case.num_kv_heads if name in ("dk", "dv") else case.num_heads
    shape = (case.batch, heads, length) if name == "lse" else (case.batch, length, heads, local.shape[-1])
    if tuple(local.shape) != shape:
        raise ValueError(f"{name} has the shape {tuple(local.shape)} on this rank, not {shape}")
    return local.contiguous()


def _all_gather_bytes(local: Tensor, group: Any) -> list[Tensor]:
    sent = local.view(torch.uint8)
    parts = [torch.empty_like(sent) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, sent, group=group)
    return [part.view(local.dtype) for part in parts]
