"""Cases for ATN453."""

from typing import Any

from tests import snapshots as s

REQUIRES: dict[str, Any] = {"requires": ("transformers==5.15.0", "flash-attn==2.8.3")}
FIRES = {
    "transformers": s.with_job(s.h200(), **REQUIRES),
    "another release of it is installed": s.with_job(
        s.with_package(s.h200(), "openrlhf", "0.10.2", requires=("x",)), **REQUIRES
    ),
}
SILENT = {
    "no launch": s.h200(),
    "as required": s.with_job(s.with_package(s.h200(), "transformers", "5.15.0"), **REQUIRES),
    "nothing required": s.with_job(s.h200()),
    "damaged": s.with_job(s.h200(), requires=("transformers=>5",)),
    "installed: ATN147": s.with_job(
        s.with_package(s.h200(), "openrlhf", "0.11.2", requires=("transformers==5.15.0",)), **REQUIRES
    ),
}


def says(findings: str) -> bool:
    """Return whether both versions are named."""
    return "transformers==5.15.0 (here: 5.17.0)" in findings
