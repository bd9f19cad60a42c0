"""The model computes under its implementation what it computes with eager attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncheck.core.results.smoke import CheckResult, deciding_reason
from attncheck.smoke.checks import Proving
from attncheck.smoke.checks.what_ran import changes

if TYPE_CHECKING:
    from attncheck.smoke.worker.testbed import Bed


def prove(bed: Bed) -> CheckResult:
    """Return the proof."""
    from attncheck.smoke.worker.checks import implementation

    return implementation.prove(bed)


PROVING = Proving(
    name="implementation",
    title="the implementation computes what eager attention does",
    code="ATN345",
    order=15,
    applies=lambda plan: "",
    prove=prove,
    message=lambda proof: f"the attention implementation changes what the model computes: {deciding_reason(proof)}",
    changes=changes,
)
