"""Times a backend on one case in one mode, and measures whether it is right and whether its bits repeat.

A wrong backend is timed too, because users should know that it is fast but wrong. A backend that refuses the case or
raises is not timed.
"""

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from attncheck.attention import memory
from attncheck.attention.backend import Backend, Device, Outputs
from attncheck.attention.device import describe_exception, is_out_of_memory
from attncheck.attention.inputs import Inputs, make_inputs
from attncheck.core.cases import Case
from attncheck.core.results.timings import TimedMode, Timing, passes_of
from attncheck.core.verdicts import Run, judge_run
from attncheck.measure.statistics import half_width, quantile
from attncheck.measure.worker.clock import BUDGETS, CallTimes, time_calls
from attncheck.measure.worker.device_rates import DriftMatmul
from attncheck.measure.worker.gpu_clocks import observe_clocks
from attncheck.measure.worker.guarded_calls import has_same_bits
from attncheck.measure.worker.repeats import TENSORS, background_load
from attncheck.measure.worker.session import ParitySession
from attncheck.measure.worker.training_calls import training_step_calls

COMPARED_CALLS = {"cuda": 32, "cpu": 8}  # calls whose bits are compared, half of them under load
MIN_COMPARED_CALLS = 8
COMPARING_SECONDS = 1.0  # approximate time for these calls: fewer are made if each is long


class BenchSession:
    """Times backends on one device, together with a matrix product whose times show the device's drift."""

    def __init__(self, device: Device, backends: Sequence[Backend], seconds: float, dtype: str) -> None:
        """`backends` are all known ones, to detect that another backend's kernel runs instead of the timed one's."""
        self.device, self.backends, self.seconds = device, backends, seconds
        self._drift_matmul = DriftMatmul(device.kind, dtype)
        gc.collect()
        gc.freeze()  # objects that importing torch created need not be scanned again before each case

    def measure(self, backend: Backend, case: Case, mode: TimedMode) -> tuple[Run, Timing]:
        """Return the parity run of `case` in `mode`, and its timing. Raises none of the backend's exceptions."""
        began = time.monotonic()
        run, timing = self._measure(backend, case, mode)
        return run, replace(timing, seconds=round(time.monotonic() - began, 3))

    def _measure(self, backend: Backend, case: Case, mode: TimedMode) -> tuple[Run, Timing]:
        run = self._run_parity(backend, case, mode)
        verdict = judge_run(run)
        blank = Timing(
            backend.name,
            case,
            passes_of(case),
            mode,
            run.outcome,
            run.reason,
            verdict.answer,
            verdict.reason,
            deterministic_switch=backend.deterministic,
        )
        if run.outcome != "ok":
            return run, blank
        try:
            return run, self._time_case(backend, case, mode, blank)
        except BaseException as error:  # any exception of a kernel is its verdict, and must not end the worker
            if not is_out_of_memory(error):
                raised = replace(run, outcome="raised", reason=f"while it was timed: {describe_exception(error)}")
                return raised, replace(
                    blank, outcome="raised", reason=raised.reason, answer="fail", answer_reason=raised.reason
                )
            free = memory.format_bytes(memory.free_bytes(self.device.kind))
            return run, replace(blank, outcome="out_of_memory", reason=f"out of memory, {free} free")

    def _run_parity(self, backend: Backend, case: Case, mode: TimedMode) -> Run:
        strict = mode == "deterministic"

        def run_in_mode(inputs: Inputs, deterministic: bool) -> Outputs:
            return backend.run(inputs, strict)

        session = ParitySession(
            replace(backend, run=run_in_mode, deterministic_switch=""), self.device, self.backends, self.seconds
        )
        run = session.measure(case)
        return replace(run, case=replace(run.case, name=f"{case.name}@{mode}")) if strict else run

    def _time_case(self, backend: Backend, case: Case, mode: TimedMode, blank: Timing) -> Timing:
        kind, strict = self.device.kind, mode == "deterministic"
        gc.collect()
        memory.release_cached_memory(kind)
        inputs = make_inputs(replace(case, every_row=True), kind)

        def call() -> Outputs:
            return backend.run(inputs, strict)

        with training_step_calls():
            peak, size = self._measure_sizes(inputs, call)
            varied, repeats = self._compare_calls(call)
            with observe_clocks(kind) as clocks:
                before = self._drift_matmul.measure_ms()
                call_times = time_calls(call, kind, BUDGETS[kind], size)
                after = self._drift_matmul.measure_ms()
        return replace(
            fill_timing(blank, call_times),
            peak_memory_bytes=peak,
            repeats=repeats,
            varied=varied,
            reference_ms=(round(before, 5), round(after, 5)),
            clocks=clocks(),
        )

    def _measure_sizes(self, inputs: Inputs, call: Callable[[], Outputs]) -> tuple[int, int]:
        """Return the peak bytes of a call beyond its inputs (CUDA only), and the bytes of its inputs and outputs.

        The first call creates the masks, which count because the backend needs them.
        """
        cuda = self.device.kind == "cuda"
        before = torch.cuda.memory_allocated() if cuda else 0
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        outputs = call()
        tensors = [inputs.q, inputs.k, inputs.v, inputs.dout, *(getattr(outputs, name) for name in TENSORS)]
        size = sum(x.numel() * x.element_size() for x in tensors if x is not None)
        return torch.cuda.max_memory_allocated() - before if cuda else 0, size

    def _compare_calls(self, call: Callable[[], Outputs]) -> tuple[tuple[str, ...], int]:
        """Return the tensors whose bits change between calls, and the number of compared calls."""
        first, seconds = self._time_first_call(call)
        count = choose_compared_calls(seconds, self.device.kind)
        first_tensors = {name: x.clone() for name in TENSORS if (x := getattr(first, name)) is not None}
        varied: set[str] = set()
        with background_load(self.device.kind) as add_load:
            for index in range(1, count):
                if index >= count // 2:
                    add_load()
                outputs = call()
                varied |= {name for name, x in first_tensors.items() if not has_same_bits(x, getattr(outputs, name))}
        return tuple(name for name in TENSORS if name in varied), count

    def _time_first_call(self, call: Callable[[], Outputs]) -> tuple[Outputs, float]:
        """Return the outputs of a call, and the seconds until the device finished it."""
        cuda = self.device.kind == "cuda"
        if cuda:
            torch.cuda.synchronize()
        began = time.perf_counter()
        outputs = call()
        if cuda:
            torch.cuda.synchronize()
        return outputs, time.perf_counter() - began


def choose_compared_calls(seconds: float, kind: str) -> int:
    """Return the number of calls to compare if one takes `seconds`: the usual number, fewer if calls are long."""
    return max(MIN_COMPARED_CALLS, min(COMPARED_CALLS[kind], round(COMPARING_SECONDS / max(seconds, 1e-6))))


def fill_timing(blank: Timing, call_times: CallTimes) -> Timing:
    """Return `blank` with the measured times, in milliseconds."""
    return replace(
        blank,
        median_ms=round(call_times.median_ms, 5),
        p10_ms=round(quantile(call_times.times_ms, 0.1), 5),
        p90_ms=round(quantile(call_times.times_ms, 0.9), 5),
        interval_ms=round(half_width(call_times.times_ms), 5),
        calls=len(call_times.times_ms),
        stable=call_times.settled and call_times.is_precise,
        host_ms=round(call_times.host_ms, 5),
        flushed=call_times.flushed,
    )
