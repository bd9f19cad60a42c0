"""Cases of the rules that tell what a framework will do with settings: they differ by the consequence alone."""

from __future__ import annotations

from collections.abc import Callable

from attncheck.core.job import Consequence, SettingProblem
from attncheck.core.launch import SourceLocation
from attncheck.core.snapshot import Snapshot
from tests import snapshots as s

Cases = dict[str, Snapshot]


def cases(consequence: Consequence, message: str) -> tuple[Cases, Cases, Callable[[str], bool]]:
    """Return the launches that make the rule of `consequence` fire, those that keep it silent, and what it must say."""
    other: Consequence = "wrong" if consequence != "wrong" else "refuses"
    evidence = ("openrlhf 0.11.2 cli/train_sft.py:321",)
    said = SettingProblem(consequence, message, evidence, SourceLocation("run.sh", 9, 3), {"packing": "off"})
    advised = SettingProblem(consequence, message, (), advice="another release")
    fires = {
        "with a change that mends it": s.job(s.h200(), objections=(said,)),
        "with advice alone": s.job(s.h200(), objections=(advised,)),
    }
    silent = {
        "no launch": s.h200(),
        "nothing to object to": s.job(s.h200()),
        "another consequence": s.job(s.h200(), objections=(SettingProblem(other, "other", ()),)),
    }
    return fires, silent, lambda findings: message in findings and "run.sh" in findings
