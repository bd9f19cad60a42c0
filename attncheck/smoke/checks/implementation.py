"""The model computes under its implementation what it computes with eager attention."""

from attncheck.core.results.smoke import deciding_reason
from attncheck.smoke.checks import SmokeCheck
from attncheck.smoke.checks.what_ran import propose_changes

CHECK = SmokeCheck(
    name="implementation",
    title="the implementation computes what eager attention does",
    code="ATN345",
    order=15,
    applies=lambda plan: "",
    worker="attncheck.smoke.worker.checks.implementation:run",
    message=lambda result: f"the attention implementation changes what the model computes: {deciding_reason(result)}",
    changes=propose_changes,
)
