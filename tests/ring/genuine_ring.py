"""Faults injected into the genuine ring-flash-attn: its own schedules over real ranks, each broken in one place.

Loaded in ranks, as plugins (`write_plugins`). A fault says what it breaks: "forward" must show in out or LSE,
"backward" leaves both right and must show in the gradients. A forward of these schemes makes one RingComm, a backward
two: one for keys and values, one for their gradients, by which a fault is placed.
"""

# mypy: disable-error-code="has-type,var-annotated,valid-type,misc"
from __future__ import annotations

import contextlib
import importlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attncheck.attention.backend import Backend, Outputs
from attncheck.attention.backends.ring_flash_attn import BACKENDS

FORWARD, KV, GRADIENTS = 1, 2, 3  # the instances of RingComm that a call makes, in their order
LATE_REQUESTS: list[Any] = []


@dataclass(frozen=True)
class GenuineFault:
    """One fault: the scheme it is injected into, what it breaks, and how."""

    scheme: str
    breaks: str  # "forward", "backward"
    inject: Callable[[Any], Any]  # given the inputs, a context in which the scheme runs broken
    change_outputs: Callable[[Any, Outputs], Outputs] = lambda inputs, outputs: outputs
    change_inputs: Callable[[Any], Any] = lambda inputs: inputs
    ranks: int = 3  # it takes at least so many for the fault to change anything


def ring_module(name: str) -> Any:
    return importlib.import_module(f"ring_flash_attn.{name}")


@contextlib.contextmanager
def patched(holder: Any, name: str, value: Any) -> Iterator[None]:
    original = getattr(holder, name)
    setattr(holder, name, value)
    try:
        yield
    finally:
        setattr(holder, name, original)


def with_broken_comm(scheme: str, which: int, break_comm: Callable[[type], type]) -> Callable[[Any], Any]:
    """Return the context in which the `which`-th RingComm of a call is of a broken class."""

    def inject(inputs: Any) -> Any:
        holder = ring_module(scheme)
        genuine = holder.RingComm
        broken, made = break_comm(genuine), [0]

        def make(group: Any) -> Any:
            made[0] += 1
            return (broken if made[0] == which else genuine)(group)

        return patched(holder, "RingComm", make)

    return inject


def stale_comm(genuine: Any) -> Any:
    """The second step computes with the keys and values of the first again."""

    class Stale(genuine):
        calls = 0

        def send_recv_kv(self, k: Any, v: Any, *buffers: Any) -> Any:
            self.calls += 1
            arriving = super().send_recv_kv(k, v, *buffers)
            return (k, v) if self.calls == 2 else arriving

    return Stale


def stale_v_comm(genuine: Any) -> Any:
    """Keys travel, values do not, in one step."""

    class Stale(genuine):
        calls = 0

        def send_recv_kv(self, k: Any, v: Any, *buffers: Any) -> Any:
            self.calls += 1
            next_k, next_v = super().send_recv_kv(k, v, *buffers)
            return next_k, v if self.calls == 2 else next_v

    return Stale


def reversed_comm(genuine: Any) -> Any:
    """Blocks travel the wrong way round the ring."""

    class Reversed(genuine):
        def __init__(self, group: Any) -> None:
            super().__init__(group)
            self.send_rank, self.recv_rank = self.recv_rank, self.send_rank

    return Reversed


def shifted_comm(genuine: Any) -> Any:
    """A rank takes itself for the next one: its positions are off by a shard."""

    class Shifted(genuine):
        def __init__(self, group: Any) -> None:
            super().__init__(group)
            self.rank += 1

    return Shifted


def short_comm(genuine: Any) -> Any:
    """Gradients of keys and values are not sent on the last step home."""

    class Short(genuine):
        calls = 0

        def send_recv_kv(self, k: Any, v: Any, *buffers: Any) -> Any:
            self.calls += 1
            kept = k.clone(), v.clone()
            arriving = super().send_recv_kv(k, v, *buffers)
            return kept if self.calls == self.world_size else arriving

    return Short


def truncated_comm(genuine: Any) -> Any:
    """The last step is dropped."""

    class Truncated(genuine):
        def __init__(self, group: Any) -> None:
            super().__init__(group)
            self.world_size -= 1

    return Truncated


def unwaited_comm(genuine: Any) -> Any:
    """Buffers are read without waiting for what is to arrive in them; rank 0 is late, so that it shows each time."""

    class Unwaited(genuine):
        def commit(self) -> None:
            if self.rank == 0:
                time.sleep(0.1)
            super().commit()

        def wait(self) -> None:
            LATE_REQUESTS.extend(self._reqs)
            self._reqs, self._ops = None, []

    return Unwaited


def with_broken_merge(
    scheme: str, break_merge: Callable[[Any, int, tuple[Any, ...], dict[str, Any]], Any]
) -> Callable[[Any], Any]:
    """Return the context in which merging blocks is broken; `break_merge` gets the genuine merge and the step."""

    def inject(inputs: Any) -> Any:
        holder = ring_module(scheme)
        genuine, calls = holder.update_out_and_lse, [0]

        def merged(*args: Any, **kwargs: Any) -> Any:
            calls[0] += 1
            return break_merge(genuine, calls[0], args, kwargs)

        return patched(holder, "update_out_and_lse", merged)

    return inject


def skip_merge(genuine: Any, call: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return (args[0], args[1]) if call == 2 else genuine(*args, **kwargs)


def merge_twice(genuine: Any, call: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    out, lse = genuine(*args, **kwargs)
    return genuine(out, lse, *args[2:], **kwargs) if call == 2 else (out, lse)


def round_lse(genuine: Any, call: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    import torch

    out, lse = genuine(*args, **kwargs)
    return out, lse.to(torch.bfloat16).float()


def average_out(genuine: Any, call: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    out, lse = genuine(*args, **kwargs)
    return (out, lse) if args[0] is None or kwargs else ((args[0] + args[2].float()) / 2, lse)


def with_causal_second_step(kernel: str) -> Callable[[Any], Any]:
    """Return the context in which the second block is causal, though all its keys lie before its queries."""

    def inject(inputs: Any) -> Any:
        holder = ring_module("ring_flash_attn")
        genuine, calls = getattr(holder, kernel), [0]

        def call(**kwargs: Any) -> Any:
            calls[0] += 1
            return genuine(**{**kwargs, "causal": calls[0] == 2 or kwargs["causal"]})

        def defaults(function: Any) -> Any:
            from ring_flash_attn.utils import get_default_args

            return get_default_args(genuine if function is call else function)

        stack = contextlib.ExitStack()
        stack.enter_context(patched(holder, kernel, call))
        stack.enter_context(patched(holder, "get_default_args", defaults))
        return stack

    return inject


def shift_cu_seqlens(inputs: Any) -> Any:
    """One rank's document ends a token late."""
    from attncheck.attention.calls import ring_flash_attn as ring_call

    genuine = ring_call._build_cu_seqlens

    def cumulative(lengths: Any, inputs: Any) -> Any:
        cu_seqlens = genuine(lengths, inputs)
        if inputs.rank == 1:
            cu_seqlens[1] += 1
        return cu_seqlens

    return patched(ring_call, genuine.__name__, cumulative)


def repeat_head_slice(inputs: Any) -> Any:
    """The second slice of llama3's kv heads is the first one again."""
    holder = ring_module("llama3_flash_attn_varlen")
    genuine = holder.Comm

    class Again(genuine):
        def __init__(self, group: Any = None) -> None:
            super().__init__(group)
            self.sent: list[Any] = []

        def all_gather(self, output: Any, part: Any) -> None:
            self.sent.append(part)
            super().all_gather(output, self.sent[len(self.sent) % 2 - 2] if len(self.sent) in (3, 4) else part)

    return patched(holder, "Comm", Again)


def shift_local_k_slice(inputs: Any) -> Any:
    """On one rank, llama3's keys are taken a token early."""
    import ring_flash_attn

    genuine = ring_flash_attn.llama3_flash_attn_prepare_cu_seqlens

    def prepare(cu_seqlens: Any, causal: bool, rank: int, world_size: int) -> Any:
        *lengths, k_slice = genuine(cu_seqlens, causal, rank, world_size)
        return (*lengths, slice(k_slice.start - 1, k_slice.stop - 1) if rank == world_size - 1 else k_slice)

    return patched(ring_flash_attn, "llama3_flash_attn_prepare_cu_seqlens", prepare)


def skip_reduction(inputs: Any) -> Any:
    """dk and dv are not added up over the ranks: each keeps its own part."""
    import torch.distributed as dist

    def scatter(output: Any, gradients: Any, group: Any = None, **kwargs: Any) -> None:
        output.copy_(gradients.chunk(dist.get_world_size(group))[dist.get_rank(group)])

    return patched(dist, "reduce_scatter_tensor", scatter)


def do_nothing(inputs: Any) -> Any:
    return contextlib.nullcontext()


def swap_input_halves(inputs: Any) -> Any:
    def swap(x: Any) -> Any:
        first, second = x.chunk(2, 1)
        return second.new_empty(x.shape).copy_(__import__("torch").cat((second, first), 1))

    return replace(inputs, q=swap(inputs.q), k=swap(inputs.k), v=swap(inputs.v), dout=swap(inputs.dout))


def swap_output_halves(inputs: Any, outputs: Outputs) -> Outputs:
    import torch

    def swap(x: Any, dim: int) -> Any:
        return None if x is None else torch.cat(x.chunk(2, dim)[::-1], dim)

    swapped = {name: swap(getattr(outputs, name), 1) for name in ("out", "dq", "dk", "dv")}
    return replace(outputs, lse=swap(outputs.lse, 2), **swapped)


def scale_gradient(name: str, factor: float) -> Callable[[Any, Outputs], Outputs]:
    def change(inputs: Any, outputs: Outputs) -> Outputs:
        gradient = getattr(outputs, name)
        return outputs if inputs.rank != 1 or gradient is None else replace(outputs, **{name: gradient * factor})

    return change


RING, ZIGZAG, STRIPE, LLAMA3 = (
    "ring_flash_attn",
    "zigzag_ring_flash_attn",
    "stripe_flash_attn",
    "llama3_flash_attn_varlen",
)
PACKED, ZIGZAG_PACKED = "ring_flash_attn_varlen", "zigzag_ring_flash_attn_varlen"
FAULTS = {
    "fault_stale_kv": GenuineFault(RING, "forward", with_broken_comm(RING, FORWARD, stale_comm)),
    "fault_stale_kv_packed": GenuineFault(PACKED, "forward", with_broken_comm(PACKED, FORWARD, stale_comm)),
    "fault_stale_kv_stripe": GenuineFault(STRIPE, "forward", with_broken_comm(STRIPE, FORWARD, stale_comm)),
    "fault_stale_v": GenuineFault(ZIGZAG, "forward", with_broken_comm(ZIGZAG, FORWARD, stale_v_comm)),
    "fault_stale_kv_backward": GenuineFault(RING, "backward", with_broken_comm(RING, KV, stale_comm)),
    "fault_stale_kv_backward_zigzag": GenuineFault(ZIGZAG, "backward", with_broken_comm(ZIGZAG, KV, stale_comm)),
    "fault_stale_kv_backward_packed": GenuineFault(
        ZIGZAG_PACKED, "backward", with_broken_comm(ZIGZAG_PACKED, KV, stale_comm)
    ),
    "fault_wrong_rank": GenuineFault(RING, "forward", with_broken_comm(RING, FORWARD, reversed_comm)),
    "fault_wrong_rank_backward": GenuineFault(STRIPE, "backward", with_broken_comm(STRIPE, KV, reversed_comm)),
    "fault_wrong_home": GenuineFault(RING, "backward", with_broken_comm(RING, GRADIENTS, reversed_comm)),
    "fault_off_by_a_shard": GenuineFault(RING, "forward", with_broken_comm(RING, FORWARD, shifted_comm), ranks=2),
    "fault_off_by_a_shard_zigzag": GenuineFault(
        ZIGZAG, "forward", with_broken_comm(ZIGZAG, FORWARD, shifted_comm), ranks=2
    ),
    "fault_off_by_a_shard_backward": GenuineFault(RING, "backward", with_broken_comm(RING, KV, shifted_comm), ranks=2),
    "fault_dkv_one_step_short": GenuineFault(RING, "backward", with_broken_comm(RING, GRADIENTS, short_comm), ranks=2),
    "fault_dkv_one_step_short_zigzag": GenuineFault(
        ZIGZAG, "backward", with_broken_comm(ZIGZAG, GRADIENTS, short_comm), ranks=2
    ),
    "fault_last_step_dropped": GenuineFault(RING, "forward", with_broken_comm(RING, FORWARD, truncated_comm), ranks=2),
    "fault_missing_wait": GenuineFault(RING, "forward", with_broken_comm(RING, FORWARD, unwaited_comm), ranks=2),
    "fault_missing_wait_backward": GenuineFault(RING, "backward", with_broken_comm(RING, KV, unwaited_comm), ranks=2),
    "fault_merge_skipped": GenuineFault(RING, "forward", with_broken_merge(RING, skip_merge), ranks=2),
    "fault_merge_twice": GenuineFault(PACKED, "forward", with_broken_merge(PACKED, merge_twice), ranks=2),
    "fault_merge_averaged": GenuineFault(RING, "forward", with_broken_merge(RING, average_out), ranks=2),
    "fault_lse_in_bf16": GenuineFault(RING, "forward", with_broken_merge(RING, round_lse), ranks=2),
    "fault_lse_in_bf16_stripe": GenuineFault(STRIPE, "forward", with_broken_merge(STRIPE, round_lse), ranks=2),
    "fault_causal_on_wrong_step": GenuineFault(
        RING, "forward", with_causal_second_step("_flash_attn_forward"), ranks=2
    ),
    "fault_causal_on_wrong_step_backward": GenuineFault(
        RING, "backward", with_causal_second_step("_flash_attn_backward"), ranks=2
    ),
    "fault_zigzag_halves_swapped": GenuineFault(
        ZIGZAG, "forward", do_nothing, swap_output_halves, swap_input_halves, ranks=2
    ),
    "fault_cu_seqlens_off_by_one": GenuineFault(PACKED, "forward", shift_cu_seqlens, ranks=2),
    "fault_heads_k_stride_slice": GenuineFault(LLAMA3, "forward", repeat_head_slice, ranks=2),
    "fault_local_k_slice": GenuineFault(LLAMA3, "forward", shift_local_k_slice, ranks=2),
    "fault_not_reduced": GenuineFault(LLAMA3, "backward", skip_reduction, ranks=2),
    "fault_zero_dk_on_one_rank": GenuineFault(ZIGZAG, "backward", do_nothing, scale_gradient("dk", 0.0), ranks=2),
    "fault_nan_dq_on_one_rank": GenuineFault(RING, "backward", do_nothing, scale_gradient("dq", float("nan")), ranks=2),
}


def make_backend(name: str) -> Backend:
    """Return a fault's scheme, broken; called in a rank."""
    fault = FAULTS[name]
    genuine = next(backend for backend in BACKENDS if backend.name == fault.scheme)

    def run(inputs: Any, deterministic: bool) -> Outputs:
        from attncheck.attention.calls import ring_package

        ring_package.load()
        changed_inputs = fault.change_inputs(inputs)
        with fault.inject(changed_inputs):
            outputs = genuine.run(changed_inputs, deterministic)
        for request in LATE_REQUESTS:
            request.wait()
        LATE_REQUESTS.clear()
        return fault.change_outputs(inputs, outputs)

    return replace(genuine, name=name, run=run)


def write_plugins(folder: Path) -> dict[str, str]:
    """Write every fault as a plugin and return the environment that makes them known."""
    info = folder / "genuine_ring-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: genuine_ring\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[attncheck.backends]\n" + "".join(f"{name} = genuine_{name}\n" for name in FAULTS)
    )
    for name in FAULTS:
        source = f"from tests.ring.genuine_ring import make_backend\nBACKEND = make_backend({name!r})\n"
        (folder / f"genuine_{name}.py").write_text(source)
    root = Path(__file__).resolve().parents[2]
    paths = (str(folder), str(root), *filter(None, [os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
