"""Cases for ATN446."""

from attncheck.jobs import Objection
from attncheck.written import Place
from tests import snapshots as s

SAID = Objection(
    "waits",
    "Ray waits for a placement",
    ("openrlhf 0.11.2 cli/train_sft.py:321",),
    Place("run.sh", 9, 3),
    {"packing": "off"},
)
FIRES = {
    "with a change that mends it": s.job(s.h200(), objections=(SAID,)),
    "with advice alone": s.job(
        s.h200(), objections=(Objection("waits", "Ray waits for a placement", (), advice="another release"),)
    ),
}
SILENT = {
    "no launch": s.h200(),
    "nothing to object to": s.job(s.h200()),
    "another consequence": s.job(s.h200(), objections=(Objection("wrong", "other", ()),)),
}


def says(findings: str) -> bool:
    """Say whether the message and its place arrive."""
    return "Ray waits for a placement" in findings and "run.sh" in findings
