"""Compares the plan's loss function with float64."""

from collections.abc import Iterable
from dataclasses import replace

from attncheck.core.plan import CrossEntropy
from attncheck.smoke.checks import Change, CheckResult, Plan, SmokeCheck, deciding_reason

# Replacements for a wrong loss: (its name in a plan, the fix's title, the fix's text).
ALTERNATIVES: tuple[tuple[CrossEntropy, str, str], ...] = (
    (
        "chunked",
        "compute the loss with log-sum-exp in chunks of rows",
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


def propose_changes(plan: Plan, result: CheckResult) -> Iterable[Change]:
    """Yield the other losses, the memory-saving one first."""
    for name, title, text in ALTERNATIVES:
        if name != plan.cross_entropy:
            yield Change(title, "edit", text, replace(plan, cross_entropy=name))


CHECK = SmokeCheck(
    name="cross_entropy",
    title="the loss is the cross-entropy",
    code="ATN342",
    order=55,
    applies=lambda plan: "",
    worker="attncheck.smoke.worker.checks.cross_entropy:run",
    message=lambda result: f"the plan's loss function is not the cross-entropy: {deciding_reason(result)}",
    changes=propose_changes,
    names_errors=True,
)
