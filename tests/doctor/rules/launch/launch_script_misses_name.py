"""Cases for ATN135."""

from __future__ import annotations

from typing import Any

from attncheck.core.links import UnresolvedName
from tests import snapshots as s

JOB = s.with_job(s.h200())


def of_script(**fields: Any) -> UnresolvedName:
    """Return a name that a launch's script takes."""
    fields = {"source": "transformers", "name": "AutoModelForVision2Seq", **fields}
    return s.make_link(consumer="launch", module="own_code.train", path="train.py", **fields)


FIRES = {
    "at import": s.with_links(JOB, of_script()),
    "in main": s.with_links(
        JOB,
        of_script(
            name="TrainingArguments", kind="argument", argument="a", reason="it takes no argument a", function="main"
        ),
    ),
    "in a function": s.with_links(JOB, of_script(function="evaluate")),
}
SILENT = {
    "the recorded machine": s.h200(),
    "nothing no longer exists": s.with_links(JOB),
    "caught": s.with_links(JOB, of_script(fallback_line=9)),
    "put back": s.with_links(JOB, of_script(patched_by="own_code.patch")),
}


def says(text: str) -> bool:
    """Return whether the finding names the place and the name."""
    return "train.py:24" in text and "transformers." in text
