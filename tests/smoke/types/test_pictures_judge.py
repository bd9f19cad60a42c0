"""Smoke's answers about pictures agree with a judge that knows nothing of it."""

from __future__ import annotations

import pytest

from tests.smoke.test_pictures import QUICK, WRONG_PACKED, by_speed
from tests.smoke.types import pictures_judge

LIMIT = 1e-5  # relative error in float32; a leak is above 0.1


@pytest.mark.parametrize("name", by_speed(pictures_judge.TYPES, (*QUICK, *WRONG_PACKED)))
def test_a_tiny_model_written_by_hand_is_right_or_wrong_where_smoke_says_so(name: str) -> None:
    errors = pictures_judge.judge(name)
    assert errors["padded"] < LIMIT
    assert (errors["packed"] > LIMIT) == (name in WRONG_PACKED)
