"""Faults planted into the genuine ring-flash-attn: its own schedules over real ranks, spoilt in one place each.

Loaded in ranks, as plugins (`plant`). A fault says what it spoils: "forward" must be seen in out or LSE, "backward"
leaves both right and must be seen in the gradients. A forward of these schemes makes one RingComm, a backward two: one
for keys and values, one for their gradients, which is how a fault finds its place.
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

FORWARD, KV, GRADIENTS = 1, 2, 3  # the instances of RingComm that a call makes, in their order
LATE: list[Any] = []


@dataclass(frozen=True)
class GenuineFault:
    """One fault: the scheme it is planted in, what it spoils, and how."""

    scheme: str
    spoils: str  # "forward", "backward"
    plant: Callable[[Any], Any]  # given the inputs, a context in which the scheme runs spoilt
    changed: Callable[[Any, Outputs], Outputs] = lambda inputs, outputs: outputs
    inputs: Callable[[Any], Any] = lambda inputs: inputs
    ranks: int = 3  # it takes at least so many for the fault to change anything


def module(name: str) -> Any:
    return importlib.import_module(f"ring_flash_attn.{name}")


@contextlib.contextmanager
def patched(holder: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(holder, name)
    setattr(holder, name, value)
    try:
        yield
    finally:
        setattr(holder, name, before)


def comm(scheme: str, which: int, spoil: Callable[[type], type]) -> Callable[[Any], Any]:
    """Return the context in which the `which`-th RingComm of a call is of a spoilt class."""

    def plant(inputs: Any) -> Any:
        holder = module(scheme)
        genuine = holder.RingComm
        spoilt, made = spoil(genuine), [0]

        def make(group: Any) -> Any:
            made[0] += 1
            return (spoilt if made[0] == which else genuine)(group)

        return patched(holder, "RingComm", make)

    return plant


def stale(genuine: Any) -> Any:
    """The second step computes with the keys and values of the first again."""

    class Stale(genuine):
        calls = 0

        def send_recv_kv(self, k: Any, v: Any, *more: Any) -> Any:
            self.calls += 1
            arriving = super().send_recv_kv(k, v, *more)
            return (k, v) if self.calls == 2 else arriving

    return Stale


def stale_v(genuine: Any) -> Any:
    """Keys travel, values do not, in one step."""

    class Stale(genuine):
        calls = 0

        def send_recv_kv(self, k: Any, v: Any, *more: Any) -> Any:
            self.calls += 1
            next_k, next_v = super().send_recv_kv(k, v, *more)
            return next_k, v if self.calls == 2 else next_v

    return Stale


def turned(genuine: Any) -> Any:
    """Blocks travel the wrong way round the ring."""

    class Turned(genuine):
        def __init__(self, group: Any) -> None:
            super().__init__(group)
            self.send_rank, self.recv_rank = self.recv_rank, self.send_rank

    return Turned


def shifted(genuine: Any) -> Any:
    """A rank takes itself for the next one: its positions are off by a shard."""

    class Shifted(genuine):
        def __init__(self, group: Any) -> None:
            super().__init__(group)
            self.rank += 1

    return Shifted


def short(genuine: Any) -> Any:
    """Gradients of keys and values are not sent on the last step home."""

    class Short(genuine):
        calls = 0

        def send_recv_kv(self, k: Any, v: Any, *more: Any) -> Any:
            self.calls += 1
            kept = k.clone(), v.clone()
            arriving = super().send_recv_kv(k, v, *more)
            return kept if self.calls == self.world_size else arriving

    return Short


def cut(genuine: Any) -> Any:
    """The last step is dropped."""

    class Cut(genuine):
        def __init__(self, group: Any) -> None:
            super().__init__(group)
            self.world_size -= 1

    return Cut


def unwaited(genuine: Any) -> Any:
    """Buffers are read without waiting for what is to arrive in them; rank 0 is late, so that it shows each time."""

    class Unwaited(genuine):
        def commit(self) -> None:
            if self.rank == 0:
                time.sleep(0.1)
            super().commit()

        def wait(self) -> None:
            LATE.extend(self._reqs)
            self._reqs, self._ops = None, []

    return Unwaited


def merge(scheme: str, spoil: Callable[[Any, int, tuple[Any, ...], dict[str, Any]], Any]) -> Callable[[Any], Any]:
    """Return the context in which merging blocks is spoilt; `spoil` gets the genuine merge and the step's number."""

    def plant(inputs: Any) -> Any:
        holder = module(scheme)
        genuine, calls = holder.update_out_and_lse, [0]

        def merged(*words: Any, **more: Any) -> Any:
            calls[0] += 1
            return spoil(genuine, calls[0], words, more)

        return patched(holder, "update_out_and_lse", merged)

    return plant


def skipped(genuine: Any, call: int, words: tuple[Any, ...], more: dict[str, Any]) -> Any:
    return (words[0], words[1]) if call == 2 else genuine(*words, **more)


def twice(genuine: Any, call: int, words: tuple[Any, ...], more: dict[str, Any]) -> Any:
    out, lse = genuine(*words, **more)
    return genuine(out, lse, *words[2:], **more) if call == 2 else (out, lse)


def coarse(genuine: Any, call: int, words: tuple[Any, ...], more: dict[str, Any]) -> Any:
    import torch

    out, lse = genuine(*words, **more)
    return out, lse.to(torch.bfloat16).float()


def averaged(genuine: Any, call: int, words: tuple[Any, ...], more: dict[str, Any]) -> Any:
    out, lse = genuine(*words, **more)
    return (out, lse) if words[0] is None or more else ((words[0] + words[2].float()) / 2, lse)


def wrong_step(kernel: str) -> Callable[[Any], Any]:
    """Return the context in which the second block is causal, though its keys all lie before."""

    def plant(inputs: Any) -> Any:
        holder = module("ring_flash_attn")
        genuine, calls = getattr(holder, kernel), [0]

        def call(**words: Any) -> Any:
            calls[0] += 1
            return genuine(**{**words, "causal": calls[0] == 2 or words["causal"]})

        def defaults(function: Any) -> Any:
            from ring_flash_attn.utils import get_default_args

            return get_default_args(genuine if function is call else function)

        stack = contextlib.ExitStack()
        stack.enter_context(patched(holder, kernel, call))
        stack.enter_context(patched(holder, "get_default_args", defaults))
        return stack

    return plant


def off_by_one(inputs: Any) -> Any:
    """One rank's document ends a token late."""
    from attncheck.attention.calls import ring_flash_attn as ring_call

    genuine = ring_call._cumulative

    def cumulative(lengths: Any, given: Any) -> Any:
        found = genuine(lengths, given)
        if given.rank == 1:
            found[1] += 1
        return found

    return patched(ring_call, "_cumulative", cumulative)


def wrong_slice(inputs: Any) -> Any:
    """Of llama3's kv heads the second slice is the first one again."""
    holder = module("llama3_flash_attn_varlen")
    genuine = holder.Comm

    class Again(genuine):
        def __init__(self, group: Any = None) -> None:
            super().__init__(group)
            self.sent: list[Any] = []

        def all_gather(self, output: Any, given: Any) -> None:
            self.sent.append(given)
            super().all_gather(output, self.sent[len(self.sent) % 2 - 2] if len(self.sent) in (3, 4) else given)

    return patched(holder, "Comm", Again)


def moved_slice(inputs: Any) -> Any:
    """On one rank, llama3's keys are taken a token early."""
    import ring_flash_attn

    genuine = ring_flash_attn.llama3_flash_attn_prepare_cu_seqlens

    def prepare(cu_seqlens: Any, causal: bool, rank: int, world_size: int) -> Any:
        *lengths, kept = genuine(cu_seqlens, causal, rank, world_size)
        return (*lengths, slice(kept.start - 1, kept.stop - 1) if rank == world_size - 1 else kept)

    return patched(ring_flash_attn, "llama3_flash_attn_prepare_cu_seqlens", prepare)


def unreduced(inputs: Any) -> Any:
    """dk and dv are not added up over the ranks: each keeps its own part."""
    import torch.distributed as dist

    def scatter(output: Any, given: Any, group: Any = None, **more: Any) -> None:
        output.copy_(given.chunk(dist.get_world_size(group))[dist.get_rank(group)])

    return patched(dist, "reduce_scatter_tensor", scatter)


def nothing(inputs: Any) -> Any:
    return contextlib.nullcontext()


def swapped_halves(inputs: Any) -> Any:
    def swap(x: Any) -> Any:
        first, second = x.chunk(2, 1)
        return second.new_empty(x.shape).copy_(__import__("torch").cat((second, first), 1))

    return replace(inputs, q=swap(inputs.q), k=swap(inputs.k), v=swap(inputs.v), dout=swap(inputs.dout))


def swap_back(inputs: Any, outputs: Outputs) -> Outputs:
    import torch

    def swap(x: Any, dim: int) -> Any:
        return None if x is None else torch.cat(x.chunk(2, dim)[::-1], dim)

    found = {name: swap(getattr(outputs, name), 1) for name in ("out", "dq", "dk", "dv")}
    return replace(outputs, lse=swap(outputs.lse, 2), **found)


def spoilt_gradient(name: str, factor: float) -> Callable[[Any, Outputs], Outputs]:
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
    "fault_stale_kv": GenuineFault(RING, "forward", comm(RING, FORWARD, stale)),
    "fault_stale_kv_packed": GenuineFault(PACKED, "forward", comm(PACKED, FORWARD, stale)),
    "fault_stale_kv_stripe": GenuineFault(STRIPE, "forward", comm(STRIPE, FORWARD, stale)),
    "fault_stale_v": GenuineFault(ZIGZAG, "forward", comm(ZIGZAG, FORWARD, stale_v)),
    "fault_stale_kv_backward": GenuineFault(RING, "backward", comm(RING, KV, stale)),
    "fault_stale_kv_backward_zigzag": GenuineFault(ZIGZAG, "backward", comm(ZIGZAG, KV, stale)),
    "fault_stale_kv_backward_packed": GenuineFault(ZIGZAG_PACKED, "backward", comm(ZIGZAG_PACKED, KV, stale)),
    "fault_wrong_rank": GenuineFault(RING, "forward", comm(RING, FORWARD, turned)),
    "fault_wrong_rank_backward": GenuineFault(STRIPE, "backward", comm(STRIPE, KV, turned)),
    "fault_wrong_home": GenuineFault(RING, "backward", comm(RING, GRADIENTS, turned)),
    "fault_off_by_a_shard": GenuineFault(RING, "forward", comm(RING, FORWARD, shifted), ranks=2),
    "fault_off_by_a_shard_zigzag": GenuineFault(ZIGZAG, "forward", comm(ZIGZAG, FORWARD, shifted), ranks=2),
    "fault_off_by_a_shard_backward": GenuineFault(RING, "backward", comm(RING, KV, shifted), ranks=2),
    "fault_dkv_one_step_short": GenuineFault(RING, "backward", comm(RING, GRADIENTS, short), ranks=2),
    "fault_dkv_one_step_short_zigzag": GenuineFault(ZIGZAG, "backward", comm(ZIGZAG, GRADIENTS, short), ranks=2),
    "fault_last_step_dropped": GenuineFault(RING, "forward", comm(RING, FORWARD, cut), ranks=2),
    "fault_missing_wait": GenuineFault(RING, "forward", comm(RING, FORWARD, unwaited), ranks=2),
    "fault_missing_wait_backward": GenuineFault(RING, "backward", comm(RING, KV, unwaited), ranks=2),
    "fault_merge_skipped": GenuineFault(RING, "forward", merge(RING, skipped), ranks=2),
    "fault_merge_twice": GenuineFault(PACKED, "forward", merge(PACKED, twice), ranks=2),
    "fault_merge_averaged": GenuineFault(RING, "forward", merge(RING, averaged), ranks=2),
    "fault_lse_in_bf16": GenuineFault(RING, "forward", merge(RING, coarse), ranks=2),
    "fault_lse_in_bf16_stripe": GenuineFault(STRIPE, "forward", merge(STRIPE, coarse), ranks=2),
    "fault_causal_on_wrong_step": GenuineFault(RING, "forward", wrong_step("_flash_attn_forward"), ranks=2),
    "fault_causal_on_wrong_step_backward": GenuineFault(RING, "backward", wrong_step("_flash_attn_backward"), ranks=2),
    "fault_zigzag_halves_swapped": GenuineFault(ZIGZAG, "forward", nothing, swap_back, swapped_halves, ranks=2),
    "fault_cu_seqlens_off_by_one": GenuineFault(PACKED, "forward", off_by_one, ranks=2),
    "fault_heads_k_stride_slice": GenuineFault(LLAMA3, "forward", wrong_slice, ranks=2),
    "fault_local_k_slice": GenuineFault(LLAMA3, "forward", moved_slice, ranks=2),
    "fault_not_reduced": GenuineFault(LLAMA3, "backward", unreduced, ranks=2),
    "fault_zero_dk_on_one_rank": GenuineFault(ZIGZAG, "backward", nothing, spoilt_gradient("dk", 0.0), ranks=2),
    "fault_nan_dq_on_one_rank": GenuineFault(RING, "backward", nothing, spoilt_gradient("dq", float("nan")), ranks=2),
}


def backend(name: str) -> Backend:
    """Return the scheme of a fault, spoilt; called in a rank."""
    fault = FAULTS[name]
    genuine: Backend = importlib.import_module(f"attncheck.attention.backends.{fault.scheme}").BACKEND

    def run(inputs: Any, deterministic: bool) -> Outputs:
        from attncheck.attention.calls import ring_package

        ring_package.load()
        given = fault.inputs(inputs)
        with fault.plant(given):
            outputs = genuine.run(given, deterministic)
        for request in LATE:
            request.wait()
        LATE.clear()
        return fault.changed(inputs, outputs)

    return replace(genuine, name=name, run=run)


def plant(folder: Path) -> dict[str, str]:
    """Write every fault as a plugin and return the environment that makes them known."""
    info = folder / "genuine_ring-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: genuine_ring\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[attncheck.backends]\n" + "".join(f"{name} = genuine_{name}\n" for name in FAULTS)
    )
    for name in FAULTS:
        source = f"from tests.ring.genuine_ring import backend\nBACKEND = backend({name!r})\n"
        (folder / f"genuine_{name}.py").write_text(source)
    root = Path(__file__).resolve().parents[2]
    paths = (str(folder), str(root), *filter(None, [os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
