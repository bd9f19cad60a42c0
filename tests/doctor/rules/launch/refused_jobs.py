"""Cases of the rules about what a framework does with settings: they differ by the consequence alone."""

from __future__ import annotations

from collections.abc import Callable

from attncheck.core.job import Consequence, SettingProblem
from attncheck.core.launch import SourceLocation
from attncheck.core.snapshot import Snapshot
from tests import snapshots as s

Cases = dict[str, Snapshot]


def consequence_cases(consequence: Consequence, message: str) -> tuple[Cases, Cases, Callable[[str], bool]]:
    """Return the launches that make the rule of `consequence` fire, those that keep it silent, and a text check."""
    other: Consequence = "wrong" if consequence != "wrong" else "refuses"
    evidence = ("openrlhf 0.11.2 cli/train_sft.py:321",)
    with_settings = SettingProblem(consequence, message, evidence, SourceLocation("run.sh", 9, 3), {"packing": "off"})
    with_advice = SettingProblem(consequence, message, (), advice="another release")
    fires = {
        "with a change that fixes it": s.with_job(s.h200(), problems=(with_settings,)),
        "with advice alone": s.with_job(s.h200(), problems=(with_advice,)),
    }
    silent = {
        "no launch": s.h200(),
        "nothing to object to": s.with_job(s.h200()),
        "another consequence": s.with_job(s.h200(), problems=(SettingProblem(other, "other", ()),)),
    }
    return fires, silent, lambda findings: message in findings and "run.sh" in findings
