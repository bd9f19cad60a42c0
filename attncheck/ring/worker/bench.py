"""Times context-parallel schemes on all ranks, with the same calls as ring-flash-attn's own benchmark.

The batch table calls `…_kvpacked_func` on a row of `seqlen` tokens per rank. The varlen table calls
`…_varlen_kvpacked_func` with four packings in turn. The local call, `flash_attn_kvpacked_func` on one rank's tokens,
also runs on all ranks at once. As in that benchmark, no group is named, so the default one is used. Schemes of other
packages (Ulysses, torch's ring, USP) are called as parity calls them, on the same rows.
Source: zhuzilin/ring-flash-attention, benchmark/*.py.
"""

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
from attncheck.attention.backend import refusal
from attncheck.attention.calls import ring_package
from attncheck.attention.inputs import Inputs
from attncheck.core import codec
from attncheck.core.cases import Case
from attncheck.core.results.ring_timings import LOCAL_FLASH, LOCAL_FLASH_FULL, RingRates, Stopwatch
from attncheck.measure.worker.gpu_clocks import observe_clocks
from attncheck.measure.worker.training_calls import training_step_calls
from attncheck.ring.worker.clock import time_call
from attncheck.ring.worker.rank import RankContext
from attncheck.ring.worker.session import RankSession
from attncheck.ring.worker.tasks import measure_case

MEASURING_SECONDS = {"cuda": 1.8, "cpu": 1.0}  # approximate time for one scheme and pass
SILENT_SECONDS = 0.4
MATMUL_SIZE = {"cuda": 8192, "cpu": 512}
COPY_BYTES = {"cuda": 1 << 30, "cpu": 1 << 24}


def bench(context: RankContext) -> None:
    """Measure every item: a scheme and "parity@case" or "table@passes@seqlen@stride", or ("rates", "rates")."""
    backends_by_name = backends.load()[0]
    cases = {document["name"]: codec.read(Case, document) for document in context.message["cases"]}
    for index, (backend, name) in enumerate(context.message["items"]):
        context.send_if_leader({"started": index})
        if backend == "rates":
            answer = codec.to_plain(measure_rates(context))
        elif name.startswith("parity@"):
            session = RankSession(backends_by_name[backend], context, traces_kernels=False)
            answer = codec.to_plain(measure_case(session, cases[name.removeprefix("parity@")]))
        else:
            table, passes, seqlen, stride = name.split("@")
            answer = codec.to_plain(
                _time_scheme(context, backend, table, passes == "forward_backward", int(seqlen), int(stride))
            )
        context.send_if_leader({"item": index, "answer": answer})


def _time_scheme(
    context: RankContext, backend: str, table: str, backward: bool, seqlen: int, stride: int
) -> Stopwatch | str:
    """Return the timing of a scheme, or why it cannot run the rows here."""
    cycle = 1 if table == "batch" else len(context.message["packings"])
    kind, group = context.device.kind, context.group
    record = backends.load()[0].get(backend)
    if record is not None and record.package != ring_package.DISTRIBUTION:
        rows = _make_rows(context, table, backward, seqlen)
        reasons = (refusal(record, inputs.case, context.device) for inputs in rows)
        if reason := next(filter(None, reasons), ""):
            return reason
        with training_step_calls():
            inputs = itertools.cycle(rows)
            return time_call(lambda: record.run(next(inputs), False), kind, group, MEASURING_SECONDS[kind], cycle)
    make_call = _make_batch_call if table == "batch" else _make_varlen_call
    call = make_call(context, backend, backward, seqlen, stride)
    timing = time_call(call, kind, group, MEASURING_SECONDS[kind], cycle)
    if backend in (LOCAL_FLASH, LOCAL_FLASH_FULL) or context.world_size == 1:
        return timing
    with without_communication(backend):
        silent_timing = time_call(call, context.device.kind, context.group, SILENT_SECONDS, cycle)
    return replace(timing, silent_ms=silent_timing.ms)


def _make_tensors(context: RankContext, *leading_sizes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, kv and dout of this rank; `leading_sizes` are the dimensions before the heads."""
    shape, device = context.message["shape"], context.device.kind
    dtype = getattr(torch, shape["dtype"])
    generator = torch.Generator(device=device).manual_seed(context.rank)

    def randn(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, device=device).to(dtype)

    q = randn(*leading_sizes, shape["num_heads"], shape["head_dim"]).requires_grad_()
    kv = randn(*leading_sizes, 2, shape["num_kv_heads"], shape["head_dim"]).requires_grad_()
    return q, kv, randn(*leading_sizes, shape["num_heads"], shape["head_dim"])


def _make_rows(context: RankContext, table: str, backward: bool, seqlen: int) -> list[Inputs]:
    """Return this rank's share of the rows of a table, as parity hands them to a backend: separate q, k and v."""
    q, kv, dout = (x.detach() for x in _make_tensors(context, 1, seqlen))
    k, v = (x.contiguous() for x in kv.unbind(2))
    shape, n = context.message["shape"], context.world_size
    sizes = {name: shape[name] for name in ("num_heads", "num_kv_heads", "head_dim", "dtype")}
    packings = context.message["packings"] if table == "varlen" else [[seqlen]]
    rows = [tuple(length * n for length in lengths) for lengths in packings]
    cases = [
        Case("bench", row, row, layout="packed" if table == "varlen" else "dense", **sizes,
             v_head_dim=shape["head_dim"], backward=backward, context_parallel_size=n)
        for row in rows
    ]  # fmt: skip
    kind, rank, group = context.device.kind, context.rank, context.group
    return [Inputs(case, kind, q, k, v, dout, rank=rank, group=group) for case in cases]


def _make_batch_call(context: RankContext, backend: str, backward: bool, seqlen: int, stride: int) -> Callable[[], Any]:
    q, kv, dout = _make_tensors(context, 1, seqlen)
    if backend in (LOCAL_FLASH, LOCAL_FLASH_FULL):
        local_attention = importlib.import_module("flash_attn").flash_attn_kvpacked_func
        return _make_pass(lambda: local_attention(q, kv, causal=backend == LOCAL_FLASH), (q, kv), dout, backward)
    scheme = getattr(ring_package.load(), f"{backend}_kvpacked_func")
    return _make_pass(lambda: scheme(q, kv, causal=True), (q, kv), dout, backward)


def _make_varlen_call(
    context: RankContext, backend: str, backward: bool, seqlen: int, stride: int
) -> Callable[[], Any]:
    q, kv, dout = _make_tensors(context, seqlen)
    function: Any
    if backend == LOCAL_FLASH:
        function = importlib.import_module("flash_attn").flash_attn_varlen_kvpacked_func
    else:
        function = getattr(ring_package.load(), f"{backend}_kvpacked_func")
    packings = itertools.cycle(
        [_packing_arguments(context, backend, lengths, stride) for lengths in context.message["packings"]]
    )

    def call() -> Any:
        args, kwargs = next(packings)
        return function(q, kv, *args, causal=True, **kwargs)

    return _make_pass(call, (q, kv), dout, backward)


def _packing_arguments(
    context: RankContext, backend: str, lengths: list[int], stride: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and keyword arguments of a function for one packing of documents."""
    cu_seqlens = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=context.device.kind)
    if backend == LOCAL_FLASH:
        return (cu_seqlens, cu_seqlens, max(lengths), max(lengths)), {}
    if backend == "llama3_flash_attn_varlen":
        prepare = ring_package.load().llama3_flash_attn_prepare_cu_seqlens
        global_cu_seqlens = cu_seqlens * context.world_size
        *arguments, local_k_slice = prepare(global_cu_seqlens, True, context.rank, context.world_size)
        return tuple(arguments), {"heads_k_stride": stride, "local_k_slice": local_k_slice}
    return (cu_seqlens, max(lengths)), {}


def _make_pass(
    forward: Callable[[], Tensor], leaves: tuple[Tensor, ...], dout: Tensor, backward: bool
) -> Callable[[], Any]:
    if not backward:

        def run_forward() -> None:
            with torch.no_grad():
                forward()

        return run_forward

    def run_forward_backward() -> None:
        for leaf in leaves:
            leaf.grad = None
        forward().backward(dout)

    return run_forward_backward


@contextlib.contextmanager
def without_communication(backend: str) -> Iterator[None]:
    """Let a ring-flash-attn scheme compute as usual but send nothing, so that its time is only computation."""
    package = ring_package.load()
    module = importlib.import_module(f"{package.__name__}.{backend}")
    holder, name, replacement = (
        (module, "RingComm", _SilentRingComm) if hasattr(module, "RingComm") else (module, "Comm", _SilentAllGatherComm)
    )
    original, reduce_scatter = getattr(holder, name), dist.reduce_scatter_tensor

    def keep_first_part(output_tensor: Tensor, input_tensor: Tensor, *args: Any, **kwargs: Any) -> None:
        output_tensor.copy_(input_tensor[: len(output_tensor)])

    setattr(holder, name, replacement)
    dist.reduce_scatter_tensor = keep_first_part  # type: ignore[assignment]
    try:
        yield
    finally:
        setattr(holder, name, original)
        dist.reduce_scatter_tensor = reduce_scatter


class _SilentRingComm:
    """ring-flash-attn's RingComm without communication: the tensors to send are returned as the received ones."""

    def __init__(self, group: Any) -> None:
        self.rank, self.world_size = dist.get_rank(group), dist.get_world_size(group)

    def send_recv_kv(self, k: Tensor, v: Tensor, *buffers: Any) -> tuple[Tensor, Tensor]:
        """Return k and v unchanged, or copies if they are gradients (float32), which are added to."""
        return (k.clone(), v.clone()) if k.dtype == torch.float32 else (k, v)

    def wait(self) -> None:
        """Wait for nothing."""


class _SilentAllGatherComm:
    """ring-flash-attn's AllGatherComm without communication: the buffer keeps its content for other ranks."""

    def __init__(self, group: Any = None) -> None:
        pass

    def all_gather(self, output: Tensor, part: Tensor) -> None:
        """Copy only this rank's part, to the start of the output."""
        output[: len(part)].copy_(part)

    def wait(self) -> None:
        """Wait for nothing."""


def measure_rates(context: RankContext) -> RingRates:
    """Return this machine's peak rates: matrix product (TFLOP/s), memory copy and exchange with a neighbour (GB/s)."""
    kind, group, shape = context.device.kind, context.group, context.message["shape"]
    dtype, size = getattr(torch, shape["dtype"]), MATMUL_SIZE[context.device.kind]
    a, b = (torch.randn(size, size, device=kind).to(dtype) for _ in range(2))
    with observe_clocks(kind) as clocks:
        matmul_timing = time_call(lambda: torch.matmul(a, b), kind, group, SILENT_SECONDS)
    source = torch.empty(COPY_BYTES[kind], dtype=torch.uint8, device=kind).random_()
    target = torch.empty_like(source)
    copy_timing = time_call(lambda: target.copy_(source), kind, group, SILENT_SECONDS)
    exchange_rate = _measure_exchange(context)
    tflops, copy_rate = 2.0 * size**3 / matmul_timing.ms / 1e9, 2.0 * COPY_BYTES[kind] / copy_timing.ms / 1e6
    return RingRates(tflops, copy_rate, exchange_rate, clocks())


def _measure_exchange(context: RankContext) -> float:
    """Return GB/s one way while every rank sends its shard of k and v to the next, as in one step of the ring."""
    if context.world_size == 1:
        return 0.0
    shape, world_size = context.message["shape"], context.world_size
    size = (context.message["seqlen"], shape["num_kv_heads"], shape["head_dim"])
    dtype = getattr(torch, shape["dtype"])
    sent, received = ([torch.randn(*size, device=context.device.kind).to(dtype) for _ in range(2)] for _ in range(2))
    target, source = (context.rank + 1) % world_size, (context.rank - 1) % world_size

    def exchange() -> None:
        pairs = [(dist.isend, x, target) for x in sent] + [(dist.irecv, x, source) for x in received]
        operations = [dist.P2POp(operation, x, peer, group=context.group) for operation, x, peer in pairs]
        for request in dist.batch_isend_irecv(operations):
            request.wait()

    timing = time_call(exchange, context.device.kind, context.group, SILENT_SECONDS)
    return sum(x.numel() * x.element_size() for x in sent) / timing.ms / 1e6
