"""The plan's loss function against float64."""

from collections.abc import Iterable
from dataclasses import replace

from attncheck.core.plan import Change, CrossEntropy, Plan
from attncheck.core.results.smoke import CheckResult, deciding_reason
from attncheck.smoke.checks import SmokeCheck

# What to use in place of a wrong loss: (its name in a plan, the fix's title, the fix's text).
ALTERNATIVES: tuple[tuple[CrossEntropy, str, str], ...] = (
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


def describe_failure(result: CheckResult) -> str:
    """Return what is wrong, in a line."""
    return f"the plan's cross-entropy is not the cross-entropy: {deciding_reason(result)}"


def propose_changes(plan: Plan, result: CheckResult) -> Iterable[Change]:
    """Yield the other losses, the one that saves memory first."""
    for name, title, text in ALTERNATIVES:
        if name != plan.cross_entropy:
            yield Change(title, "edit", text, replace(plan, cross_entropy=name))


CHECK = SmokeCheck(
    name="cross_entropy",
    title="the loss is the cross-entropy",
    code="ATN342",
    order=55,
    applies=applies,
    worker="attncheck.smoke.worker.checks.cross_entropy:run",
    message=describe_failure,
    changes=propose_changes,
    names_errors=True,
)
