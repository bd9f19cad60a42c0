"""Context-parallel schemes with one fault each: a plain one, and ring-flash-attn's own with its own messages.

With two GPUs ring-flash-attn's schemes run flash-attn's real kernels over NCCL. Otherwise two gloo ranks run them with
emulated kernels; the schedules, messages and merging are still ring-flash-attn's own.
"""

import textwrap

from attncheck.selftest.faults import Family, Fault, Sandbox
from attncheck.selftest.faults.plugins import with_backend

DENSE_CASE = "dense-causal-s1024-h4kv2-d64-bf16-cp2-normal"
PLAIN_TEMPLATE = '''
from attncheck.core.sharding import explain_indivisible

def call(case):
    return ()

def refuse(case, device):
    if not device.ranks:
        return "runs across ranks"
    if case.layout != "dense" or case.operands != "split" or case.heads_k_stride or case.windowed:
        return "takes plain dense rows only"
    return explain_indivisible("contiguous", case)

def all_gather(x, group):
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

def right(inputs, deterministic, change=lambda x, rank: x, offset=0):
    import torch.distributed as dist

    length = inputs.q.shape[1]
    k, v = (change(all_gather(x, inputs.group), inputs.rank) for x in (inputs.k, inputs.v))
    out, lse, (dq, dk, dv) = attend(inputs, k, v, inputs.rank * length + offset)
    dtype = inputs.q.dtype
    if dk is None:
        return Outputs(out.to(dtype), lse)
    shard = slice(inputs.rank * length, (inputs.rank + 1) * length)
    for x in (dk, dv):
        dist.all_reduce(x, group=inputs.group)
    return Outputs(out.to(dtype), lse, dq.to(dtype), dk[:, shard].to(dtype), dv[:, shard].to(dtype))

def run(inputs, deterministic):
{body}

BACKEND = Backend(
    "{name}", "planted by selftest", "planted", Installed, refuse, run, call, sharding="contiguous", **SETTINGS
)
'''
GENUINE_TEMPLATE = """
import contextlib, importlib
from attncheck.attention.backends import ring_flash_attn as schemes

def patched(holder, name, change):
    original = getattr(holder, name)
    setattr(holder, name, change(original))
    return lambda: setattr(holder, name, original)

def nth_comm(which, replace_comm):
    # the `which`-th RingComm that a call makes is replaced: 1 forward, 2 keys and values, 3 their gradients
    def change(genuine):
        made = [0]
        def make(group):
            made[0] += 1
            return (replace_comm(genuine) if made[0] == which else genuine)(group)
        return make
    return change

{body}

genuine = next(scheme for scheme in schemes.BACKENDS if scheme.name == "{scheme}")

def run(inputs, deterministic):
    from attncheck.attention.calls import ring_package

    ring_package.load()
    undo = inject(importlib.import_module("ring_flash_attn.{scheme}"))
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
        def send_recv_kv(self, k, v, *buffers):
            self.calls += 1
            arriving = super().send_recv_kv(k, v, *buffers)
            return (k, v) if self.calls == 1 else arriving
    return Stale

def inject(holder):
    return patched(holder, "RingComm", nth_comm({which}, stale))
"""
SHIFTED = """
def shifted(genuine):
    class Shifted(genuine):
        def __init__(self, group):
            super().__init__(group)
            self.rank += 1
    return Shifted

def inject(holder):
    return patched(holder, "RingComm", nth_comm(1, shifted))
"""
SHORT = """
def short(genuine):
    class Short(genuine):
        calls = 0
        def send_recv_kv(self, k, v, *buffers):
            self.calls += 1
            kept = k.clone(), v.clone()
            arriving = super().send_recv_kv(k, v, *buffers)
            return kept if self.calls == self.world_size else arriving
    return Short

def inject(holder):
    return patched(holder, "RingComm", nth_comm(3, short))
"""
UNMERGED = """
def inject(holder):
    calls = [0]
    def change(genuine):
        def merged(*args, **kwargs):
            calls[0] += 1
            return (args[0], args[1]) if calls[0] == 2 else genuine(*args, **kwargs)
        return merged
    return patched(holder, "update_out_and_lse", change)
"""
STALE_BLOCK = """
import torch
def stale(x, rank):
    first, second = x.chunk(2, 1)
    return torch.cat((second, second), 1) if rank else x
return right(inputs, deterministic, stale)
"""
ON_ONE = "if inputs.rank == 1:\n    {}\nreturn right(inputs, deterministic)"


def setup_ring(sandbox: Sandbox) -> None:
    """Run parity on one case over a ring of two ranks."""
    on_gpus = sandbox.gpus > 1
    sandbox.arguments += ["parity", "--python", sandbox.python, "--ring-size", "2", "--no-communication"]
    sandbox.arguments += ["--device", "cuda"] if on_gpus else ["--device", "cpu", "--emulate"]
    sandbox.arguments += ["--suite", "quick", "--case", DENSE_CASE, "--format", "json", "--timeout", "10"]


def setup_plain_ring(sandbox: Sandbox) -> None:
    """Measure the plain scheme, which is correct."""
    setup_ring(sandbox)
    with_backend("selftest_ring", plain_source("selftest_ring", "return right(inputs, deterministic)"))(sandbox)


def setup_genuine_ring(sandbox: Sandbox) -> None:
    """Measure ring-flash-attn's unchanged ring and zigzag."""
    setup_ring(sandbox)
    sandbox.arguments += ["--backend", "ring_flash_attn", "--backend", "zigzag_ring_flash_attn"]


def plain_source(name: str, body: str) -> str:
    """Return the source of the plain scheme with this `run` body."""
    return PLAIN_TEMPLATE.replace("{body}", textwrap.indent(body.strip("\n"), "    ")).replace("{name}", name)


PLAIN_RING = Family("ring", "parity of a plain scheme on two ranks", setup_plain_ring, ("torch",), True, True, True)
GENUINE_RING = Family(
    "ring-flash-attn",
    "parity of ring-flash-attn's schemes on two ranks",
    setup_genuine_ring,
    ("torch", "transformers", "ring-flash-attn"),
    True,
    True,
    True,
)


def make_plain_fault(name: str, code: str, title: str, imitates: str, body: str, *mentions: str) -> Fault:
    """Return a fault of the plain scheme."""
    name = f"selftest_{name}"
    inject = with_backend(name, plain_source(name, body))
    return Fault(name, PLAIN_RING, (code,), title, imitates, inject, (name, *mentions))


def make_genuine_fault(name: str, scheme: str, title: str, imitates: str, body: str, *mentions: str) -> Fault:
    """Return a fault injected into one of ring-flash-attn's schemes."""
    name = f"selftest_{name}"
    source = GENUINE_TEMPLATE.replace("{body}", body).replace("{scheme}", scheme).replace("{name}", name)
    return Fault(name, GENUINE_RING, ("ATN601",), title, imitates, with_backend(name, source), (name, *mentions))


RING, ZIGZAG = "ring_flash_attn", "zigzag_ring_flash_attn"
FAULTS = (
    make_plain_fault("stale_block", "ATN601", "a rank that computes with one block of keys and values twice",
          "a buffer reused before its message arrived", STALE_BLOCK),
    make_plain_fault("positions", "ATN601", "positions off by one shard's token",
          "cu_seqlens or position_ids of the whole row on a shard",
          "return right(inputs, deterministic, offset=-1)"),
    make_plain_fault("zero_dk", "ATN601", "dk lost on one rank", "a reduction over the wrong group",
          "answer = right(inputs, deterministic)\nreturn replace(answer, dk=answer.dk * (inputs.rank == 0))", "rank 1"),
    make_plain_fault("dead_rank", "ATN604", "a rank that crashes", "the kernel's out-of-memory killer",
          ON_ONE.format("os.kill(os.getpid(), signal.SIGSEGV)"), "rank 1", "SIGSEGV"),
    make_plain_fault("hung_rank", "ATN604", "a rank that never returns",
          "a rank that took a different branch from its peers", ON_ONE.format("time.sleep(1000)"), "rank 1", "hangs"),
    make_genuine_fault("genuine_stale_kv", RING, "ring: a step computes with the keys and values of the previous step",
            "a buffer reused before its message arrived", STALE.replace("{which}", "1")),
    make_genuine_fault("genuine_stale_kv_backward", ZIGZAG, "zigzag: the same in the backward pass only",
            "a buffer reused before its message arrived", STALE.replace("{which}", "2")),
    make_genuine_fault("genuine_shifted", ZIGZAG, "zigzag: a rank behaves like the next rank",
          "ranks numbered in the wrong group", SHIFTED),
    make_genuine_fault("genuine_dkv_short", RING, "ring: the last step does not send the gradients of keys and values",
            "one step too few in a schedule", SHORT),
    make_genuine_fault("genuine_merge_skipped", RING, "ring: a block is not merged",
          "a branch for skipped blocks, taken by mistake", UNMERGED),
)  # fmt: skip
