"""Times the schemes of context parallelism on all ranks, as ring-flash-attn's own benchmark calls them.

The batch table calls `…_kvpacked_func` on a row of `seqlen` tokens per rank; the varlen table calls
`…_varlen_kvpacked_func` with four packings in turn. The local call, `flash_attn_kvpacked_func` on one rank's tokens,
runs on all ranks at once too. No group is named, as there: the default one is taken.
Source: zhuzilin/ring-flash-attention, benchmark/*.py.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from attncheck.attention import backends
from attncheck.attention.calls import ring_package
from attncheck.core import codec
from attncheck.core.cases import Case
from attncheck.core.results.ring_timings import FLASH, FULL, RingRates, Stopwatch
from attncheck.measure.worker.gpu_clocks import observed
from attncheck.ring.worker.clock import timed
from attncheck.ring.worker.rank import Member
from attncheck.ring.worker.session import RankSession
from attncheck.ring.worker.tasks import measured

SECONDS = {"cuda": 1.8, "cpu": 1.0}  # of measuring for one scheme and pass, about
SILENT_SECONDS = 0.4
MATMUL = {"cuda": 8192, "cpu": 512}
COPY = {"cuda": 1 << 30, "cpu": 1 << 24}  # bytes


def bench(member: Member) -> None:
    """Measure every item: a scheme and "parity@case" or "table@passes@seqlen@stride", or ("rates", "rates")."""
    known = backends.load()[0]
    cases = {document["name"]: codec.read(Case, document) for document in member.message["cases"]}
    for index, (backend, name) in enumerate(member.message["items"]):
        member.say({"started": index})
        if backend == "rates":
            answer = codec.plain(rates(member))
        elif name.startswith("parity@"):
            answer = codec.plain(measured(RankSession(known[backend], member), cases[name.removeprefix("parity@")]))
        else:
            table, passes, seqlen, stride = name.split("@")
            answer = codec.plain(
                _timing(member, backend, table, passes == "forward_backward", int(seqlen), int(stride))
            )
        member.say({"item": index, "answer": answer})


def _timing(member: Member, backend: str, table: str, backward: bool, seqlen: int, stride: int) -> Stopwatch:
    make = _batch if table == "batch" else _varlen
    call = make(member, backend, backward, seqlen, stride)
    cycle = 1 if table == "batch" else len(member.message["packings"])
    watch = timed(call, member.device.kind, member.group, SECONDS[member.device.kind], cycle)
    if backend in (FLASH, FULL) or member.world_size == 1:
        return watch
    with silence(backend):
        silent = timed(call, member.device.kind, member.group, SILENT_SECONDS, cycle)
    return replace(watch, silent_ms=silent.ms)


def _tensors(member: Member, *lead: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, kv and dout of this rank, `lead` being what comes before the heads."""
    shape, device = member.message["shape"], member.device.kind
    dtype = getattr(torch, shape["dtype"])
    generator = torch.Generator(device=device).manual_seed(member.rank)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, device=device).to(dtype)

    q = normal(*lead, shape["num_heads"], shape["head_dim"]).requires_grad_()
    kv = normal(*lead, 2, shape["num_kv_heads"], shape["head_dim"]).requires_grad_()
    return q, kv, normal(*lead, shape["num_heads"], shape["head_dim"])


def _batch(member: Member, backend: str, backward: bool, seqlen: int, stride: int) -> Callable[[], Any]:
    q, kv, dout = _tensors(member, 1, seqlen)
    if backend in (FLASH, FULL):
        local = importlib.import_module("flash_attn").flash_attn_kvpacked_func
        return _pass(lambda: local(q, kv, causal=backend == FLASH), (q, kv), dout, backward)
    scheme = getattr(ring_package.load(), f"{backend}_kvpacked_func")
    return _pass(lambda: scheme(q, kv, causal=True), (q, kv), dout, backward)


def _varlen(member: Member, backend: str, backward: bool, seqlen: int, stride: int) -> Callable[[], Any]:
    q, kv, dout = _tensors(member, seqlen)
    function: Any
    if backend == FLASH:
        function = importlib.import_module("flash_attn").flash_attn_varlen_kvpacked_func
    else:
        function = getattr(ring_package.load(), f"{backend}_kvpacked_func")
    places = itertools.cycle([_place(member, backend, lengths, stride) for lengths in member.message["packings"]])

    def call() -> Any:
        arguments, words = next(places)
        return function(q, kv, *arguments, causal=True, **words)

    return _pass(call, (q, kv), dout, backward)


def _place(member: Member, backend: str, lengths: list[int], stride: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return how one packing is told to a function: its positional and its named arguments."""
    ends = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=member.device.kind)
    if backend == FLASH:
        return (ends, ends, max(lengths), max(lengths)), {}
    if backend == "llama3_flash_attn_varlen":
        prepare = ring_package.load().llama3_flash_attn_prepare_cu_seqlens
        *found, kept = prepare(ends * member.world_size, True, member.rank, member.world_size)
        return tuple(found), {"heads_k_stride": stride, "local_k_slice": kept}
    return (ends, max(lengths)), {}


def _pass(forward: Callable[[], Tensor], leaves: tuple[Tensor, ...], dout: Tensor, backward: bool) -> Callable[[], Any]:
    if not backward:

        def alone() -> None:
            with torch.no_grad():
                forward()

        return alone

    def together() -> None:
        for leaf in leaves:
            leaf.grad = None
        forward().backward(dout)

    return together


@contextlib.contextmanager
def silence(backend: str) -> Iterator[None]:
    """Let a scheme of ring-flash-attn compute as it does, and send nothing: what is left of its time is its own."""
    package = ring_package.load()
    module = importlib.import_module(f"{package.__name__}.{backend}")
    holder, name, silent = (
        (module, "RingComm", _SilentRing) if hasattr(module, "RingComm") else (module, "Comm", _Silent)
    )
    before, scatter = getattr(holder, name), dist.reduce_scatter_tensor

    def keep(output: Tensor, given: Tensor, *more: Any, **words: Any) -> None:
        output.copy_(given[: len(output)])

    setattr(holder, name, silent)
    dist.reduce_scatter_tensor = keep  # type: ignore[assignment]
    try:
        yield
    finally:
        setattr(holder, name, before)
        dist.reduce_scatter_tensor = scatter


class _SilentRing:
    """ring-flash-attn's RingComm, from which everything arrives at once: what was to be sent."""

    def __init__(self, group: Any) -> None:
        self.rank, self.world_size = dist.get_rank(group), dist.get_world_size(group)

    def send_recv_kv(self, k: Tensor, v: Tensor, *buffers: Any) -> tuple[Tensor, Tensor]:
        """Return what was given, in tensors of their own where gradients are added to them."""
        return (k.clone(), v.clone()) if k.dtype == torch.float32 else (k, v)

    def wait(self) -> None:
        """Wait for nothing."""


class _Silent:
    """ring-flash-attn's AllGatherComm, which leaves what the buffer holds."""

    def __init__(self, group: Any = None) -> None:
        pass

    def all_gather(self, output: Tensor, given: Tensor) -> None:
        """Put our own part in its place, and nothing else."""
        output[: len(given)].copy_(given)

    def wait(self) -> None:
        """Wait for nothing."""


def rates(member: Member) -> RingRates:
    """Return what this machine does at its best: a matrix product, a copy, an exchange between neighbours."""
    kind, group, shape = member.device.kind, member.group, member.message["shape"]
    dtype, size = getattr(torch, shape["dtype"]), MATMUL[member.device.kind]
    a, b = (torch.randn(size, size, device=kind).to(dtype) for _ in range(2))
    with observed(kind) as clocks:
        product = timed(lambda: torch.matmul(a, b), kind, group, SILENT_SECONDS)
    source = torch.empty(COPY[kind], dtype=torch.uint8, device=kind).random_()
    target = torch.empty_like(source)
    copied = timed(lambda: target.copy_(source), kind, group, SILENT_SECONDS)
    sent = _exchange(member)
    return RingRates(2.0 * size**3 / product.ms / 1e9, 2.0 * COPY[kind] / copied.ms / 1e6, sent, clocks())


def _exchange(member: Member) -> float:
    """Return GB/s one way while every rank sends a shard's keys and values to the next, as a step of the ring does."""
    if member.world_size == 1:
        return 0.0
    shape, n = member.message["shape"], member.world_size
    size = (member.message["seqlen"], shape["num_kv_heads"], shape["head_dim"])
    dtype = getattr(torch, shape["dtype"])
    sent, got = ([torch.randn(*size, device=member.device.kind).to(dtype) for _ in range(2)] for _ in range(2))
    target, source = (member.rank + 1) % n, (member.rank - 1) % n

    def exchange() -> None:
        pairs = [(dist.isend, x, target) for x in sent] + [(dist.irecv, x, source) for x in got]
        operations = [dist.P2POp(operation, x, peer, group=member.group) for operation, x, peer in pairs]
        for request in dist.batch_isend_irecv(operations):
            request.wait()

    watch = timed(exchange, member.device.kind, member.group, SILENT_SECONDS)
    return sum(x.numel() * x.element_size() for x in sent) / watch.ms / 1e6
