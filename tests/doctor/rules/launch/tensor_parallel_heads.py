"""Cases for ATN427."""

from __future__ import annotations

from tests import snapshots as s

FIRES = {
    "28 heads over 8": s.with_job(s.with_model(s.h200()), tensor_parallel=8),
    "28 heads over 3": s.with_job(s.with_model(s.h200()), tensor_parallel=3),
}
SILENT = {
    "one rank": s.with_job(s.with_model(s.h200())),
    "28 heads over 4": s.with_job(s.with_model(s.h200()), tensor_parallel=4),
    "28 heads over 7, 4 key/value heads": s.with_job(s.with_model(s.h200()), tensor_parallel=7),
    "the model is not known": s.with_job(s.h200(), tensor_parallel=8),
}


def says(text: str) -> bool:
    """Return whether the finding names the heads and use a size that divides both."""
    return "28 query heads" in text and ("'tensor_parallel': '4'" in text or "'tensor_parallel': '2'" in text)
