"""Checks that images and text in one batch equal each document in isolation."""

from attncheck.smoke import plan_changes
from attncheck.smoke.checks import SmokeCheck, deciding_reason

CHECK = SmokeCheck(
    name="pictures",
    title="a batch of images and text gives the same results as each document in isolation",
    code="ATN358",
    order=35,
    applies=lambda plan: "",
    worker="attncheck.smoke.worker.checks.pictures:run",
    message=lambda result: f"images in a batch change the result: {deciding_reason(result)}",
    changes=lambda plan, result: plan_changes.propose_implementations(plan),
)
