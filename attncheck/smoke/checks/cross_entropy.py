"""The plan's loss function against float64."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from attncheck.core.plan import Change, CrossEntropy, Plan
from attncheck.core.results.smoke import CheckResult, deciding_reason
from attncheck.smoke.checks import Proving

if TYPE_CHECKING:
    from attncheck.smoke.worker.testbed import Bed

# What to use in place of a loss that is wrong, and how it is said.
OTHERS: tuple[tuple[CrossEntropy, str, str], ...] = (
    (
        "chunked",
        "compute the loss by log-sum-exp, some rows at a time",
        "lse = torch.cat([rows.float().logsumexp(-1) for rows in logits.split(256)])\n"
        "losses = lse - logits.gather(-1, labels.clamp(min=0)[:, None])[:, 0].float()\n"
        "loss = losses[labels != -100].sum()",
    ),
    (
        "torch",
        "compute the loss with torch",
        "loss = torch.nn.functional.cross_entropy(logits.float(), labels, ignore_index=-100)",
    ),
)


def applies(plan: Plan) -> str:
    """Return "": every plan has a loss."""
    return ""


def prove(bed: Bed) -> CheckResult:
    """Measure."""
    from attncheck.smoke.worker.checks import cross_entropy

    return cross_entropy.prove(bed)


def message(proof: CheckResult) -> str:
    """Return what is wrong, in a line."""
    return f"the plan's cross-entropy is not the cross-entropy: {deciding_reason(proof)}"


def changes(plan: Plan, proof: CheckResult) -> Iterable[Change]:
    """Yield the other losses, one that saves memory first."""
    for name, title, text in OTHERS:
        if name != plan.cross_entropy:
            yield Change(title, "edit", text, replace(plan, cross_entropy=name))


PROVING = Proving("cross_entropy", "the loss is the cross-entropy", "ATN342", 55, applies, prove, message, changes)
