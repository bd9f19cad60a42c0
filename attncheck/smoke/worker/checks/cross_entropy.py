"""Compares the plan's loss, its value and its gradient, with the cross-entropy in float64.

flash-attn's kernel does not support logits on a CPU: `flash_attn/ops/triton/cross_entropy.py` of 2.8.3 needs triton and
enters `torch.cuda.device`. torch computes its sums over rows; whether they repeat bit for bit is measured.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from attncheck.attention.device import describe_exception
from attncheck.core.results.smoke import CheckResult, Measure
from attncheck.smoke.worker.checks import agreement
from attncheck.smoke.worker.data.packing import IGNORE_INDEX
from attncheck.smoke.worker.losses import LossFunction, load_loss_function
from attncheck.smoke.worker.testbed import FP32_LIMIT, Testbed, relative_error

VOCABULARY_SIZES = (64, 32007)  # a smoke model's, and a real one that is not a multiple of a kernel's block
ROWS = 300  # more than a chunk, and not a multiple
ROUNDING_MULTIPLE = (
    2.0  # times the rounding error of an ideal gradient in its dtype: a kernel rounds it once (numerics §1.5)
)
REPEATS = 16  # repeated losses on the same logits
GRADIENT_SCALE = 0.125  # multiplies the loss before its backward; exact in every dtype
CHECK_NAME = "cross_entropy"


@dataclass(frozen=True)
class LossCase:
    """Logits and labels, some of them ignored, for a loss function."""

    name: str  # "32007 words, bfloat16"
    logits: Tensor
    labels: Tensor

    def evaluate(self, loss_function: LossFunction) -> tuple[Tensor, Tensor]:
        """Return the loss and its gradient times GRADIENT_SCALE."""
        logits = self.logits.clone().requires_grad_()
        value = loss_function(logits, self.labels)
        (gradient,) = torch.autograd.grad(value * GRADIENT_SCALE, logits)
        return value.detach(), gradient

    def evaluate_float64(self) -> tuple[Tensor, Tensor]:
        """Return the same values from torch's cross-entropy in float64, on the same logits."""
        return LossCase("", self.logits.double(), self.labels).evaluate(
            lambda logits, labels: cross_entropy(logits, labels, ignore_index=IGNORE_INDEX, reduction="sum")
        )


def make_case(vocabulary_size: int, dtype: torch.dtype, device: Any, seed: int) -> LossCase:
    """Return ROWS rows of logits: in a third the last tokens are likely, a third has an offset beyond exp's range.

    Every fifth label is ignored, and those of the first and last row. The others are random, except the first token of
    the vocabulary in one row and the last one in two.
    """
    generator = torch.Generator().manual_seed(seed + vocabulary_size)
    logits = 3.0 * torch.randn(ROWS, vocabulary_size, generator=generator)
    logits[ROWS // 3 : 2 * ROWS // 3, -5:] += 8.0
    logits[2 * ROWS // 3 :] += 100.0
    labels = torch.randint(vocabulary_size, (ROWS,), generator=generator)
    labels[1], labels[2], labels[-2] = 0, vocabulary_size - 1, vocabulary_size - 1
    labels[::5] = labels[-1] = IGNORE_INDEX
    name = f"{vocabulary_size} words, {str(dtype).removeprefix('torch.')}"
    return LossCase(name, logits.to(device, dtype), labels.to(device))


def run(testbed: Testbed) -> CheckResult:
    """Check the plan's loss in float32 and in the dtype of the plan's logits."""
    name = testbed.plan.cross_entropy
    try:
        loss_function = load_loss_function(name)
    except Exception as error:
        return CheckResult(
            CHECK_NAME, "refused", f"flash-attn's cross-entropy cannot be imported: {describe_exception(error)}"
        )
    if name == "flash_attn" and testbed.device.type != "cuda":
        return CheckResult(CHECK_NAME, "refused", _describe_cpu_refusal(loss_function))
    return check_loss(testbed, loss_function, name)


def check_loss(testbed: Testbed, loss_function: LossFunction, name: str) -> CheckResult:
    """Check a loss function; `name` is its name in a plan."""
    logits_dtype = {"fp32": torch.float32, "fp16": torch.float16}.get(testbed.plan.precision, torch.bfloat16)
    cases = [
        make_case(size, dtype, testbed.device, testbed.plan.seed)
        for size in VOCABULARY_SIZES
        for dtype in dict.fromkeys((torch.float32, logits_dtype))
    ]
    try:
        measures = [measure for case in cases for measure in measure_error(case, loss_function)]
        violations = [line for case in cases for line in find_ignored_gradients(case, loss_function)]
        violations += find_loss_of_nothing(cases[0], loss_function)
        repeated = cases if name == "flash_attn" else []
        warnings = [line for case in repeated for line in find_varying_bits(case, loss_function)]
    except Exception as error:
        return agreement.failed_result(CHECK_NAME, error)
    if testbed.plan.deterministic:
        violations, warnings = violations + warnings, []
    notes = (f"{name}, {len(cases)} exercises of {ROWS} rows",)
    return CheckResult(CHECK_NAME, "ok", "", tuple(measures), tuple(violations), tuple(warnings), notes)


def measure_error(case: LossCase, loss_function: LossFunction) -> Iterator[Measure]:
    """Yield the errors of the loss, its gradient, and the gradient except at the labels, against float64.

    All of these losses compute in float32 for any logits, so the value must be exact to float32. The gradient has the
    logits' dtype, and may differ by twice the rounding of the exact one. Except at the labels, the gradient is only the
    softmax, which the labels' -1 would hide.
    """
    (value, gradient), (exact_value, exact_gradient) = case.evaluate(loss_function), case.evaluate_float64()
    yield Measure(f"loss, {case.name}", relative_error([value], [exact_value]), FP32_LIMIT)
    beside_labels = torch.ones_like(exact_gradient, dtype=torch.bool)
    beside_labels.scatter_(1, case.labels.clamp(min=0)[:, None], False)
    for label, selected in (
        ("gradient", torch.ones_like(beside_labels)),
        ("gradient alongside the labels", beside_labels),
    ):
        actual, expected = gradient[selected], exact_gradient[selected]
        limit = FP32_LIMIT + ROUNDING_MULTIPLE * relative_error([expected.to(case.logits.dtype)], [expected])
        yield Measure(f"{label}, {case.name}", relative_error([actual], [expected]), limit)


def find_ignored_gradients(case: LossCase, loss_function: LossFunction) -> Iterator[str]:
    """Yield the rows that have a gradient although their label is ignored."""
    _, gradient = case.evaluate(loss_function)
    rows = int(gradient[case.labels == IGNORE_INDEX].ne(0).any(1).sum())
    if rows:
        yield f"{rows} ignored labels have a gradient ({case.name})"


def find_loss_of_nothing(case: LossCase, loss_function: LossFunction) -> Iterator[str]:
    """Yield a line if a batch with only ignored labels has a loss or a gradient other than 0."""
    value, gradient = LossCase("", case.logits, torch.full_like(case.labels, IGNORE_INDEX)).evaluate(loss_function)
    if float(value) != 0 or bool(gradient.ne(0).any()):
        yield f"with every label ignored, the loss is {float(value):.3g} instead of 0"


def find_varying_bits(case: LossCase, loss_function: LossFunction) -> Iterator[str]:
    """Yield a line if repeated losses of the same logits have different bits."""
    value, gradient = case.evaluate(loss_function)
    repeats = [case.evaluate(loss_function) for _ in range(REPEATS)]
    count = sum(not (torch.equal(v, value) and torch.equal(g, gradient)) for v, g in repeats)
    if count:
        yield f"{count} of {REPEATS} repeats are not bitwise identical ({case.name})"


def _describe_cpu_refusal(loss_function: LossFunction) -> str:
    """Return the error, in one line, that flash-attn's kernel raises for logits on a CPU."""
    case = make_case(VOCABULARY_SIZES[0], torch.float32, "cpu", 0)
    try:
        case.evaluate(loss_function)
    except Exception as error:
        return f"flash-attn's cross-entropy does not run on a CPU: {describe_exception(error)}"
    return "flash-attn's cross-entropy needs a GPU"
