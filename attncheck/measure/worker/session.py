"""Runs one backend on one case and measures it: refusals, memory, the kernels that ran, errors, patterns."""

import contextlib
import gc
import itertools
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch

from attncheck.attention import memory
from attncheck.attention.backend import Backend, Device, Outputs, Refused, refusal
from attncheck.attention.backends.eager import BACKEND as EAGER
from attncheck.attention.calls.common import deterministic_algorithms
from attncheck.attention.device import describe_exception, is_out_of_memory
from attncheck.attention.inputs import Inputs, make_inputs, negate_inputs
from attncheck.attention.kernel_trace import foreign_kernels, own_kernels, trace_kernels
from attncheck.attention.reference.error_patterns import describe_patterns
from attncheck.attention.reference.explanations import Known, WrongCall, explain
from attncheck.attention.reference.oracle import Reference
from attncheck.attention.reference.score import TENSORS
from attncheck.attention.reference.structured import run_probe
from attncheck.attention.reference.structured_common import ProbeResult
from attncheck.attention.reference.structured_edits import find_state
from attncheck.core.cases import Case
from attncheck.core.verdicts import Run, Score, budget_ratio
from attncheck.measure.case_features import EXPLAINED, UNREPEATED
from attncheck.measure.worker.guarded_calls import DIRT, BrokenCall, call_unchanged, fill_free_memory, hold_other_values
from attncheck.measure.worker.judging import SharedResults, reference_for, score_backend
from attncheck.measure.worker.simpler_cases import (
    MAX_CELLS,
    change_parameters,
    describe_cause,
    describe_state,
    lengthen,
    make_decoy,
)

T = TypeVar("T")
MAX_CPU_CELLS = 1 << 27  # with more score entries, the oracle samples rows on a CPU
CPU_SECONDS_PER_SCORE = 6e-9  # per score entry of head_dim 64, forward and backward, one thread
UNJUDGED_ERRORS = (Refused, RuntimeError, NotImplementedError, ValueError)  # of a deterministic mode
MAX_CAUSES = 3  # the most wrong cases for which simpler cases are tried
GROSS_RATIO = 30.0  # of an error to its budget that simpler cases show too
STATISTIC = ("dropout", "the weights that dropout", "without dropout")  # of violations that only many weights show
MAX_YARDSTICK_SCORES = {
    "cpu": 1 << 20,
    "cuda": 1 << 28,
}  # up to this size eager runs too, as the usual yardstick


def find_malformed_outputs(inputs: Inputs, outputs: Outputs) -> tuple[str, ...]:
    """Return violations: missing outputs, or outputs of a shape or dtype that a training job cannot use."""
    case, violations = inputs.case, []
    out_shape = (case.batch, case.seqlen_q, case.num_heads, case.v_head_dim)
    shapes = {"out": out_shape, "dq": tuple(inputs.q.shape), "dk": tuple(inputs.k.shape), "dv": tuple(inputs.v.shape)}
    for name, expected in shapes.items():
        x = getattr(outputs, name)
        if x is None:
            if name == "out" or case.backward:
                violations.append(f"it returns no {name}")
        elif tuple(x.shape) != expected:
            violations.append(f"{name} has the shape {tuple(x.shape)}, not {expected}")
        elif x.dtype != inputs.q.dtype:
            violations.append(f"{name} is {str(x.dtype).removeprefix('torch.')}, not {case.dtype}")
    if outputs.lse is not None and tuple(outputs.lse.shape) != (case.batch, case.num_heads, case.seqlen_q):
        violations.append(
            f"lse has the shape {tuple(outputs.lse.shape)}, not {(case.batch, case.num_heads, case.seqlen_q)}"
        )
    if case.sinks and case.backward and outputs.dsinks is None:
        violations.append("it returns no gradient for the sinks, so they would never be trained")
    return tuple(violations)


def is_fatal(run: Run) -> bool:
    """Return whether a run's exception leaves this process without a device: CUDA's errors are not recoverable."""
    return run.outcome == "raised" and is_fatal_error(run.reason)


def is_fatal_error(text: str) -> bool:
    """Return whether an exception's text is that of a CUDA error that leaves the process without a device."""
    return any(part in text for part in ("CUDA error", "cudaError", "device-side"))


class ParitySession:
    """Measures parity of one backend on one device, case after case."""

    def __init__(
        self,
        backend: Backend,
        device: Device,
        others: Sequence[Backend] = (),
        seconds: float = math.inf,
        judges: bool = True,
        traces_kernels: bool = True,
        shared: SharedResults | None = None,
    ) -> None:
        """`others` are the backends whose kernels must not run instead; `seconds` is a case's deadline.

        Runs have scores if `judges`: of several ranks, one judges for all. `traces_kernels` records the kernels or
        operators that run. `shared` is common to sessions that measure the same cases in turn.
        """
        self.backend, self.device, self.others, self.seconds = backend, device, others, seconds
        self.judges, self.traces_kernels, self.shared = judges, traces_kernels, shared
        self._traced_kinds: set[tuple[object, ...]] = set()
        self._known: Known = {}
        # A compiled shape takes seconds, a planned one fractions of a second.
        takes_any = judges and backend.sharding is None and not backend.compiles
        self._causes_left = (1 if backend.plans else MAX_CAUSES) if takes_any else 0

    def measure(self, case: Case) -> Run:
        """Return the backend's run of `case`. Raises none of the backend's exceptions."""
        run = self.check_case(case)
        return self.run_case(run) if run.outcome == "ok" else run

    def compile(self, case: Case) -> None:
        """Call a backend that compiles for each shape once, so that measuring the case does not delay other workers.

        Compiling takes tens of seconds of host time and almost no GPU time.
        """
        with contextlib.suppress(Exception):  # the case itself will report the error
            if self.check_case(case).outcome == "ok":
                self.backend.run(make_inputs(case, self.device.kind), False)

    def check_case(self, case: Case) -> Run:
        """Return an empty run of `case`, with outcome "ok" or the reason why it is refused or skipped."""
        if self.device.kind == "cpu" and case.cells > MAX_CPU_CELLS:
            case = replace(case, every_row=False)  # otherwise the oracle would take longer than the deadline
        blank = Run(
            self.backend.name,
            case,
            "ok",
            memory_bytes=memory.estimate_bytes(case, self.device.kind, self.backend),
            class_factor=self.backend.class_factor(case),
        )
        try:
            reason = refusal(self.backend, case, self.device)
        except BaseException as error:
            return replace(blank, outcome="raised", reason=describe_exception(error))
        if reason:
            return replace(blank, outcome="refused", reason=reason)
        free = memory.free_bytes(self.device.kind)
        if blank.memory_bytes > free:
            reason = (
                f"the case needs about {memory.format_bytes(blank.memory_bytes)}, {memory.format_bytes(free)} are free"
            )
            return replace(blank, outcome="skipped", reason=reason)
        expected = self._expected_seconds(case)
        if expected > self.seconds:
            reason = (
                f"the case would take about {expected:.0f} s on this CPU, but only "
                f"{self.seconds:.0f} s are allowed (--timeout)"
            )
            return replace(blank, outcome="skipped", reason=reason)
        return blank

    def run_case(self, blank: Run) -> Run:
        """Return the measured run of the case of `blank`."""
        case = blank.case
        try:
            return self._measure_case(case, blank)
        except Refused as refusal:
            return replace(blank, outcome="refused", reason=str(refusal))
        except BrokenCall as broken:
            if self.shared is not None:
                self.shared.forget()
            return replace(blank, violations=(str(broken),))
        except BaseException as error:  # any exception of a kernel is its verdict, and must not end the worker
            if not is_out_of_memory(error):
                return replace(blank, outcome="raised", reason=describe_exception(error))
            free = memory.format_bytes(memory.free_bytes(self.device.kind))
            reason = f"out of memory: about {memory.format_bytes(blank.memory_bytes)} expected, {free} are free"
            return replace(blank, outcome="out_of_memory", reason=reason)
        finally:
            if blank.memory_bytes > 4 << 30:
                gc.collect()
                memory.release_cached_memory(self.device.kind)

    def _expected_seconds(self, case: Case) -> float:
        """Return the estimated time of a long case on a CPU; on a GPU, every case that fits is fast enough."""
        return CPU_SECONDS_PER_SCORE * case.scores * case.head_dim / 64 if self.device.kind == "cpu" else 0.0

    def _measure_case(self, case: Case, blank: Run) -> Run:
        timed_call = _TimedCall(self._make_call(case), self.device.kind)
        if case.probe:
            return self._measure_probe(case, blank, timed_call)
        shared = self.shared or SharedResults()
        shared.begin(case)
        self._call_decoy(case, shared)
        inputs = shared.inputs_of(case, self.device.kind)
        outputs = timed_call(inputs)
        violations = find_malformed_outputs(inputs, outputs)
        if violations:
            return replace(
                blank, violations=violations, call_ms=timed_call.ms, **self._identify_kernels(timed_call, outputs)
            )
        if not self.judges:
            return blank
        began = time.perf_counter()
        scores, pattern = self._judge_outputs(inputs, outputs, timed_call, shared)
        oracle_ms = 1e3 * (time.perf_counter() - began)
        kernels = self._identify_kernels(timed_call, outputs)
        return replace(blank, scores=scores, call_ms=timed_call.ms, pattern=pattern, oracle_ms=oracle_ms, **kernels)

    def _measure_probe(self, case: Case, blank: Run, timed_call: "_TimedCall") -> Run:
        """Return the run of a case whose inputs show one property directly, in both modes if the switch is declared."""
        result = run_probe(case, self.device.kind, timed_call)
        is_strict = bool(case.dropout and self.backend.deterministic_switch and not result.violations)
        if is_strict:
            result = self._probe_deterministic(case, timed_call, result)
        violations = result.violations
        cause = self._describe_probed(case, is_strict, violations[0]) if violations else ()
        if case.dropout and cause and "dropout" not in cause[0]:  # masks are misread if the weights are wrong
            violations, cause = (cause[0], *(f"so {violation}" for violation in violations)), ()
        return replace(
            blank,
            violations=violations,
            warnings=result.warnings,
            pattern=cause,
            call_ms=timed_call.ms,
            **self._identify_kernels(timed_call, result.outputs),
        )

    def _judge_outputs(
        self, inputs: Inputs, outputs: Outputs, timed_call: "_TimedCall", shared: SharedResults
    ) -> tuple[tuple[Score, ...], tuple[str, ...]]:
        """Return the scores of a call, of the deterministic mode and of later calls, and lines on what is wrong."""
        case = inputs.case
        exact = reference_for(self.backend, self.device, inputs, shared)
        scores = score_backend(self.backend, outputs, exact, self._run_yardstick(inputs, outputs, shared))
        pattern = self._describe_patterns(outputs, exact, scores)
        strict, is_strict = self._run_deterministic(inputs), False
        if strict is not None:
            strict_scores = tuple(replace(score, mode="deterministic") for score in scores)
            if not has_same_outputs(outputs, strict):
                strict_scores = score_backend(self.backend, strict, exact, mode="deterministic")
            is_strict = not self._list_wrong(case, scores)
            pattern = pattern or self._describe_patterns(strict, exact, strict_scores)
            scores += strict_scores
        is_wrong = bool(self._list_wrong(case, scores))
        later_scores, state = self._judge_later_call(inputs, outputs, exact, timed_call, is_wrong)
        scores += later_scores
        if any(score.mode == "deterministic" for score in later_scores):
            is_wrong = is_strict = True
        if is_wrong and not state:
            ratio = max(budget_ratio(case, score, self.backend.class_factor(case)) for score in scores)
            cause = self._describe_cause(case, is_strict, ratio > GROSS_RATIO)
            wrong = strict if is_strict else outputs
            if cause and wrong is not None:  # after calls on other cases, the same call must still return the same
                state = find_state(inputs, wrong, partial(timed_call, deterministic=is_strict))[:1]
            pattern = pattern if state else (*cause, *pattern)
        return scores, (*state, *pattern)

    def _describe_probed(self, case: Case, deterministic: bool, violation: str) -> tuple[str, ...]:
        """Return lines on the cause of a probe's violation, or on state: without the probe's values too."""

        def call(given: Inputs) -> Outputs:
            return self.backend.run(given, deterministic)

        state: tuple[str, ...] = ()
        with contextlib.suppress(*UNJUDGED_ERRORS):
            inputs = make_inputs(replace(case, probe="", dropout=0.0), self.device.kind)
            before = call(inputs) if self._causes_left and not find_malformed_outputs(inputs, call(inputs)) else None
        cause = self._describe_cause(case, deterministic, not violation.startswith(STATISTIC))
        with contextlib.suppress(*UNJUDGED_ERRORS):
            state = find_state(inputs, before, call)[:1] if cause and before is not None else ()
        return state or cause

    def _probe_deterministic(self, case: Case, call: "_TimedCall", usual: ProbeResult) -> ProbeResult:
        """Return the result of the deterministic mode if it is wrong, otherwise the `usual` one."""
        try:
            strict = run_probe(case, self.device.kind, partial(call, deterministic=True))
        except UNJUDGED_ERRORS as error:
            if is_fatal_error(describe_exception(error)):
                raise
            return usual
        violations = tuple(f"in deterministic mode, {violation}" for violation in strict.violations)
        return replace(usual, violations=violations)

    def _call_decoy(self, case: Case, shared: SharedResults) -> None:
        """Call the backend on a small case's shapes, with other contents in its inputs' memory, or with other strides.

        Results that a backend caches by shape, or by address, then spoil the case.
        """
        decoy = replace(make_decoy(case), strides="contiguous", **change_parameters(case)[1])
        is_costly = self.backend.compiles or self.backend.plans or self.backend.sharding is not None
        is_same = replace(decoy, seed=case.seed) == replace(case, backward=False) and not case.sinks
        if is_same or is_costly or case.cells > MAX_CELLS or refusal(self.backend, decoy, self.device):
            return
        with contextlib.suppress(Exception):  # the case itself will report the error
            inputs, others = shared.inputs_of(case, self.device.kind), make_inputs(decoy, self.device.kind)
            with hold_other_values(inputs, others):
                given = replace(inputs, case=decoy) if case.strides == decoy.strides else others
                self.backend.run(given, False)

    def _is_right(self, case: Case, deterministic: bool, limit: float = 1.0) -> bool | None:
        """Return whether the backend's error on a case in one mode is at most `limit` times its budget.

        Return None if it does not run the case.
        """
        if case.probe:
            call = self._call_simpler(case, deterministic, lambda run: run_probe(case, self.device.kind, run))
            return None if call is None else not call.violations
        inputs = make_inputs(case, self.device.kind)
        outputs = self._call_simpler(case, deterministic, lambda run: run(inputs))
        if outputs is None or find_malformed_outputs(inputs, outputs):
            return None
        scores = score_backend(self.backend, outputs, reference_for(self.backend, self.device, inputs))
        return not self._list_wrong(case, scores, limit)

    def _call_simpler(
        self, case: Case, deterministic: bool, call: Callable[[Callable[[Inputs], Outputs]], T]
    ) -> T | None:
        """Return what `call` makes of the backend in one mode, None if the backend does not run the case."""
        if refusal(self.backend, case, self.device):
            return None
        try:
            with torch_mode(deterministic and not self.backend.deterministic_switch):
                return call(lambda given: self.backend.run(given, deterministic))
        except Exception as error:
            if is_fatal_error(describe_exception(error)):
                raise
            return None

    def _call_again(self, case: Case, deterministic: bool) -> Iterator[WrongCall]:
        """Yield the backend's results of a case, unless the case is too large or the backend does not run it."""
        if case.cells > MAX_CELLS:
            return
        inputs = make_inputs(case, self.device.kind)
        outputs = self._call_simpler(case, deterministic, lambda run: run(inputs))
        if outputs is None or find_malformed_outputs(inputs, outputs):
            return
        factor, exact = self.backend.class_factor(case), reference_for(self.backend, self.device, inputs)

        def measure(reference: Reference) -> dict[str, float]:
            scores = score_backend(self.backend, outputs, reference)
            return {score.tensor: budget_ratio(case, score, factor) for score in scores}

        yield WrongCall(inputs, outputs, exact, measure)

    def _describe_cause(self, case: Case, deterministic: bool, is_gross: bool) -> tuple[str, ...]:
        """Return lines on the known mistake that a wrong case shows, and on what it needs to be wrong.

        () if neither is found, or if that was asked often enough.
        """
        if not self._causes_left:
            return ()
        self._causes_left -= 1
        # What is wrong without dropout too must be as plainly wrong as the probe of dropout found.
        is_right = partial(self._is_right, deterministic=deterministic, limit=GROSS_RATIO if case.dropout else 1.0)
        if case.dropout and not is_gross:  # a smaller case has too few weights for statistics
            case, is_gross = replace(case, dropout=0.0, probe=""), True
        elif is_right(case):
            return (UNREPEATED,)
        usual = replace(case, probe="")
        if case.probe and not case.dropout and self._is_right(usual, deterministic) is False:
            case = usual  # a probe looks at some keys only, and other ones in a simpler case
        if is_gross and (state := describe_state(case, is_right, self._causes_left)):
            return (state,)
        reduced, lines = describe_cause(case, is_right, is_gross)
        cases = [replace(x, probe="", dropout=0.0) for x in (reduced, *lengthen(reduced), case)]
        with contextlib.suppress(RuntimeError):  # such as too little memory, which is not the backend's fault
            calls = (call for x in dict.fromkeys(cases) for call in self._call_again(x, deterministic))
            mistake = explain(calls, self._known)
            return (EXPLAINED + mistake, *lines) if mistake else lines
        return lines

    def _describe_patterns(self, outputs: Outputs, exact: Reference, scores: tuple[Score, ...]) -> tuple[str, ...]:
        over_budget = self._list_wrong(exact.case, scores)
        return describe_patterns(outputs, exact, over_budget, self.backend.sharding) if over_budget else ()

    def _judge_later_call(
        self, inputs: Inputs, outputs: Outputs, exact: Reference, call: "_TimedCall", is_wrong: bool
    ) -> tuple[tuple[Score, ...], tuple[str, ...]]:
        """Return the scores of a later call if it is wrong, and how a wrong backend depends on earlier calls.

        The call negates every input. Rounding is symmetric, so only the sign of the results may change. Ranks would
        have to agree on further calls, so context-parallel schemes are judged by determinism instead. If a backend
        declares no deterministic mode, torch's is on during the call, because the backend may follow it. If the call is
        wrong, one in the default mode shows whether that is the cause.
        """
        if self.backend.sharding is not None or inputs.case.dropout:
            return (), ()
        scores: tuple[Score, ...] = ()
        if not is_wrong:
            tries_mode = not (self.backend.deterministic_switch or self.backend.compiles)
            scores = self._score_negated(inputs, outputs, exact, call, tries_mode)
            if scores and tries_mode:
                later_scores = self._score_negated(inputs, outputs, exact, call, False)
                if not later_scores:
                    return scores, ()
                scores = later_scores
            if not scores:
                return (), ()
        return scores, find_state(inputs, outputs, call)[:1]

    def _score_negated(
        self, inputs: Inputs, outputs: Outputs, exact: Reference, call: "_TimedCall", deterministic: bool
    ) -> tuple[Score, ...]:
        """Return the scores of a call on negated inputs if they are over budget, otherwise ().

        Raises `BrokenCall` if a training job cannot use its results.
        """
        negated = negate_inputs(inputs)
        try:
            with torch_mode(deterministic):
                later = negate_outputs(call(negated, deterministic))
        except UNJUDGED_ERRORS as error:
            if not deterministic or is_fatal_error(describe_exception(error)):
                raise
            later = negate_outputs(call(negated))
        if violations := find_malformed_outputs(inputs, later):
            raise BrokenCall(f"in a later call, {violations[0]}")
        if has_same_outputs(outputs, later):
            return ()
        changes: dict[str, Any] = {"mode": "deterministic"} if deterministic else {"call": 2}
        scores = tuple(replace(score, **changes) for score in score_backend(self.backend, later, exact))
        return scores if self._list_wrong(exact.case, scores) else ()

    def _list_wrong(self, case: Case, scores: tuple[Score, ...], limit: float = 1.0) -> tuple[str, ...]:
        """Return the tensors whose error is over `limit` times its budget."""
        factor = self.backend.class_factor(case)
        return tuple(score.tensor for score in scores if budget_ratio(case, score, factor) > limit)

    def _run_deterministic(self, inputs: Inputs) -> Outputs | None:
        """Return the outputs of a call in deterministic mode, None if there is no such mode.

        This mode may use other kernels. Its refusals and exceptions are judged by determinism, because the job may
        never turn it on. Ranks would have to agree on the further call, so for a context-parallel scheme only
        determinism judges this mode. Raises `BrokenCall` if a training job cannot use its results.
        """
        if not self.backend.deterministic_switch or self.backend.sharding is not None:
            return None
        try:
            outputs = call_unchanged(lambda given: self.backend.run(given, True), inputs)
            if self.device.kind == "cuda":
                torch.cuda.synchronize()
        except UNJUDGED_ERRORS as error:
            if is_fatal_error(describe_exception(error)):
                raise
            return None
        if violations := find_malformed_outputs(inputs, outputs):
            raise BrokenCall(f"in deterministic mode, {violations[0]}")
        return outputs

    def _make_call(self, case: Case) -> Callable[[Inputs, bool], tuple[Outputs, tuple[str, ...]]]:
        """Return the call; its kernels are traced for the first case of each kind."""
        kind: tuple[object, ...] = (case.dtype, case.layout, case.backward, case.needs_mask, case.alibi, case.dropout)
        if self.device.kind == "cuda":  # CUDA kernels also depend on sizes
            kind += (case.head_dim, case.num_heads // case.num_kv_heads)
        is_new = kind not in self._traced_kinds
        self._traced_kinds.add(kind)

        def call(inputs: Inputs, deterministic: bool) -> tuple[Outputs, tuple[str, ...]]:
            nonlocal is_new
            traces, is_new = is_new, False  # later calls of the case run the same kernels
            # On the CPU, tracing would stop the compiler.
            if not traces or not self.traces_kernels or (self.backend.compiles and self.device.kind == "cpu"):
                return self.backend.run(inputs, deterministic), ()
            if self.backend.compiles:
                self.backend.run(inputs, False)
            return trace_kernels(lambda: self.backend.run(inputs, False), self.device.kind)

        return call

    def _identify_kernels(self, timed_call: "_TimedCall", outputs: Outputs) -> dict[str, Any]:
        """Return the fields of a run that name the kernels that ran: its own and another backend's."""
        names = timed_call.kernels + outputs.operators
        foreign = foreign_kernels(self.backend, names, self.others, complete=bool(timed_call.kernels))
        return {"kernels": own_kernels(self.backend, names), "foreign_kernels": foreign}

    def _run_yardstick(self, inputs: Inputs, outputs: Outputs, shared: SharedResults) -> Outputs | None:
        """Return eager's outputs, None if the case is too large for it or eager is the backend itself."""
        case = inputs.case
        is_small = (
            case.scores <= MAX_YARDSTICK_SCORES[self.device.kind]
            and EAGER.bytes_per_score * case.scores < memory.free_bytes(self.device.kind) / 4
        )
        if not is_small or case.dropout:
            return None
        if self.backend is EAGER:
            shared.keep_eager(outputs)
            return None
        return shared.eager_outputs(inputs)


@contextlib.contextmanager
def torch_mode(deterministic: bool) -> Iterator[None]:
    """Turn on torch's deterministic mode for a block, if `deterministic`, without its errors and warnings."""
    with warnings.catch_warnings(), deterministic_algorithms(deterministic, warn_only=True):
        if deterministic:
            warnings.simplefilter("ignore")
        yield


class _TimedCall:
    """A backend's call, with the milliseconds of all calls together and the kernels of the first one."""

    def __init__(self, call: Callable[[Inputs, bool], tuple[Outputs, tuple[str, ...]]], kind: str) -> None:
        self._call, self._kind = call, kind
        self.ms, self._dirt = 0.0, itertools.cycle(DIRT)
        self.kernels: tuple[str, ...] = ()
        self._earlier: Outputs | None = None

    def __call__(self, inputs: Inputs, deterministic: bool = False) -> Outputs:
        timed_call = partial(self._time_call, deterministic=deterministic)
        outputs, kernels = call_unchanged(timed_call, inputs, self._earlier)
        self.kernels, self._earlier = self.kernels or kernels, outputs
        return outputs

    def _time_call(self, inputs: Inputs, deterministic: bool) -> tuple[Outputs, tuple[str, ...]]:
        held = fill_free_memory(inputs, next(self._dirt))
        began = time.perf_counter()
        result = self._call(inputs, deterministic)
        if self._kind == "cuda":
            torch.cuda.synchronize()
        self.ms += 1e3 * (time.perf_counter() - began)
        del held
        return result


def has_same_outputs(first: Outputs, later: Outputs) -> bool:
    """Return whether two calls returned the same numbers, whatever the sign of a zero."""
    pairs = ((getattr(first, name), getattr(later, name)) for name in (*TENSORS, "lse", "dsinks"))
    return all(a is b or (a is not None and b is not None and torch.equal(a, b)) for a, b in pairs)


def negate_outputs(outputs: Outputs) -> Outputs:
    """Return the outputs with out, dq, dk and dv negated; scores, LSE and the sinks' gradient are even."""
    tensors = {name: x for name in TENSORS if (x := getattr(outputs, name)) is not None}
    return replace(outputs, **{name: -x for name, x in tensors.items()})
