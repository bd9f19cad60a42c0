"""Compares the model under the plan's implementation with eager attention."""

from attncheck.smoke.checks import SmokeCheck, deciding_reason
from attncheck.smoke.checks.what_ran import propose_changes

CHECK = SmokeCheck(
    name="implementation",
    title="the implementation computes the same as eager attention",
    code="ATN345",
    order=15,
    applies=lambda plan: "",
    worker="attncheck.smoke.worker.checks.implementation:run",
    message=lambda result: f"the attention implementation changes the model's results: {deciding_reason(result)}",
    changes=propose_changes,
)
