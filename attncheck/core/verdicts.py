"""Judges a measured run: errors in units of the rounding noise that an ideal kernel must have.

`z_rms` is the rms over a tensor of error / sigma; `z_row` is the rms of the error over the rms of sigma in the worst
(token, head). An ideal kernel scores about 1 for any shape, length and inputs. Up to the budget a run passes. Up to
three times the budget is a precision regression (warn); beyond that the result is wrong (fail). Inputs whose sums
cancel multiply such a regression, so there a result is wrong only beyond a hundred times the budget. LSE, which is
float32 in every kernel, is judged by its largest absolute error, less 1e-5 of its size.

Rounding has no direction, so the regression slope of a head's result on the exact one is 1 to within the noise of its
rows, `slope_sigma`. A factor of 1.005, far below the noise of any element, is visible in the slope.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, get_args

from attncheck.core.cases import Case, Dtype
from attncheck.core.codec import HUGE as HUGE

Question = Literal["parity", "determinism", "smoke"]
Answer = Literal["pass", "warn", "fail", "refused", "skipped", "lost"]
# "timed_out": it hung on any machine. "out_of_time": the machine may have been too busy, so the backend is not
# blamed.
Outcome = Literal["ok", "refused", "out_of_memory", "raised", "skipped", "died", "timed_out", "out_of_time"]
Mode = Literal["default", "deterministic", "warn_only"]  # how a backend is called
ANSWERS: tuple[Answer, ...] = get_args(Answer)
UNMEASURED: dict[Outcome, Answer] = {  # the answer for each outcome other than "ok"
    "refused": "refused",
    "skipped": "skipped",
    "out_of_memory": "skipped",
    "raised": "fail",
    "died": "lost",
    "timed_out": "lost",
    "out_of_time": "lost",
}
FAIL_FACTOR = 3.0  # times the budget
CANCELLING_FAIL_FACTOR = 100.0  # if sums cancel, a mere loss of precision may be that many times the budget
LSE_BUDGET = 2e-4


@dataclass(frozen=True)
class Budget:
    """The largest z of a correct kernel: over the whole tensor, and in the worst (token, head)."""

    z_rms: float
    z_row: float


BUDGETS: dict[Dtype, Budget] = {
    "bfloat16": Budget(2.0, 12.0),
    "float16": Budget(2.0, 12.0),
    "float32": Budget(6.0, 30.0),
}
SINKS_BUDGET = Budget(6.0, 12.0)  # one number per head: there is little to average over
SMALL_FLOAT16_BUDGET = Budget(3.0, 12.0)  # sqrt(8): one subnormal rounding per partial gradient
SLOPE_SIGMAS = 4.0
# Slopes are not judged below this: kernels approximate exp and log (LSE's own budget is 2e-4).
SLOPE_FLOORS: dict[Dtype, float] = {"bfloat16": 3e-4, "float16": 3e-4, "float32": 1e-4}
# A rounded number times a factor just below 1 is often rounded back, in one direction: up to this part of it.
UNIT_ROUNDOFFS: dict[Dtype, float] = {"bfloat16": 2.0**-9, "float16": 2.0**-12, "float32": 2.0**-25}


@dataclass(frozen=True)
class Score:
    """One tensor of a run against the reference. For "lse", `z_row` is the largest error beyond 1e-5 of its size."""

    tensor: str  # "out", "lse", "dq", "dk", "dv", "dsinks"
    z_rms: float
    z_row: float
    nonfinite: int  # number of values that are NaN or infinite although the reference is finite
    relative_error: float  # Frobenius norm of the error divided by that of the reference
    cosine: float
    max_abs: float  # the largest error
    # max_abs divided by that of same-dtype eager, the measure that flash-attention's tests use; 0: not measured
    eager_ratio: float
    batch: int  # location of the worst (token, head)
    head: int
    token: int
    document: int
    rank: int = -1  # the rank that holds that token; -1: one device computed all
    slope: float = 1.0  # regression slope of the result on the exact one, in the head where it is furthest from 1…
    slope_sigma: float = 0.0  # …and its standard deviation by rounding alone
    slope_head: int = 0
    mode: Mode = "default"  # the mode in which the backend was called
    # number of the call on the case; later calls have other signs in their inputs and other bits in their results
    call: int = 1


@dataclass(frozen=True)
class Run:
    """One run of a backend on a case, and its scores."""

    backend: str
    case: Case
    outcome: Outcome
    reason: str = ""  # why it was refused, skipped or lost; the message if it raised
    scores: tuple[Score, ...] = ()
    violations: tuple[str, ...] = ()  # violations of a structured probe's exact expectation
    warnings: tuple[str, ...] = ()  # harmless observations of such a probe
    pattern: tuple[str, ...] = ()  # what the errors have in common
    kernels: tuple[str, ...] = ()  # kernels or operators in the trace
    foreign_kernels: str = ""  # what ran instead, if the trace shows it
    class_factor: float = 1.0  # legitimate extra rounding of the backend's class
    # duration of forward and backward, measured outside the call; includes the first call of its kind
    call_ms: float = 0.0
    oracle_ms: float = 0.0
    memory_bytes: int = 0  # estimated memory of the case


@dataclass(frozen=True)
class Verdict:
    """The verdict on one backend and one case. `budget_ratio` is the worst error over its budget."""

    question: Question
    backend: str
    case: str
    family: str
    answer: Answer
    reason: str
    budget_ratio: float = 0.0
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True)
class BackendState:
    """A backend in the examined environment: its version, or why it is not available."""

    name: str
    title: str
    package: str
    version: str = ""
    missing: str = ""
    over_ranks: bool = False  # whether it is a scheme of context parallelism


@dataclass(frozen=True)
class MeasuredOn:
    """The measured device, and how it was measured."""

    device: str = ""  # "cuda" or "cpu"
    name: str = ""
    torch: str = ""
    suite: str = ""
    seed: int = 0
    seconds: float = 0.0
    not_reached: int = 0  # cases that --budget or an interrupt left out
    interrupted: bool = False  # by Ctrl-C: the section holds what was measured until then
    ring_size: int = 0  # number of ranks if context parallelism was measured
    emulated: bool = False  # whether plain torch emulated flash-attn's kernels
    shimmed_names: tuple[str, ...] = ()  # names that ring-flash-attn misses in transformers, restored for the run

    def merge(self, later: "MeasuredOn") -> "MeasuredOn":
        """Return the device with the times of both measurements added and the cases that they left out."""
        if not (self.device and later.device):
            return self if self.device else later
        return replace(
            self,
            suite=self.suite or later.suite,
            seconds=round(self.seconds + later.seconds, 3),
            not_reached=self.not_reached + later.not_reached,
            ring_size=max(self.ring_size, later.ring_size),
            interrupted=self.interrupted or later.interrupted,
            emulated=self.emulated or later.emulated,
            shimmed_names=tuple(dict.fromkeys((*self.shimmed_names, *later.shimmed_names))),
        )


@dataclass(frozen=True)
class Difference:
    """How one tensor varies over repeated calls on the same inputs."""

    tensor: str
    distinct: int  # number of different bit patterns among the calls
    first_differing: int  # the first repeat, counted from 2, whose bits differ from the first call's; 0: none
    max_abs: float  # the largest difference from the first call
    elements: int  # number of elements that ever differed
    numel: int
    token: int = -1  # location of the first difference
    head: int = -1


@dataclass(frozen=True)
class Repeats:
    """The result of repeating one case in one mode, compared bitwise, and of batch invariance if that was tried."""

    backend: str
    case: Case
    mode: Mode
    outcome: Outcome
    reason: str = ""
    repeats: int = 0
    under_load: int = 0  # how many of them ran while other work kept the device busy
    differences: tuple[Difference, ...] = ()
    # a row on its own, compared with the same row among others and elsewhere in the batch
    batch: tuple[Difference, ...] = ()
    call_ms: float = 0.0  # median
    memory_bytes: int = 0  # peak in addition to the inputs; 0: not measured
    deterministic_switch: str = ""  # what the mode switched on
    scores: tuple[Score, ...] = ()  # scores of one call against the reference
    class_factor: float = 1.0


def error_budget(case: Case, tensor: str, class_factor: float = 1.0) -> Budget:
    """Return the largest z that is acceptable for `tensor` of a case without a warning."""
    if tensor == "lse":
        return Budget(LSE_BUDGET, LSE_BUDGET)
    if tensor == "dsinks":
        return SINKS_BUDGET
    base = SMALL_FLOAT16_BUDGET if case.dtype == "float16" and case.values == "small" else BUDGETS[case.dtype]
    return Budget(base.z_rms * class_factor, base.z_row * class_factor)


def slope_budget(dtype: Dtype, slope_sigma: float, class_factor: float = 1.0) -> float:
    """Return how far from 1 a regression slope may be without a warning; a `class_factor` above 1 rounds twice."""
    twice = UNIT_ROUNDOFFS[dtype] if class_factor > 1.0 else 0.0
    return max(SLOPE_FLOORS[dtype], SLOPE_SIGMAS * class_factor * slope_sigma + twice)


def budget_ratio(case: Case, score: Score, class_factor: float = 1.0) -> float:
    """Return the error of one tensor in units of its budget: above 1 warns, above 3 fails."""
    return HUGE if score.nonfinite else max(_budget_ratios(case, score, class_factor).values())


def _budget_ratios(case: Case, score: Score, class_factor: float) -> dict[str, float]:
    """Return each measure of a tensor's error in units of its budget."""
    allowed = error_budget(case, score.tensor, class_factor)
    if score.tensor == "lse":
        return {"lse": score.z_row / allowed.z_row}
    limit = slope_budget(case.dtype, score.slope_sigma, class_factor)
    return {
        "z_rms": score.z_rms / allowed.z_rms,
        "z_row": score.z_row / allowed.z_row,
        # otherwise rounding alone may produce any factor
        "slope": abs(score.slope - 1.0) / limit if limit < 1.0 else 0.0,
    }


def judge_run(run: Run) -> Verdict:
    """Return the verdict of parity on one run."""
    answer, reason, worst = _decide_answer(run)
    return Verdict("parity", run.backend, run.case.name, run.case.family, answer, reason, worst, _evidence_lines(run))


def _decide_answer(run: Run) -> tuple[Answer, str, float]:
    if run.outcome in UNMEASURED:
        unmeasured = UNMEASURED[run.outcome]
        is_fault = unmeasured in ("fail", "lost") and run.outcome != "out_of_time"
        return unmeasured, run.reason, HUGE if is_fault else 0.0
    if run.foreign_kernels:
        return "fail", f"{run.foreign_kernels} ran instead of {run.backend}", HUGE
    if run.violations:
        return "fail", run.violations[0], HUGE
    if run.warnings:
        return "warn", run.warnings[0], 0.0
    if not run.scores:
        return "pass", "as expected", 0.0
    ratio, error = worst_error(run.case, run.scores, run.class_factor)
    limit = CANCELLING_FAIL_FACTOR if run.case.values == "cancelling" else FAIL_FACTOR
    answer: Answer = "fail" if ratio > limit else "warn" if ratio > 1.0 else "pass"
    return answer, error, ratio


def worst_error(case: Case, scores: Iterable[Score], class_factor: float = 1.0) -> tuple[float, str]:
    """Return the largest error over its budget among `scores`, and that error in words; 0 and "" without scores."""
    ratio, worst = max(
        ((budget_ratio(case, s, class_factor), s) for s in scores), key=lambda p: p[0], default=(0.0, None)
    )
    return ratio, "" if worst is None else describe_error(case, worst, class_factor)


def describe_error(case: Case, score: Score, class_factor: float = 1.0) -> str:
    """Return one tensor's error in words, with the number that decides."""
    error = _describe_measure(case, score, class_factor)
    error = error if score.call == 1 else f"in call {score.call}, {error}"
    return error if score.mode == "default" else f"in {score.mode} mode, {error}"


def _describe_measure(case: Case, score: Score, class_factor: float) -> str:
    if score.nonfinite:
        values = "value is" if score.nonfinite == 1 else "values are"
        return f"{score.nonfinite} {values} NaN or infinite in {score.tensor}"
    allowed = error_budget(case, score.tensor, class_factor)
    ratios = _budget_ratios(case, score, class_factor)
    slope = ratios.pop("slope", 0.0)
    measure = max(ratios, key=lambda name: ratios[name])
    if ratios[measure] < min(slope, FAIL_FACTOR):  # in a wrong result that is not a mere multiple, it means little
        measure = "slope"
    if measure == "lse":
        return f"lse is off by {score.z_row:.2g} (budget {allowed.z_row:g})"
    if measure == "z_rms":
        return f"{score.tensor} has z_rms {score.z_rms:.3g} (budget {allowed.z_rms:.3g})"
    if measure == "slope":
        times = f"{score.slope:.5g} times the exact result in head {score.slope_head}"
        return f"{score.tensor} is {times} (budget ±{slope_budget(case.dtype, score.slope_sigma, class_factor):.2g})"
    where = f"batch {score.batch}, head {score.head}, token {score.token}{_rank_suffix(score)}"
    return f"{score.tensor} has z_row {score.z_row:.3g} (budget {allowed.z_row:.3g}) at {where}"


def _rank_suffix(score: Score) -> str:
    return f" on rank {score.rank}" if score.rank >= 0 else ""


def _evidence_lines(run: Run) -> tuple[str, ...]:
    lines = [*run.pattern, *(run.violations or run.warnings)[1:4]]
    for score in run.scores:
        if budget_ratio(run.case, score, run.class_factor) > 1.0:
            where = f"worst at batch {score.batch}, head {score.head}, token {score.token}{_rank_suffix(score)}"
            document = f", document {score.document}" if run.case.layout == "packed" else ""
            eager = f", {score.eager_ratio:.3g} × eager's largest error" if score.eager_ratio else ""
            error = describe_error(run.case, score, run.class_factor)
            lines.append(f"{error}; relative error {score.relative_error:.2g}{eager}; {where}{document}")
    return tuple(lines)
