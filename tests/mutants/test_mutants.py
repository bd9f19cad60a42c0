"""A wrong change to how a verdict is reached fails a test: 19 of 20 in a seeded sample of the deciding code."""

from __future__ import annotations

import subprocess
import sys
from itertools import islice

import pytest

from tests.mutants.__main__ import MODULES, ROOT
from tests.mutants.operators import make_mutants


@pytest.mark.nightly
def test_every_mutant_is_valid_and_differs() -> None:
    for module in MODULES:
        source = (ROOT / module).read_text("utf-8")
        mutants = list(islice(make_mutants(source), 0, 50, 5))
        assert mutants
        for mutant in mutants:
            compile(mutant.source, module, "exec")
            assert mutant.source != source


@pytest.mark.nightly
def test_nineteen_of_twenty_mutants_are_killed() -> None:
    assert subprocess.run([sys.executable, "-m", "tests.mutants"], cwd=ROOT).returncode == 0
