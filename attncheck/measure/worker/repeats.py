"""Repeats a backend on the same inputs and compares bit by bit; then changes what shares the batch.

Order of summation shows only with enough of it: two key blocks can never differ (addition commutes), from three on a
few elements in 1e5 do, so a case needs at least three key tiles and 1e6 gradient elements; real schedulers are not
random, so half of the repeats run while something else keeps the device busy.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import cast

import torch
from torch import Tensor

from attncheck.attention import memory
from attncheck.attention.backend import Backend, Device, Outputs, Refused
from attncheck.attention.calls.common import deterministic_algorithms
from attncheck.attention.device import message, out_of_memory
from attncheck.attention.inputs import Inputs, make
from attncheck.core.cases import Case
from attncheck.core.results.verdicts import Difference, Mode, Repeats

TENSORS = ("out", "dq", "dk", "dv")
OTHERS = 7  # rows that share the batch with the one that is watched
PLACE = 5  # …and where it stands among them
LOAD = 4096  # size of the matrix product that keeps a GPU busy
GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)


class Repeater:
    """One backend, repeated on one device."""

    def __init__(self, backend: Backend, device: Device, repeats: int, warm_up: int = 0) -> None:
        """`repeats` counts every call, the first included; `warm_up` calls before them are not looked at."""
        self.backend, self.device, self.repeats, self.warm_up = backend, device, repeats, warm_up

    def measure(self, case: Case, mode: Mode) -> Repeats:
        """Return what repeating `case` in `mode` showed. Raises nothing that the backend raised."""
        switch = {"default": "", "deterministic": self.backend.deterministic, "warn_only": WARN_ONLY}[mode]
        blank = Repeats(self.backend.name, case, mode, "ok", deterministic_switch=switch)
        reason = self.backend.refuse(case, self.device)
        if reason:
            return replace(blank, outcome="refused", reason=reason)
        try:
            return self._measured(case, mode, blank)
        except Refused as refusal:
            return replace(blank, outcome="refused", reason=str(refusal))
        except BaseException as error:  # whatever a kernel raises is its verdict, not our end
            if out_of_memory(error):
                free = memory.told(memory.free(self.device.kind))
                return replace(blank, outcome="out_of_memory", reason=f"out of memory, {free} were free")
            return replace(blank, outcome="raised", reason=message(error))

    def _measured(self, case: Case, mode: Mode, blank: Repeats) -> Repeats:
        inputs = make(case, self.device.kind)
        for _ in range(self.warm_up):
            self._call(inputs, mode)
        watched = _Watched(self._call(inputs, mode))
        call_ms, peak = self._time(lambda: self._call(inputs, mode))
        idle = (self.repeats - 1) // 2
        for _ in range(idle):
            watched.again(self._call(inputs, mode))
        with load(self.device.kind) as push:
            for _ in range(self.repeats - 1 - idle):
                push()
                watched.again(self._call(inputs, mode))
        return replace(
            blank,
            repeats=self.repeats,
            under_load=self.repeats - 1 - idle,
            differences=watched.differences(),
            batch=self._batch(case) if mode == "default" and case.layout == "dense" else (),
            call_ms=round(call_ms, 4),
            memory_bytes=peak,
        )

    def _call(self, inputs: Inputs, mode: Mode) -> Outputs:
        with deterministic_algorithms(mode == "warn_only", warn_only=True):
            return self.backend.run(inputs, mode == "deterministic")

    def _time(self, call: Callable[[], Outputs]) -> tuple[float, int]:
        """Return the median milliseconds of a few calls, and the most bytes that one held beyond its inputs."""
        times = []
        cuda = self.device.kind == "cuda"
        before = torch.cuda.memory_allocated() if cuda else 0
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        for _ in range(5 if cuda else 2):
            began = time.perf_counter()
            call()
            if cuda:
                torch.cuda.synchronize()
            times.append(1e3 * (time.perf_counter() - began))
        return statistics.median(times), torch.cuda.max_memory_allocated() - before if cuda else 0

    def _batch(self, case: Case) -> tuple[Difference, ...]:
        """Compare a row alone with the same row among others, in the first place and in another.

        Gradients are compared under the deterministic switch, where there is one that can be had, so that only the
        batch is to blame.
        """
        alone = replace(case, seqlens_q=(640,), seqlens_k=(640,))
        shared = replace(alone, seqlens_q=(640,) * (OTHERS + 1), seqlens_k=(640,) * (OTHERS + 1))
        single, many = make(alone, self.device.kind), make(shared, self.device.kind)
        strict = self.backend.deterministic_switch != ""
        first = _Watched(self._strict(single, strict))
        for place in (0, PLACE):
            first.again(_row(self._strict(_put(single, many, place), strict), place))
        return first.differences()

    def _strict(self, inputs: Inputs, strict: bool) -> Outputs:
        try:
            return self.backend.run(inputs, strict)
        except Refused:
            forward = replace(inputs, case=replace(inputs.case, backward=False))
            return self.backend.run(forward, False)


WARN_ONLY = "torch.use_deterministic_algorithms(True, warn_only=True)"


def _put(single: Inputs, many: Inputs, place: int) -> Inputs:
    """Return `many` with the one row of `single` at `place`."""

    def put(one: Tensor, all_rows: Tensor) -> Tensor:
        rows = all_rows.clone()
        rows[place] = one[0]
        return rows

    return replace(
        many,
        q=put(single.q, many.q),
        k=put(single.k, many.k),
        v=put(single.v, many.v),
        dout=put(single.dout, many.dout),
    )


def _row(outputs: Outputs, place: int) -> Outputs:
    def row(x: Tensor | None) -> Tensor | None:
        return None if x is None else x[place : place + 1]

    return Outputs(cast(Tensor, row(outputs.out)), None, row(outputs.dq), row(outputs.dk), row(outputs.dv))


@dataclass
class _Watch:
    """One tensor's first result, and what later ones showed against it."""

    first: Tensor
    digests: set[int]
    calls: int = 1
    first_differing: int = 0
    max_abs: float = 0.0
    place: tuple[int, int] = (-1, -1)
    ever: Tensor | None = None

    def again(self, x: Tensor) -> None:
        self.calls += 1
        if same_bits(self.first, x):
            return
        self.digests.add(digest(x))
        differs = bits(self.first) != bits(x)
        self.ever = differs if self.ever is None else self.ever | differs
        if not self.first_differing:
            self.first_differing = self.calls
            where = differs.nonzero()[0].tolist()
            self.place = (where[1], where[2])
        gap = (self.first.float() - x.float()).abs()
        self.max_abs = max(self.max_abs, float(gap.nan_to_num(0.0, 0.0, 0.0).max()))


@dataclass
class _Watched:
    """Every tensor of a backend's outputs, watched over its calls."""

    outputs: Outputs
    watches: dict[str, _Watch] = field(init=False)

    def __post_init__(self) -> None:
        self.watches = {}
        for name in TENSORS:
            x = getattr(self.outputs, name)
            if x is not None:
                self.watches[name] = _Watch(x.clone(), {digest(x)})

    def again(self, outputs: Outputs) -> None:
        """Compare one more call."""
        for name, watch in self.watches.items():
            x = getattr(outputs, name)
            if x is not None:
                watch.again(x)

    def differences(self) -> tuple[Difference, ...]:
        """Return what was seen of each tensor."""
        return tuple(
            Difference(
                tensor=name,
                distinct=len(watch.digests),
                first_differing=watch.first_differing,
                max_abs=watch.max_abs,
                elements=0 if watch.ever is None else int(watch.ever.sum()),
                numel=watch.first.numel(),
                token=watch.place[0],
                head=watch.place[1],
            )
            for name, watch in self.watches.items()
        )


def bits(x: Tensor) -> Tensor:
    """Return the bit patterns of a floating-point tensor, contiguous."""
    return x.contiguous().view(torch.int16 if x.element_size() == 2 else torch.int32)


def same_bits(one: Tensor, two: Tensor) -> bool:
    """Say whether two tensors hold the same bits, NaN included."""
    return bool(torch.equal(bits(one), bits(two)))


def digest(x: Tensor) -> int:
    """Return 64 bits that tell tensors apart: a sum, modulo 2^64, of the bit patterns times odd numbers by place.

    Integer sums do not depend on their order, so the digest is the same on every run.
    """
    flat = bits(x).reshape(-1)
    total = 0
    for start in range(0, flat.numel(), 1 << 24):
        part = flat[start : start + (1 << 24)].to(torch.int64)
        places = torch.arange(start, start + part.numel(), device=x.device)
        mixed = (places * GOLDEN) ^ ((places * GOLDEN) >> 29)
        total += int((part * (mixed | 1)).sum())
    return total & ((1 << 64) - 1)


@contextlib.contextmanager
def load(kind: str) -> Iterator[Callable[[], None]]:
    """Keep the device busy: yield what to call before each repeat (CUDA), or run a thread beside it (CPU)."""
    if kind == "cuda":
        stream = torch.cuda.Stream()
        a = torch.randn(LOAD, LOAD, device="cuda", dtype=torch.bfloat16)

        def push() -> None:
            with torch.cuda.stream(stream):
                for _ in range(4):
                    torch.matmul(a, a)

        yield push
        stream.synchronize()
        return
    stop = threading.Event()

    def work() -> None:
        a = torch.randn(256, 256)
        while not stop.is_set():
            torch.matmul(a, a)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield lambda: None
    finally:
        stop.set()
        thread.join()
