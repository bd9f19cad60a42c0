"""Schemes of context parallelism spoilt in one place: a plain one, and ring-flash-attn's own over its own messages.

On machines with two GPUs the genuine schemes run flash-attn's real kernels over NCCL; elsewhere two gloo ranks run
them with the kernels emulated, and the schedules, messages and merging are the genuine ones all the same.
"""

from __future__ import annotations

import textwrap

from attncheck.selftest.faults import Family, Fault, Ground, Plant
from attncheck.selftest.faults.plugins import backend

DENSE = "dense-causal-s1024-h4kv2-d64-bf16-cp2-normal"
PLAIN = '''
from attncheck.core.sharding import indivisible

def call(case):
    return ()

def refuse(case, device):
    if not device.ranks:
        return "runs over ranks"
    if case.layout != "dense" or case.operands != "split" or case.heads_k_stride or case.windowed:
        return "takes plain dense rows only"
    return indivisible("contiguous", case)

def gathered(x, group):
    """Every rank's part, in the order of ranks."""
    import torch
    import torch.distributed as dist

    parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, x.contiguous(), group=group)
    return torch.cat(parts, 1)

def attend(inputs, k, v, first):
    import torch

    case = inputs.case
    group = case.num_heads // case.num_kv_heads
    q = inputs.q.float().requires_grad_()
    k, v = k.float().requires_grad_(), v.float().requires_grad_()
    s = torch.einsum("bqhd,bkhd->bhqk", q, k.repeat_interleave(group, 2)) * case.softmax_scale
    rows = torch.arange(q.shape[1], device=q.device) + first
    if case.causal:
        s = s.masked_fill(torch.arange(k.shape[1], device=q.device)[None, :] > rows[:, None], -torch.inf)
    out = torch.einsum("bhqk,bkhd->bqhd", s.softmax(-1), v.repeat_interleave(group, 2))
    lse = s.logsumexp(-1).detach()
    gradients = torch.autograd.grad(out, (q, k, v), inputs.dout.float()) if case.backward else (None, None, None)
    return out.detach(), lse, gradients

def right(inputs, deterministic, spoil=lambda x, rank: x, moved=0):
    import torch.distributed as dist

    length = inputs.q.shape[1]
    k, v = (spoil(gathered(x, inputs.group), inputs.rank) for x in (inputs.k, inputs.v))
    out, lse, (dq, dk, dv) = attend(inputs, k, v, inputs.rank * length + moved)
    dtype = inputs.q.dtype
    if dk is None:
        return Outputs(out.to(dtype), lse)
    mine = slice(inputs.rank * length, (inputs.rank + 1) * length)
    for x in (dk, dv):
        dist.all_reduce(x, group=inputs.group)
    return Outputs(out.to(dtype), lse, dq.to(dtype), dk[:, mine].to(dtype), dv[:, mine].to(dtype))

def run(inputs, deterministic):
{body}

BACKEND = Backend(
    "{name}", "planted by selftest", "planted", Found, refuse, run, call, sharding="contiguous", **MORE
)
'''
GENUINE = """
import contextlib, importlib

def spoilt(holder, name, change):
    before = getattr(holder, name)
    setattr(holder, name, change(before))
    return lambda: setattr(holder, name, before)

def counted(which, spoil):
    # the `which`-th RingComm that a call makes is spoilt: 1 forward, 2 keys and values, 3 their gradients
    def change(genuine):
        made = [0]
        def make(group):
            made[0] += 1
            return (spoil(genuine) if made[0] == which else genuine)(group)
        return make
    return change

{body}

genuine = importlib.import_module("attncheck.attention.backends.{scheme}").BACKEND

def run(inputs, deterministic):
    from attncheck.measure import ring_package

    ring_package.load()
    undo = plant(importlib.import_module("ring_flash_attn.{scheme}"))
    try:
        return genuine.run(inputs, deterministic)
    finally:
        undo()

BACKEND = replace(genuine, name="{name}", run=run)
"""
STALE = """
def stale(genuine):
    class Stale(genuine):
        calls = 0
        def send_recv_kv(self, k, v, *more):
            self.calls += 1
            arriving = super().send_recv_kv(k, v, *more)
            return (k, v) if self.calls == 1 else arriving
    return Stale

def plant(holder):
    return spoilt(holder, "RingComm", counted({which}, stale))
"""
SHIFTED = """
def shifted(genuine):
    class Shifted(genuine):
        def __init__(self, group):
            super().__init__(group)
            self.rank += 1
    return Shifted

def plant(holder):
    return spoilt(holder, "RingComm", counted(1, shifted))
"""
SHORT = """
def short(genuine):
    class Short(genuine):
        calls = 0
        def send_recv_kv(self, k, v, *more):
            self.calls += 1
            kept = k.clone(), v.clone()
            arriving = super().send_recv_kv(k, v, *more)
            return kept if self.calls == self.world_size else arriving
    return Short

def plant(holder):
    return spoilt(holder, "RingComm", counted(3, short))
"""
MERGE = """
def plant(holder):
    calls = [0]
    def change(genuine):
        def merged(*words, **more):
            calls[0] += 1
            return (words[0], words[1]) if calls[0] == 2 else genuine(*words, **more)
        return merged
    return spoilt(holder, "update_out_and_lse", change)
"""
STALE_BLOCK = """
import torch
def stale(x, rank):
    first, second = x.chunk(2, 1)
    return torch.cat((second, second), 1) if rank else x
return right(inputs, deterministic, stale)
"""
ON_ONE = "if inputs.rank == 1:\n    {}\nreturn right(inputs, deterministic)"


def lay(ground: Ground) -> None:
    """Ask parity about one case on a ring of two ranks."""
    on_gpus = ground.gpus > 1
    ground.words += ["parity", "--python", ground.python, "--ring-size", "2", "--no-communication"]
    ground.words += ["--device", "cuda"] if on_gpus else ["--device", "cpu", "--emulate"]
    ground.words += ["--suite", "quick", "--case", DENSE, "--format", "json", "--timeout", "10"]


def lay_plain(ground: Ground) -> None:
    """Ask about the plain scheme, which is right."""
    lay(ground)
    backend("selftest_ring", plain("selftest_ring", "return right(inputs, deterministic)"))(ground)


def lay_genuine(ground: Ground) -> None:
    """Ask about ring-flash-attn's ring and zigzag as they are."""
    lay(ground)
    ground.words += ["--backend", "ring_flash_attn", "--backend", "zigzag_ring_flash_attn"]


def plain(name: str, body: str) -> str:
    """Return the module of the plain scheme whose `run` has this body."""
    return PLAIN.replace("{body}", textwrap.indent(body.strip("\n"), "    ")).replace("{name}", name)


PLAIN_RING = Family("ring", "parity of a plain scheme on two ranks", lay_plain, ("torch",), True, True, True)
GENUINE_RING = Family(
    "ring-flash-attn",
    "parity of ring-flash-attn's schemes on two ranks",
    lay_genuine,
    ("torch", "transformers", "ring-flash-attn"),
    True,
    True,
    True,
)


def wrong(name: str, code: str, title: str, imitates: str, body: str, *says: str) -> Fault:
    """Return a fault of the plain scheme."""
    name = f"selftest_{name}"
    return Fault(name, PLAIN_RING, (code,), title, imitates, backend(name, plain(name, body)), (name, *says))


def genuine(name: str, scheme: str, title: str, imitates: str, body: str, *says: str) -> Fault:
    """Return a fault planted into one of ring-flash-attn's schemes."""
    name = f"selftest_{name}"
    source = GENUINE.replace("{body}", body).replace("{scheme}", scheme).replace("{name}", name)
    planted: Plant = backend(name, source)
    return Fault(name, GENUINE_RING, ("ATN601",), title, imitates, planted, (name, *says))


RING, ZIGZAG = "ring_flash_attn", "zigzag_ring_flash_attn"
FAULTS = (
    wrong("stale_block", "ATN601", "a rank that computes with one block of keys and values twice",
          "a buffer reused before its message came", STALE_BLOCK),
    wrong("positions", "ATN601", "positions off by one shard's token",
          "cu_seqlens or position_ids of the whole row on a shard",
          "return right(inputs, deterministic, moved=-1)"),
    wrong("zero_dk", "ATN601", "dk lost on one rank", "a reduction over the wrong group",
          "answer = right(inputs, deterministic)\nreturn replace(answer, dk=answer.dk * (inputs.rank == 0))", "rank 1"),
    wrong("dead_rank", "ATN604", "a rank that crashes", "the kernel's out-of-memory killer",
          ON_ONE.format("os.kill(os.getpid(), signal.SIGSEGV)"), "rank 1", "SIGSEGV"),
    wrong("hung_rank", "ATN604", "a rank that never comes back", "a rank that took another branch than its peers",
          ON_ONE.format("time.sleep(1000)"), "rank 1", "hangs"),
    genuine("genuine_stale_kv", RING, "ring: a step computes with the keys and values of the one before",
            "a buffer reused before its message came", STALE.replace("{which}", "1")),
    genuine("genuine_stale_kv_backward", ZIGZAG, "zigzag: the same in the backward pass alone",
            "a buffer reused before its message came", STALE.replace("{which}", "2")),
    genuine("genuine_shifted", ZIGZAG, "zigzag: a rank takes itself for the next one",
          "ranks numbered over another group", SHIFTED),
    genuine("genuine_dkv_short", RING, "ring: gradients of keys and values miss their last step home",
            "one step too few in a schedule", SHORT),
    genuine("genuine_merge_skipped", RING, "ring: a block is not merged", "a branch for skipped blocks taken wrongly",
          MERGE),
)  # fmt: skip
