"""The pins that the catalogue's ring modes offer: with them the rules that requested them are silent."""

from __future__ import annotations

import pytest

from attncheck.doctor.engine import run_rules
from tests import snapshots as s
from tests.catalogue.launches import RING_NEEDS
from tests.lint.launches import without_imports

CODES = {"ATN140", "ATN141", "ATN145"}


@pytest.mark.parametrize("transformers", ["5.3.0", "4.57.6"])
def test_the_pins_of_the_ring_are_silent(transformers: str) -> None:
    snapshot = without_imports(s.with_package(s.h200(), "transformers", transformers))
    assert not CODES & {finding.code for finding in run_rules(snapshot, RING_NEEDS).findings}


@pytest.mark.parametrize("transformers", ["5.5.4", "5.18.0"])
def test_openrlhf_puts_the_name_back(transformers: str) -> None:
    snapshot = s.with_package(s.with_package(s.h200(), "transformers", transformers), "openrlhf", "0.11.2")
    codes = {finding.code for finding in run_rules(without_imports(snapshot), RING_NEEDS).findings}
    assert "ATN145" not in codes
