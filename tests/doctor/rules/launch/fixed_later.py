"""Cases for ATN464."""

from attncheck.core.job import FixedLater
from tests import snapshots as s

FIXES = (
    FixedLater("trl", "1.8.0", "1.9.0", 6357, "Fix EOS being masked"),
    FixedLater("trl", "1.8.0", "1.10.0", 1, "Fix another"),
    FixedLater("accelerate", "1.13.0", "", 4119, "Fix a third"),
)
FIRES = {"three fixes": s.with_job(s.h200(), fixed_later=FIXES)}
SILENT = {"no launch": s.h200(), "none": s.with_job(s.h200())}


def says(findings: str) -> bool:
    """Return whether each fix is listed with its release, and the newest needed release is installed."""
    named = all(f"#{fix.number} ({'fixed in ' + fix.until if fix.until else 'not'}" in findings for fix in FIXES)
    return named and "trl>=1.10.0" in findings and "accelerate>=" not in findings
