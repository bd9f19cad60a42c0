"""Repeats a backend on the same inputs and compares bit by bit; then changes the other rows of the batch.

The order of summation only changes large enough sums. Two key blocks can never differ, because addition commutes; with
three or more, a few elements in 1e5 do. A case therefore needs at least three key tiles and 1e6 gradient elements. Real
schedulers are not random, so half of the repeats run while another workload keeps the device busy.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import InitVar, dataclass, field, replace
from typing import cast

import torch
from torch import Tensor

from attncheck.attention import memory
from attncheck.attention.backend import Backend, Device, Outputs, Refused
from attncheck.attention.calls.common import deterministic_algorithms
from attncheck.attention.device import describe_exception, is_out_of_memory
from attncheck.attention.inputs import Inputs, make_inputs
from attncheck.attention.reference.oracle import Reference
from attncheck.core.cases import Case
from attncheck.core.verdicts import Difference, Mode, Repeats, Score
from attncheck.measure.worker.guarded_calls import (
    DIRT,
    BrokenCall,
    bit_patterns,
    call_unchanged,
    digest_bits,
    fill_free_memory,
    has_same_bits,
)
from attncheck.measure.worker.judging import reference_for, score_backend

TENSORS = ("out", "dq", "dk", "dv")
WARM_UP_SEQLEN = 64
BATCH_SEQLEN = 640  # tokens of the rows, at most
OTHER_ROWS = 7  # other rows in the batch of the compared row
COMPARED_ROW = 5  # the compared row's index in the batch
FAR_LARGER = 4.0  # a later call is judged too if it differs this many times more than a judged call
MIN_REPEATS = 8  # for calls that repeat bit for bit without this mode
LOAD_MATMUL_SIZE = 4096  # size of the matrix product that keeps a GPU busy

LOAD_PAUSE = 2e-3  # pause in seconds between the bursts that keep a CPU busy; the bursts take as long


class Repeater:
    """Repeats one backend on one device."""

    def __init__(
        self,
        backend: Backend,
        device: Device,
        repeats: int,
        warm_up: int = 0,
        judges: bool = True,
    ) -> None:
        """`repeats` counts every call, the first included; `warm_up` calls before them are not compared.

        The values of the first call are scored if `judges`: of several ranks, one judges for all.
        """
        self.backend, self.device, self.repeats, self.warm_up = backend, device, repeats, warm_up
        self.judges = judges
        self._reference: Reference | None = None
        self._repeatable: Case | None = None  # the case that the default mode repeated bit for bit under load

    def load_kernels(self, case: Case) -> None:
        """Call the functions of such a case once, at a small size, so that a GPU loads them.

        The first call of a process takes seconds, and processes that wait for memory would take them one after another.
        """
        lengths = (WARM_UP_SEQLEN,) * len(case.seqlens_q)
        small = replace(case, seqlens_q=lengths, seqlens_k=lengths)
        with contextlib.suppress(Exception):  # the case itself will report the error
            inputs = make_inputs(small, self.device.kind)
            reference = reference_for(self.backend, self.device, inputs)
            if not self.backend.compiles and not self.backend.refuse(small, self.device):
                score_backend(self.backend, self._run_backend(inputs, "default"), reference)

    def compile(self, case: Case) -> None:
        """Call a backend that compiles for each shape once in advance, so that `begin` does not delay other workers.

        Compiling takes tens of seconds of host time and almost no GPU time.
        """
        with contextlib.suppress(Exception):  # the case itself will report the error
            if not self.backend.refuse(case, self.device):
                if case.layout == "dense":
                    self._compare_in_batch(case)
                self._run_backend(make_inputs(case, self.device.kind), "default")

    def measure(self, case: Case, mode: Mode) -> Repeats:
        """Return the repeats of `case` in `mode`. Raises none of the backend's exceptions."""
        return self.begin(case, mode)()

    def begin(self, case: Case, mode: Mode) -> Callable[[], Repeats]:
        """Judge the values and repeat under load and in a batch, which other workers may disturb.

        Return a function that times the calls and repeats them on an idle device. Raises none of the backend's
        exceptions.
        """
        switch = {"default": "", "deterministic": self.backend.deterministic, "warn_only": WARN_ONLY}[mode]
        blank = Repeats(self.backend.name, case, mode, "ok", deterministic_switch=switch)
        is_repeatable = mode != "default" and case == self._repeatable
        calls = min(self.repeats, MIN_REPEATS) if is_repeatable else self.repeats
        reason = self.backend.refuse(case, self.device)
        if reason:
            return lambda: replace(blank, outcome="refused", reason=reason)
        started: list[_StartedRepeats] = []

        def begin() -> Repeats:
            started.append(self._repeat_under_load(case, mode, replace(blank, repeats=calls)))
            return started[0].repeats

        repeats = self._shield(begin, blank)
        return lambda: self._shield(lambda: self._repeat_idle(mode, started.pop()), blank) if started else repeats

    def _shield(self, measure: Callable[[], Repeats], blank: Repeats) -> Repeats:
        """Return the result of `measure`, or an outcome for the backend's exception."""
        try:
            return measure()
        except Refused as refusal:
            return replace(blank, outcome="refused", reason=str(refusal))
        except BrokenCall as broken:
            return replace(blank, outcome="raised", reason=str(broken))
        except BaseException as error:  # any exception of a kernel is its verdict, and must not end the worker
            if is_out_of_memory(error):
                free = memory.format_bytes(memory.free_bytes(self.device.kind))
                return replace(blank, outcome="out_of_memory", reason=f"out of memory, {free} were free")
            return replace(blank, outcome="raised", reason=describe_exception(error))

    def _repeat_under_load(self, case: Case, mode: Mode, blank: Repeats) -> _StartedRepeats:
        inputs = make_inputs(case, self.device.kind)
        for _ in range(self.warm_up):
            self._run_backend(inputs, mode)
        batch = self._compare_in_batch(case) if mode == "default" and case.layout == "dense" else ()
        held = fill_free_memory(inputs, DIRT[0])
        first = call_unchanged(lambda given: self._run_backend(given, mode), inputs)
        del held
        scores = self._score_values(inputs, first, mode)
        comparison = _OutputComparison(first)
        repeats = replace(
            blank,
            under_load=blank.repeats - 1 - _count_idle(blank.repeats),
            scores=scores,
            class_factor=self.backend.class_factor(case),
        )
        with background_load(self.device.kind) as add_load:
            for _ in range(repeats.under_load):
                add_load()
                scores += self._compare_call(comparison, self._run_backend(inputs, mode), inputs, mode)
        repeats = replace(repeats, scores=scores)
        # Ranks would have to agree on it.
        if mode == "default" and self.backend.sharding is None and not comparison.varies:
            self._repeatable = case
        comparison.move("cpu")  # on the device it would take memory from the other workers until all are ready
        return _StartedRepeats(replace(repeats, batch=batch), comparison)

    def _repeat_idle(self, mode: Mode, started: _StartedRepeats) -> Repeats:
        inputs = make_inputs(started.repeats.case, self.device.kind)
        started.comparison.move(self.device.kind)
        calls: list[_TimedCall] = []
        scores = started.repeats.scores
        for _ in range(_count_idle(started.repeats.repeats)):
            scores += self._compare_call(started.comparison, self._time_call(inputs, mode, calls), inputs, mode)
        return replace(
            started.repeats,
            scores=scores,
            differences=started.comparison.differences(),
            call_ms=round(statistics.median(call.ms for call in calls), 4),
            memory_bytes=max(call.peak_bytes for call in calls),
        )

    def _compare_call(
        self, comparison: _OutputComparison, outputs: Outputs, inputs: Inputs, mode: Mode
    ) -> tuple[Score, ...]:
        """Compare one more call; return its scores if it differs more than all earlier calls."""
        if not comparison.compare(outputs):
            return ()
        return tuple(replace(score, call=comparison.calls) for score in self._score_values(inputs, outputs, mode))

    def _score_values(self, inputs: Inputs, outputs: Outputs, mode: Mode) -> tuple[Score, ...]:
        """Return the scores of a call's values: reproducible bits may still be wrong in one mode or one call."""
        if not self.judges:
            return ()
        if self._reference is None or self._reference.case != inputs.case:  # the modes of a case run one after another
            self._reference = reference_for(self.backend, self.device, inputs)
        return score_backend(self.backend, outputs, self._reference, mode=mode)

    def _run_backend(self, inputs: Inputs, mode: Mode) -> Outputs:
        with deterministic_algorithms(mode == "warn_only", warn_only=True):
            return self.backend.run(inputs, mode == "deterministic")

    def _time_call(self, inputs: Inputs, mode: Mode, calls: list[_TimedCall]) -> Outputs:
        """Return a call's outputs; add its time and memory to `calls`."""
        cuda = self.device.kind == "cuda"
        before = torch.cuda.memory_allocated() if cuda else 0
        if cuda:
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.synchronize()
        began = time.perf_counter()
        outputs = self._run_backend(inputs, mode)
        if cuda:
            torch.cuda.synchronize()
        ms = 1e3 * (time.perf_counter() - began)
        calls.append(_TimedCall(ms, torch.cuda.max_memory_allocated() - before if cuda else 0))
        return outputs

    def _compare_in_batch(self, case: Case) -> tuple[Difference, ...]:
        """Compare a row alone with the same row in a batch, as the first row and as another.

        Gradients are compared in deterministic mode, if the backend has one, so that only the batch can be the cause.
        """
        length = min(BATCH_SEQLEN, case.seqlen_q)
        alone = replace(case, seqlens_q=(length,), seqlens_k=(length,))
        shared = replace(alone, seqlens_q=(length,) * (OTHER_ROWS + 1), seqlens_k=(length,) * (OTHER_ROWS + 1))
        single, many = make_inputs(alone, self.device.kind), make_inputs(shared, self.device.kind)
        deterministic = self.backend.deterministic_switch != ""
        comparison = _OutputComparison(self._run_reproducible(single, deterministic))
        for row in (0, COMPARED_ROW):
            comparison.compare(_extract_row(self._run_reproducible(_insert_row(single, many, row), deterministic), row))
        return comparison.differences()

    def _run_reproducible(self, inputs: Inputs, deterministic: bool) -> Outputs:
        """Run the backend; only forward if it refuses the deterministic mode."""
        try:
            return self.backend.run(inputs, deterministic)
        except Refused:
            forward = replace(inputs, case=replace(inputs.case, backward=False))
            return self.backend.run(forward, False)


def _count_idle(repeats: int) -> int:
    return max(1, (repeats - 1) // 2)


WARN_ONLY = "torch.use_deterministic_algorithms(True, warn_only=True)"


def _insert_row(single: Inputs, many: Inputs, row: int) -> Inputs:
    """Return `many` with its row number `row` replaced by the only row of `single`."""

    def insert(x: Tensor, batch: Tensor) -> Tensor:
        rows = batch.clone()
        rows[row] = x[0]
        return rows

    return replace(
        many,
        q=insert(single.q, many.q),
        k=insert(single.k, many.k),
        v=insert(single.v, many.v),
        dout=insert(single.dout, many.dout),
    )


def _extract_row(outputs: Outputs, index: int) -> Outputs:
    def extract(x: Tensor | None) -> Tensor | None:
        return None if x is None else x[index : index + 1]

    return Outputs(
        cast(Tensor, extract(outputs.out)), None, extract(outputs.dq), extract(outputs.dk), extract(outputs.dv)
    )


@dataclass
class _TensorComparison:
    """One tensor's first result, and the differences of later results."""

    first: Tensor
    digests: set[int]
    calls: int = 1
    first_differing: int = 0
    max_abs: float = 0.0
    location: tuple[int, int] = (-1, -1)
    ever_differed: Tensor | None = None

    def compare(self, x: Tensor) -> bool:
        """Return whether x differs from the first result far more than any earlier result did."""
        self.calls += 1
        if has_same_bits(self.first, x):
            return False
        self.digests.add(digest_bits(x))
        differs = bit_patterns(self.first) != bit_patterns(x)
        self.ever_differed = differs if self.ever_differed is None else self.ever_differed | differs
        if not self.first_differing:
            self.first_differing = self.calls
            index = differs.nonzero()[0].tolist()
            self.location = (index[1], index[2])
        error = (self.first.float() - x.float()).abs()
        largest = float(error.nan_to_num(math.inf, math.inf, math.inf).max())
        is_larger = len(self.digests) == 2 or largest > FAR_LARGER * self.max_abs
        self.max_abs = max(self.max_abs, largest)
        return is_larger


@dataclass
class _OutputComparison:
    """A comparison of every tensor of a backend's outputs over its calls."""

    outputs: InitVar[Outputs]
    tensors: dict[str, _TensorComparison] = field(init=False)

    def __post_init__(self, outputs: Outputs) -> None:
        self.tensors = {}
        for name in TENSORS:
            x = getattr(outputs, name)
            if x is not None:
                self.tensors[name] = _TensorComparison(x.clone(), {digest_bits(x)})

    @property
    def calls(self) -> int:
        """The number of calls, the first one included."""
        return max(comparison.calls for comparison in self.tensors.values())

    @property
    def varies(self) -> bool:
        """Whether any call differed from the first one."""
        return any(len(comparison.digests) > 1 for comparison in self.tensors.values())

    def compare(self, outputs: Outputs) -> bool:
        """Compare the outputs of one more call; return whether a tensor differs far more than in any earlier call."""
        pairs = [(comparison, getattr(outputs, name)) for name, comparison in self.tensors.items()]
        return sum(comparison.compare(x) for comparison, x in pairs if x is not None) > 0

    def move(self, device: str) -> None:
        """Move the reference tensors to `device`."""
        for comparison in self.tensors.values():
            comparison.first = comparison.first.to(device)
            if comparison.ever_differed is not None:
                comparison.ever_differed = comparison.ever_differed.to(device)

    def differences(self) -> tuple[Difference, ...]:
        """Return how each tensor differed."""
        return tuple(
            Difference(
                tensor=name,
                distinct=len(comparison.digests),
                first_differing=comparison.first_differing,
                max_abs=comparison.max_abs,
                elements=0 if comparison.ever_differed is None else int(comparison.ever_differed.sum()),
                numel=comparison.first.numel(),
                token=comparison.location[0],
                head=comparison.location[1],
            )
            for name, comparison in self.tensors.items()
        )


@dataclass(frozen=True)
class _TimedCall:
    """The milliseconds of a call on an idle device, and its peak memory beyond its inputs."""

    ms: float
    peak_bytes: int


@dataclass
class _StartedRepeats:
    """Repeats that must still be timed, and run on an idle device."""

    repeats: Repeats
    comparison: _OutputComparison


@contextlib.contextmanager
def background_load(kind: str) -> Iterator[Callable[[], None]]:
    """Keep the device busy: yield a function to call before each repeat (CUDA), or run a thread (CPU)."""
    if kind == "cuda":
        stream = torch.cuda.Stream()
        a = torch.randn(LOAD_MATMUL_SIZE, LOAD_MATMUL_SIZE, device="cuda", dtype=torch.bfloat16)

        def add_load() -> None:
            with torch.cuda.stream(stream):
                for _ in range(4):
                    torch.matmul(a, a)

        yield add_load
        stream.synchronize()
        return
    stop = threading.Event()

    def multiply() -> None:
        a = torch.randn(256, 256)
        while not stop.wait(LOAD_PAUSE):
            for _ in range(4):
                torch.matmul(a, a)

    thread = threading.Thread(target=multiply, daemon=True)
    thread.start()
    try:
        yield lambda: None
    finally:
        stop.set()
        thread.join()
