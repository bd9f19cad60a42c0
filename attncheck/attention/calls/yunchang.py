"""Calls yunchang's LongContextAttention on a rank's shard. LSE is not returned, because the class drops it."""

import importlib
from dataclasses import replace
from functools import cache
from typing import Any

import torch.distributed as dist

from attncheck.attention.backend import Outputs, Refused
from attncheck.attention.calls.common import backward, make_leaves
from attncheck.attention.inputs import Inputs
from attncheck.core.sharding import usp_degrees


def run(inputs: Inputs, deterministic: bool) -> Outputs:
    """Run a rank's shard, forward and backward."""
    case = inputs.case
    if dist.get_world_size(inputs.group) != dist.get_world_size():
        raise Refused("its process groups span all ranks, and this ring has some of them only")
    leaves = make_leaves(inputs)
    out = _make_attention(*usp_degrees(case))(
        *leaves,
        softmax_scale=case.softmax_scale,
        causal=case.causal,
        window_size=case.window_size,
        softcap=case.softcap,
        deterministic=deterministic,
    )
    return replace(backward(inputs, out, leaves), operators=())  # the autograd node belongs to the all-to-all


@cache
def _make_attention(ulysses: int, ring: int) -> Any:
    """Return the module over its process groups, which all ranks create together."""
    globals_module = importlib.import_module("yunchang.globals")
    globals_module.set_seq_parallel_pg(ulysses, ring, dist.get_rank(), dist.get_world_size())
    return importlib.import_module("yunchang").LongContextAttention(ring_impl_type="zigzag")
