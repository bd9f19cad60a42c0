"""The list of planted faults."""

from __future__ import annotations

from tests.planted.backward_faults import BACKWARD_FAULTS
from tests.planted.fault import Fault
from tests.planted.mask_faults import MASK_FAULTS
from tests.planted.precision_faults import PRECISION_FAULTS
from tests.planted.ring_faults import RING_FAULTS
from tests.planted.score_faults import SCORE_FAULTS
from tests.planted.state_faults import STATE_FAULTS

FAULTS: tuple[Fault, ...] = (
    *MASK_FAULTS,
    *SCORE_FAULTS,
    *BACKWARD_FAULTS,
    *RING_FAULTS,
    *STATE_FAULTS,
    *PRECISION_FAULTS,
)

__all__ = ["FAULTS", "Fault"]
