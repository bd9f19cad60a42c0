"""Cases for ATN471."""

from __future__ import annotations

from attncheck.core.experiments import HALVES
from tests.doctor.rules.transformers.neutral_change_trains_otherwise import (
    COUPLED,
    DOUBLED,
    twin,
    with_launch,
    with_twins,
)

AOT = with_twins(twin("loss_type=aot", HALVES))
FIRES = {
    "a launch that accumulates": with_launch(COUPLED, 4),
    "a launch of a loss that sorts the batch": with_launch(AOT, 4, loss_type="aot"),
}
SILENT = {
    "no launch": COUPLED,
    "a launch without accumulation": with_launch(COUPLED),
    "a launch of another loss": with_launch(AOT, 4, loss_type="ipo"),
    "a factor": with_launch(DOUBLED, 4),
}
