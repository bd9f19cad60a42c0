"""Cases for ATN453."""

from typing import Any

from tests import snapshots as s

WANTS: dict[str, Any] = {"requires": ("transformers==5.15.0", "flash-attn==2.8.3")}
FIRES = {
    "transformers": s.job(s.h200(), **WANTS),
    "another release of it is installed": s.job(s.package(s.h200(), "openrlhf", "0.10.2", requires=("x",)), **WANTS),
}
SILENT = {
    "no launch": s.h200(),
    "as required": s.job(s.package(s.h200(), "transformers", "5.15.0"), **WANTS),
    "nothing required": s.job(s.h200()),
    "damaged": s.job(s.h200(), requires=("transformers=>5",)),
    "installed: ATN147": s.job(s.package(s.h200(), "openrlhf", "0.11.2", requires=("transformers==5.15.0",)), **WANTS),
}


def says(findings: str) -> bool:
    """Say whether both versions are told."""
    return "transformers==5.15.0 (here: 5.17.0)" in findings
