"""Runs one backend on one case and measures it: refusals, memory, what really ran, errors, patterns."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attncheck.attention import memory
from attncheck.attention.backend import Backend, Device, Outputs, Refused
from attncheck.attention.backends.eager import BACKEND as EAGER
from attncheck.attention.device import message, out_of_memory
from attncheck.attention.inputs import Inputs, make
from attncheck.attention.kernel_trace import another, own, watch
from attncheck.attention.reference.error_patterns import patterns
from attncheck.attention.reference.oracle import reference
from attncheck.attention.reference.score import scores
from attncheck.attention.reference.structured import examine
from attncheck.core.cases import Case
from attncheck.core.results.verdicts import Run, budget_ratio

COPIED = 1 << 30  # bytes of inputs that are copied, to see whether a backend writes to them
CPU_CELLS = 1 << 27  # score entries beyond which the oracle looks at sampled rows on a CPU
CPU_SECONDS = 6e-9  # per score entry of head_dim 64, forward and backward, one thread
YARDSTICK_CELLS = 1 << 28  # score entries that eager may hold to be the familiar yardstick


def copies(inputs: Inputs) -> dict[str, Tensor]:
    """Return copies of the inputs, to see whether a backend writes to them; of large ones none."""
    named = {name: getattr(inputs, name) for name in ("q", "k", "v", "dout")}
    size = sum(x.numel() * x.element_size() for x in named.values())
    return {name: x.clone() for name, x in named.items()} if size < COPIED else {}


def changed(inputs: Inputs, kept: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Return which inputs a backend wrote to."""
    return tuple(
        f"it writes to its input {name}" for name, x in kept.items() if not torch.equal(getattr(inputs, name), x)
    )


def malformed(inputs: Inputs, outputs: Outputs) -> tuple[str, ...]:
    """Return what is missing from the outputs, or of another shape or dtype than a training job needs."""
    case, found = inputs.case, []
    shape = (case.batch, case.seqlen_q, case.num_heads, case.v_head_dim)
    wanted = {"out": shape, "dq": tuple(inputs.q.shape), "dk": tuple(inputs.k.shape), "dv": tuple(inputs.v.shape)}
    for name, size in wanted.items():
        x = getattr(outputs, name)
        if x is None:
            if name == "out" or case.backward:
                found.append(f"it returns no {name}")
        elif tuple(x.shape) != size:
            found.append(f"{name} has the shape {tuple(x.shape)}, not {size}")
        elif x.dtype != inputs.q.dtype:
            found.append(f"{name} is {str(x.dtype).removeprefix('torch.')}, not {case.dtype}")
    if outputs.lse is not None and tuple(outputs.lse.shape) != (case.batch, case.num_heads, case.seqlen_q):
        found.append(f"lse has the shape {tuple(outputs.lse.shape)}, not {(case.batch, case.num_heads, case.seqlen_q)}")
    if case.sinks and case.backward and outputs.dsinks is None:
        found.append("it returns no gradient for the sinks, which would then never be trained")
    return tuple(found)


def fatal(run: Run) -> bool:
    """Say whether what a kernel raised leaves this process without a device: CUDA's errors do not go away."""
    return run.outcome == "raised" and any(word in run.reason for word in ("CUDA error", "cudaError", "device-side"))


class Session:
    """One backend at work on one device, case after case."""

    def __init__(
        self,
        backend: Backend,
        device: Device,
        others: Sequence[Backend] = (),
        seconds: float = math.inf,
        judging: bool = True,
        watching: bool = True,
    ) -> None:
        """`others` are the backends whose kernels must not be seen in its place; `seconds` is a case's deadline.

        A rank whose outputs another rank judges is not `judging`: its runs have no scores. `watching` looks which
        kernels or operators run.
        """
        self.backend, self.device, self.others, self.seconds = backend, device, others, seconds
        self.judging, self.watching = judging, watching
        self._looked: set[tuple[object, ...]] = set()

    def measure(self, case: Case) -> Run:
        """Return what the backend does with `case`. Raises nothing that the backend raised."""
        run = self.preflight(case)
        return self.attempt(run) if run.outcome == "ok" else run

    def preflight(self, case: Case) -> Run:
        """Return an empty run of `case`, or why it is refused or left out."""
        if self.device.kind == "cpu" and case.cells > CPU_CELLS:
            case = replace(case, every_row=False)  # the oracle would take longer than the deadline
        blank = Run(
            self.backend.name,
            case,
            "ok",
            memory_bytes=memory.needed(case, self.device.kind, self.backend),
            class_factor=self.backend.class_factor(case),
        )
        try:
            reason = self.backend.refuse(case, self.device)
        except BaseException as error:
            return replace(blank, outcome="raised", reason=message(error))
        if case.probe == "nan_poison" and not self.backend.indexes_by_cu_seqlens:
            reason = "takes a mask, through which NaN spreads by arithmetic (0 × NaN); poison tests it instead"
        if reason:
            return replace(blank, outcome="refused", reason=reason)
        free = memory.free(self.device.kind)
        if blank.memory_bytes > free:
            reason = f"the case needs about {memory.told(blank.memory_bytes)}, {memory.told(free)} are free"
            return replace(blank, outcome="skipped", reason=reason)
        expected = self._expected_seconds(case)
        if expected > self.seconds:
            reason = (
                f"the case would take about {expected:.0f} s on this CPU, {self.seconds:.0f} s are allowed (--timeout)"
            )
            return replace(blank, outcome="skipped", reason=reason)
        return blank

    def attempt(self, blank: Run) -> Run:
        """Return what running the case of an empty run showed."""
        case = blank.case
        try:
            return self._measured(case, blank)
        except Refused as refusal:
            return replace(blank, outcome="refused", reason=str(refusal))
        except BaseException as error:  # whatever a kernel raises is its verdict, not our end
            if not out_of_memory(error):
                return replace(blank, outcome="raised", reason=message(error))
            free = memory.told(memory.free(self.device.kind))
            reason = f"out of memory: about {memory.told(blank.memory_bytes)} expected, {free} are free"
            return replace(blank, outcome="out_of_memory", reason=reason)
        finally:
            if blank.memory_bytes > 4 << 30:
                gc.collect()
                memory.give_back(self.device.kind)

    def _expected_seconds(self, case: Case) -> float:
        """Return about how long a long case takes on a CPU; a GPU is never too slow for what fits on it."""
        return CPU_SECONDS * case.scores * case.head_dim / 64 if self.device.kind == "cpu" else 0.0

    def _measured(self, case: Case, blank: Run) -> Run:
        timed = _Timed(self._caller(case), self.device.kind)
        if case.probe:
            violations, outputs = examine(case, self.device.kind, timed)
            return replace(blank, violations=violations, call_ms=timed.ms, **self._identity(timed, outputs))
        inputs = make(case, self.device.kind)
        kept = copies(inputs)
        outputs = timed(inputs)
        wrong = (*malformed(inputs, outputs), *changed(inputs, kept))
        if wrong:
            return replace(blank, violations=wrong, call_ms=timed.ms, **self._identity(timed, outputs))
        if not self.judging:
            return blank
        began = time.perf_counter()
        answer = reference(
            inputs, self.backend.noise, self.backend.rounded_bias, self.backend.roundings(case, self.device)
        )
        yardstick = self._yardstick(inputs)
        found = scores(outputs, answer, yardstick, judge_lse=self.backend.noise == "fused" or case.dtype == "float32")
        run = replace(blank, scores=tuple(found), call_ms=timed.ms, **self._identity(timed, outputs))
        over = tuple(score.tensor for score in found if budget_ratio(case, score, run.class_factor) > 1.0)
        pattern = patterns(outputs, answer, over, self.backend.sharding) if over else ()
        return replace(run, pattern=pattern, oracle_ms=1e3 * (time.perf_counter() - began))

    def _caller(self, case: Case) -> Callable[[Inputs], tuple[Outputs, tuple[str, ...]]]:
        """Return the call, watched the first time that a case of this kind comes."""
        group = case.num_heads // case.num_kv_heads
        kind = (case.dtype, case.layout, case.backward, case.needs_mask, case.alibi, case.head_dim, group, case.dropout)
        new = kind not in self._looked or self.device.kind == "cpu"
        self._looked.add(kind)

        def call(inputs: Inputs) -> tuple[Outputs, tuple[str, ...]]:
            if (
                not new or not self.watching or (self.backend.compiles and self.device.kind == "cpu")
            ):  # watching would stop the compiler
                return self.backend.run(inputs, False), ()
            if self.backend.compiles:
                self.backend.run(inputs, False)
            return watch(lambda: self.backend.run(inputs, False), self.device.kind)

        return call

    def _identity(self, timed: _Timed, outputs: Outputs) -> dict[str, Any]:
        names = timed.ran + outputs.ran
        stranger = another(self.backend, names, self.others, everything=bool(timed.ran))
        return {"kernels": own(self.backend, names), "foreign_kernels": stranger}

    def _yardstick(self, inputs: Inputs) -> Outputs | None:
        case = inputs.case
        small = (
            case.scores <= YARDSTICK_CELLS and EAGER.bytes_per_score * case.scores < memory.free(self.device.kind) / 4
        )
        if self.backend is EAGER or not small or case.dropout:
            return None
        return EAGER.run(inputs, False)


class _Timed:
    """A backend's call with the time that its calls took together, and what the first was seen to run."""

    def __init__(self, call: Callable[[Inputs], tuple[Outputs, tuple[str, ...]]], kind: str) -> None:
        self._call, self._kind = call, kind
        self.ms = 0.0
        self.ran: tuple[str, ...] = ()

    def __call__(self, inputs: Inputs) -> Outputs:
        began = time.perf_counter()
        outputs, ran = self._call(inputs)
        if self._kind == "cuda":
            torch.cuda.synchronize()
        self.ms += 1e3 * (time.perf_counter() - began)
        self.ran = self.ran or ran
        return outputs
