"""What smoke measured for a plan: plain data, and the arithmetic that judges it."""

import math
from dataclasses import dataclass
from typing import ClassVar

from attncheck.core.plan import Plan
from attncheck.core.report import HUGE, UNMEASURED, Answer, MeasuredOn, MeasuredSection, Outcome, Verdict

# relative error above which a limit decides nothing: a kernel with an error of 20 % would pass
MAX_DECIDING_LIMIT = 0.1


@dataclass(frozen=True)
class Measure:
    """A measured number, and the limit beyond which it is wrong."""

    what: str  # "gradients, bf16"
    value: float
    limit: float
    where: str = ""  # "worst in model.layers.0.self_attn.q_proj.weight"

    @property
    def budget_ratio(self) -> float:
        """The value divided by its limit: above 1 fails."""
        if not math.isfinite(self.value):
            return HUGE
        return self.value / self.limit if self.limit else HUGE * (self.value > 0)

    @property
    def quantity(self) -> str:
        """The measured quantity, without precision or layout: "gradients"."""
        return self.what.partition(",")[0]

    @property
    def is_relative(self) -> bool:
        """Whether the value is an error relative to the expected size, not one in nats."""
        return "nats" not in self.what

    @property
    def beyond(self) -> bool:
        """Whether the value is wrong; NaN counts as wrong."""
        return not self.value <= self.limit


@dataclass(frozen=True)
class Layer:
    """The attention that one layer was configured to use, and the kernels that ran in it."""

    name: str  # "model.layers.0.self_attn"
    kind: str  # "full_attention", "sliding_attention", …; "" if the model does not name one
    requested: str  # the plan's attn_implementation
    dispatched: str  # the implementation in the layer's configuration when it ran
    ran: tuple[str, ...]  # "sdpa FLASH_ATTENTION", "flash_attention_2 packed", …
    kernels: tuple[str, ...] = ()  # names of the operators and kernels behind it


@dataclass(frozen=True)
class Step:
    """One optimiser step."""

    loss: float  # nats per predicted token
    grad_norm: float
    tokens_per_s: float
    peak_memory_bytes: int  # 0: not measured


@dataclass(frozen=True)
class CheckResult:
    """The result of one check of one model under a plan.

    A measure beyond its limit or a violation fails. A warning reports a fault that this plan does not use. Notes are
    evidence. `what_ran` adds `layers`, `training` adds `steps`.
    """

    check: str
    outcome: Outcome = "ok"
    reason: str = ""
    measures: tuple[Measure, ...] = ()
    violations: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    layers: tuple[Layer, ...] = ()
    steps: tuple[Step, ...] = ()
    floor: float = 0.0  # entropy of the training language, in nats per token
    bound: float = 0.0  # the training loss must fall below this
    seconds: float = 0.0


@dataclass(frozen=True)
class PlanRun:
    """A plan that was run on a model, and its results. `reason` says why it was tried, "" for the user's own plan."""

    model: str  # "llama", or the model that was named
    plan: Plan
    results: tuple[CheckResult, ...]
    reason: str = ""


def judge_result(result: CheckResult) -> Answer:
    """Return the verdict on a check's result."""
    if result.outcome in UNMEASURED:
        return UNMEASURED[result.outcome]
    if result.violations or any(measure.beyond for measure in result.measures):
        return "fail"
    return "warn" if result.warnings or find_undecided(result) else "pass"


def find_undecided(result: CheckResult) -> list[Measure]:
    """Return the measures with an inconclusive limit, unless another measure of the same quantity is conclusive.

    A value that the largest conclusive limit would allow is conclusive too.
    """
    decided = {m.quantity for m in result.measures if min(m.limit, m.value) <= MAX_DECIDING_LIMIT}
    return [m for m in worst_first(result) if m.is_relative and m.quantity not in decided and not m.beyond]


def deciding_reason(result: CheckResult) -> str:
    """Return in one line what decided the verdict on a check's result."""
    if result.outcome in UNMEASURED:
        return result.reason
    messages = (
        *result.violations,
        *(describe_measure(m) for m in worst_first(result) if m.beyond),
        *result.warnings,
        *map(describe_undecided, find_undecided(result)),
    )
    if messages:
        return messages[0]
    decisive = worst_first(result)[:1]
    return describe_measure(decisive[0]) if decisive else (result.notes or ("as expected",))[0]


def worst_first(result: CheckResult) -> list[Measure]:
    """Return the measures of a result, the one closest to or furthest beyond its limit first."""
    return sorted(result.measures, key=lambda measure: -measure.budget_ratio)


def describe_measure(measure: Measure) -> str:
    """Return a measure in words."""
    where = f", {measure.where}" if measure.where else ""
    return f"{measure.what}: off by {measure.value:.2g} (limit {measure.limit:.2g}){where}"


def describe_undecided(measure: Measure) -> str:
    """Return in words that a measure is inconclusive."""
    return (
        f"{measure.what}: cannot be judged, because rounding alone may cause {measure.limit:.2g} "
        f"(it is off by {measure.value:.2g})"
    )


@dataclass(frozen=True)
class Settings:
    """A plan as one framework writes it, ready to paste."""

    framework: str
    text: str


@dataclass(frozen=True)
class SmokeSection(MeasuredSection):
    """What `attncheck smoke` ran: the user's plan, then the fixed one, each with the results of its checks."""

    name: ClassVar[str] = "smoke"
    measured_on: MeasuredOn = MeasuredOn()
    verdicts: tuple[Verdict, ...] = ()
    plan_runs: tuple[PlanRun, ...] = ()
    settings: tuple[Settings, ...] = ()  # settings of the fixed plan

    @property
    def measurements(self) -> tuple[tuple[Outcome, str], ...]:
        """The outcome of each check."""
        return tuple((result.outcome, result.reason) for run in self.plan_runs for result in run.results)


SECTION = SmokeSection
