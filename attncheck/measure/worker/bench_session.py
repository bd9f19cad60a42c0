"""Times one backend on one case in one mode: is it right there, are its bits the same every time, how fast is it.

A backend that is wrong is timed too: that it is fast and wrong is worth knowing. One that refuses the case, or raises,
is not.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace

import torch

from attncheck.attention import memory
from attncheck.attention.backend import Backend, Device, Outputs
from attncheck.attention.device import message, out_of_memory
from attncheck.attention.inputs import Inputs, make
from attncheck.core.cases import Case
from attncheck.core.results.timings import TimedMode, Timing, passes_of
from attncheck.core.results.verdicts import Run, judge
from attncheck.measure.statistics import half_width, quantile
from attncheck.measure.worker.clock import BUDGETS, Measured, measure
from attncheck.measure.worker.device_rates import Reference
from attncheck.measure.worker.gpu_clocks import observed
from attncheck.measure.worker.repeats import TENSORS, load, same_bits
from attncheck.measure.worker.session import Session
from attncheck.measure.worker.training_calls import steady

REPEATS = {"cuda": 32, "cpu": 8}  # calls whose bits are compared, half of them under load


class BenchSession:
    """One backend, timed on one device, beside a product of matrices by which drift is told."""

    def __init__(self, backend: Backend, device: Device, others: Sequence[Backend], seconds: float, dtype: str) -> None:
        self.backend, self.device, self.others, self.seconds = backend, device, others, seconds
        self._reference = Reference(device.kind, dtype)

    def measure(self, case: Case, mode: TimedMode) -> tuple[Run, Timing]:
        """Return parity's run of `case` in `mode`, and how long the backend takes. Raises nothing it raised."""
        run = self._parity(case, mode)
        verdict = judge(run)
        blank = Timing(
            self.backend.name,
            case,
            passes_of(case),
            mode,
            run.outcome,
            run.reason,
            verdict.answer,
            verdict.reason,
            deterministic_switch=self.backend.deterministic,
        )
        if run.outcome != "ok":
            return run, blank
        try:
            return run, self._timed(case, mode, blank)
        except BaseException as error:  # whatever a kernel raises is its verdict, not our end
            if not out_of_memory(error):
                lost = replace(run, outcome="raised", reason=f"while it was timed: {message(error)}")
                return lost, replace(
                    blank, outcome="raised", reason=lost.reason, answer="fail", answer_reason=lost.reason
                )
            free = memory.told(memory.free(self.device.kind))
            return run, replace(blank, outcome="out_of_memory", reason=f"out of memory, {free} are free")

    def _parity(self, case: Case, mode: TimedMode) -> Run:
        strict = mode == "deterministic"

        def chosen(inputs: Inputs, deterministic: bool) -> Outputs:
            return self.backend.run(inputs, strict)

        session = Session(replace(self.backend, run=chosen), self.device, self.others, self.seconds)
        run = session.measure(case)
        return replace(run, case=replace(run.case, name=f"{case.name}@{mode}")) if strict else run

    def _timed(self, case: Case, mode: TimedMode, blank: Timing) -> Timing:
        kind, strict = self.device.kind, mode == "deterministic"
        gc.collect()
        memory.give_back(kind)
        inputs = make(replace(case, every_row=True), kind)
        with steady():
            peak, size = self._sizes(inputs, strict)
            varied, repeats = self._varied(inputs, strict)
            with observed(kind) as clocks:
                before = self._reference.ms()
                found = measure(lambda: self.backend.run(inputs, strict), kind, BUDGETS[kind], size)
                after = self._reference.ms()
        return replace(
            filled(blank, found),
            peak_memory_bytes=peak,
            repeats=repeats,
            varied=varied,
            reference_ms=(round(before, 5), round(after, 5)),
            clocks=clocks(),
        )

    def _sizes(self, inputs: Inputs, strict: bool) -> tuple[int, int]:
        """Return the bytes that a call holds at most beyond its inputs (CUDA only), and those of what goes in and out.

        The first call makes the masks, which count: the backend needs them.
        """
        cuda = self.device.kind == "cuda"
        before = torch.cuda.memory_allocated() if cuda else 0
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        outputs = self.backend.run(inputs, strict)
        tensors = [inputs.q, inputs.k, inputs.v, inputs.dout, *(getattr(outputs, name) for name in TENSORS)]
        size = sum(x.numel() * x.element_size() for x in tensors if x is not None)
        return torch.cuda.max_memory_allocated() - before if cuda else 0, size

    def _varied(self, inputs: Inputs, strict: bool) -> tuple[tuple[str, ...], int]:
        """Return the tensors whose bits change from call to call, and how many calls were compared."""
        count = REPEATS[self.device.kind]
        first = self.backend.run(inputs, strict)
        kept = {name: x.clone() for name in TENSORS if (x := getattr(first, name)) is not None}
        varied: set[str] = set()
        with load(self.device.kind) as push:
            for index in range(1, count):
                if index >= count // 2:
                    push()
                outputs = self.backend.run(inputs, strict)
                varied |= {name for name, x in kept.items() if not same_bits(x, getattr(outputs, name))}
        return tuple(name for name in TENSORS if name in varied), count


def filled(blank: Timing, found: Measured) -> Timing:
    """Return a timing with the times that were measured."""
    return replace(
        blank,
        median_ms=round(found.median, 5),
        p10_ms=round(quantile(found.times, 0.1), 5),
        p90_ms=round(quantile(found.times, 0.9), 5),
        interval_ms=round(half_width(found.times), 5),
        calls=len(found.times),
        stable=found.settled and found.precise,
        host_ms=round(found.host_ms, 5),
        flushed=found.flushed,
    )
