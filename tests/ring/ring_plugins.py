"""Context-parallel backends as plugins from outside: a plain scheme that is right, for a test to break.

`right` gathers every rank's keys and values, attends with its own queries, and adds the gradients of keys and values
up over the ranks, in float32.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

from tests.plugins import write_plugin

HEAD = """
import os, signal, sys, time
from dataclasses import replace
from attncheck.attention.backend import Backend, Installed, Outputs
from attncheck.core.sharding import explain_indivisible

SETTINGS = {}

def call(case):
    return ()

def refuse(case, device):
    if not device.ranks:
        return "runs across ranks"
    if case.layout != "dense" or case.operands != "split" or case.heads_k_stride or case.windowed:
        return "takes plain dense rows only"
    return explain_indivisible("contiguous", case)

def all_gather(x, group):
    import torch
    import torch.distributed as dist

    parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, x.contiguous(), group=group)
    return torch.cat(parts, 1)

def attend(inputs, k, v):
    import torch

    case = inputs.case
    group = case.num_heads // case.num_kv_heads
    q = inputs.q.float().requires_grad_()
    k, v = k.float().requires_grad_(), v.float().requires_grad_()
    s = torch.einsum("bqhd,bkhd->bhqk", q, k.repeat_interleave(group, 2)) * case.softmax_scale
    rows = torch.arange(q.shape[1]) + inputs.rank * q.shape[1]
    if case.causal:
        s = s.masked_fill(torch.arange(k.shape[1])[None, :] > rows[:, None], -torch.inf)
    out = torch.einsum("bhqk,bkhd->bqhd", s.softmax(-1), v.repeat_interleave(group, 2))
    lse = s.logsumexp(-1).detach()
    gradients = torch.autograd.grad(out, (q, k, v), inputs.dout.float()) if case.backward else (None, None, None)
    return out.detach(), lse, gradients

def right(inputs, deterministic):
    import torch.distributed as dist

    out, lse, (dq, dk, dv) = attend(inputs, all_gather(inputs.k, inputs.group), all_gather(inputs.v, inputs.group))
    dtype, length = inputs.q.dtype, inputs.q.shape[1]
    if dk is None:
        return Outputs(out.to(dtype), lse)
    shard = slice(inputs.rank * length, (inputs.rank + 1) * length)
    for x in (dk, dv):
        dist.all_reduce(x, group=inputs.group)
    return Outputs(out.to(dtype), lse, dq.to(dtype), dk[:, shard].to(dtype), dv[:, shard].to(dtype))

"""
TAIL = """
BACKEND = Backend(
    "{name}", "a planted scheme", "planted", Installed, refuse, run, call, sharding="contiguous", **SETTINGS
)
"""


def write_ring_plugin(folder: Path, name: str, source: str) -> dict[str, str]:
    """Write the scheme `name`, whose `run` is in `source`, and return the environment that makes it known."""
    return write_plugin(folder, name, HEAD + textwrap.dedent(source) + TAIL.format(name=name))
