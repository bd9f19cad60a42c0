"""Cases for ATN448."""

from tests import snapshots as s

FIRES = {"a command's output": s.with_job(s.h200(), remarks=("$(nproc) is known only by running it",))}
SILENT = {"no launch": s.h200(), "all known": s.with_job(s.h200())}


def says(findings: str) -> bool:
    """Return whether the thing is named."""
    return "$(nproc)" in findings
