"""The losses that a job may use, and whether each is the cross-entropy: value and gradient against float64.

flash-attn's kernel takes no logits of a CPU: `flash_attn/ops/triton/cross_entropy.py` of 2.8.3 needs triton and enters
`torch.cuda.device`. Its sums over rows are made by torch; whether it repeats to the bit is measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from attncheck.attention.device import message
from attncheck.core.results.smoke import CheckResult, Measure
from attncheck.smoke.worker import testbed as beds
from attncheck.smoke.worker.checks import agreement
from attncheck.smoke.worker.data.packing import IGNORED
from attncheck.smoke.worker.losses import Loss, loss_function
from attncheck.smoke.worker.testbed import Bed

VOCABULARIES = (64, 32007)  # a smoke model's, and a real one that no block of a kernel divides
ROWS = 300  # more than a chunk, and not a multiple
ROUNDINGS = 2.0  # times the rounding of an ideal gradient to its dtype: a kernel rounds it once (numerics §1.5)
REPEATS = 16
SCALE = 0.125  # what the gradient of the loss is multiplied with on its way back; exact in every dtype
QUESTION = "cross_entropy"


@dataclass(frozen=True)
class Exercise:
    """Logits and labels, some of them ignored, that a loss is tried on."""

    name: str  # "32007 words, bfloat16"
    logits: Tensor
    labels: Tensor

    def answer(self, loss: Loss) -> tuple[Tensor, Tensor]:
        """Return the loss and its gradient times SCALE."""
        logits = self.logits.clone().requires_grad_()
        value = loss(logits, self.labels)
        (gradient,) = torch.autograd.grad(value * SCALE, logits)
        return value.detach(), gradient

    def right(self) -> tuple[Tensor, Tensor]:
        """Return the same from torch in float64, on the very same logits."""
        return Exercise("", self.logits.double(), self.labels).answer(
            lambda logits, labels: cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
        )


def exercise(vocabulary: int, dtype: torch.dtype, device: Any, seed: int) -> Exercise:
    """Return rows of which a third is offset by more than exp allows, whose last words count, and every fifth ignored.

    The first and the last row are ignored too. Labels are any, the first word in one row, the last one in another.
    """
    generator = torch.Generator().manual_seed(seed + vocabulary)
    logits = 3.0 * torch.randn(ROWS, vocabulary, generator=generator)
    logits[ROWS // 3 : 2 * ROWS // 3, -5:] += 8.0
    logits[2 * ROWS // 3 :] += 100.0
    labels = torch.randint(vocabulary, (ROWS,), generator=generator)
    labels[1], labels[2], labels[-2] = 0, vocabulary - 1, vocabulary - 1
    labels[::5] = labels[-1] = IGNORED
    name = f"{vocabulary} words, {str(dtype).removeprefix('torch.')}"
    return Exercise(name, logits.to(device, dtype), labels.to(device))


def prove(bed: Bed) -> CheckResult:
    """Return the proof for the plan's loss, in float32 and in the dtype that the plan's logits have."""
    name = bed.plan.cross_entropy
    try:
        loss = loss_function(name)
    except Exception as error:
        return CheckResult(QUESTION, "refused", f"flash-attn's cross-entropy cannot be imported: {message(error)}")
    if name == "flash_attn" and bed.device.type != "cuda":
        return CheckResult(QUESTION, "refused", _on_cpu(loss))
    return judged(bed, loss, name)


def judged(bed: Bed, loss: Loss, name: str) -> CheckResult:
    """Return the proof for any loss."""
    own = {"fp32": torch.float32, "fp16": torch.float16}.get(bed.plan.precision, torch.bfloat16)
    tasks = [
        exercise(v, d, bed.device, bed.plan.seed) for v in VOCABULARIES for d in dict.fromkeys((torch.float32, own))
    ]
    try:
        found = [part for task in tasks for part in against_exact(task, loss)]
        wrong = [line for task in tasks for line in leaks(task, loss)] + list(nothing_to_predict(tasks[0], loss))
        varies = [line for task in tasks for line in unsteady(task, loss)] if name == "flash_attn" else []
    except Exception as error:
        return agreement.failed(QUESTION, error)
    if bed.plan.deterministic:
        wrong, varies = wrong + varies, []
    notes = (f"{name}, {len(tasks)} exercises of {ROWS} rows",)
    return CheckResult(QUESTION, "ok", "", tuple(found), tuple(wrong), tuple(varies), notes)


def against_exact(task: Exercise, loss: Loss) -> Iterator[Measure]:
    """Yield how far the loss, its gradient, and the gradient beside the labels are off.

    All of these losses compute in float32 whatever the logits are, so the value is held to what float32 allows. The
    gradient comes back in the dtype of the logits: it is held to twice what rounding the exact one costs. Beside the
    labels stands the softmax alone, which the labels' -1 would drown.
    """
    (value, gradient), (right, exact) = task.answer(loss), task.right()
    yield Measure(f"loss, {task.name}", beds.relative([value], [right]), beds.EXACT)
    beside = torch.ones_like(exact, dtype=torch.bool)
    beside.scatter_(1, task.labels.clamp(min=0)[:, None], False)
    for words, chosen in (("gradient", torch.ones_like(beside)), ("gradient beside the labels", beside)):
        got, wanted = gradient[chosen], exact[chosen]
        limit = beds.EXACT + ROUNDINGS * beds.relative([wanted.to(task.logits.dtype)], [wanted])
        yield Measure(f"{words}, {task.name}", beds.relative([got], [wanted]), limit)


def leaks(task: Exercise, loss: Loss) -> Iterator[str]:
    """Yield where ignored rows change the loss or have a gradient."""
    _, gradient = task.answer(loss)
    rows = int(gradient[task.labels == IGNORED].ne(0).any(1).sum())
    if rows:
        yield f"{rows} ignored labels have a gradient ({task.name})"


def nothing_to_predict(task: Exercise, loss: Loss) -> Iterator[str]:
    """Yield where a batch whose labels are all ignored has a loss other than 0."""
    value, gradient = Exercise("", task.logits, torch.full_like(task.labels, IGNORED)).answer(loss)
    if float(value) != 0 or bool(gradient.ne(0).any()):
        yield f"where every label is ignored the loss is {float(value):.3g} in place of 0"


def unsteady(task: Exercise, loss: Loss) -> Iterator[str]:
    """Yield where repeating the loss on the same logits gives other bits."""
    value, gradient = task.answer(loss)
    others = [task.answer(loss) for _ in range(REPEATS)]
    count = sum(not (torch.equal(v, value) and torch.equal(g, gradient)) for v, g in others)
    if count:
        yield f"{count} of {REPEATS} repeats differ in their bits ({task.name})"


def _on_cpu(loss: Loss) -> str:
    """Return what flash-attn's kernel says to the logits of a CPU."""
    task = exercise(VOCABULARIES[0], torch.float32, "cpu", 0)
    try:
        task.answer(loss)
    except Exception as error:
        return f"flash-attn's cross-entropy does not run on a CPU: {message(error)}"
    return "flash-attn's cross-entropy is for a GPU"
