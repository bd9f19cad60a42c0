"""The list of planted faults."""

from __future__ import annotations

from tests.measure.planted.backward_faults import BACKWARD_FAULTS
from tests.measure.planted.dropout_faults import DROPOUT_FAULTS
from tests.measure.planted.fault import Fault
from tests.measure.planted.mask_faults import MASK_FAULTS
from tests.measure.planted.narrow_faults import NARROW_FAULTS
from tests.measure.planted.precision_faults import PRECISION_FAULTS
from tests.measure.planted.ring_faults import RING_FAULTS
from tests.measure.planted.score_faults import SCORE_FAULTS
from tests.measure.planted.state_faults import STATE_FAULTS

FAULTS: tuple[Fault, ...] = (
    *MASK_FAULTS,
    *SCORE_FAULTS,
    *BACKWARD_FAULTS,
    *DROPOUT_FAULTS,
    *NARROW_FAULTS,
    *RING_FAULTS,
    *STATE_FAULTS,
    *PRECISION_FAULTS,
)

__all__ = ["FAULTS", "Fault"]
