"""Cases for ATN352."""

from __future__ import annotations

from tests import snapshots as s

OLD = s.with_package(s.laptop(), "transformers", "4.57.6")
NEW = s.with_package(s.laptop(), "transformers", "5.5.0")
FIRES = {
    "0.6.3": s.with_package(s.h200(), "liger-kernel", "0.6.3"),
    "0.6.3 on the laptop": s.with_package(s.laptop(), "liger-kernel", "0.6.3"),
    "0.6.3 under transformers 4": s.with_package(OLD, "liger-kernel", "0.6.3"),
    "0.6.3 under transformers 5, whose names 0.6.4 lacks": s.with_package(NEW, "liger-kernel", "0.6.3"),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "the release before": s.with_package(s.h200(), "liger-kernel", "0.6.2"),
    "the release after": s.with_package(s.h200(), "liger-kernel", "0.6.4"),
    "none": s.without_packages(s.h200(), "liger-kernel"),
}


def says(text: str) -> bool:
    """Return whether the finding names the defect and the release without it."""
    return "evaluation" in text and ("liger-kernel==0.6.4" in text or "liger-kernel==0.8.5" in text)
