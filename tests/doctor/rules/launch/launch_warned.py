"""Cases for ATN466."""

from tests import snapshots as s

FIRES = {"a warning": s.with_job(s.h200(), warnings=("trl/trainer/sft_trainer.py:927 warns: a batch size of 1",))}
SILENT = {"no launch": s.h200(), "no warning": s.with_job(s.h200(), remarks=("$(nproc) is known only by running it",))}


def says(findings: str) -> bool:
    """Return whether the warning's place and text are shown."""
    return "sft_trainer.py:927" in findings and "batch size of 1" in findings
