"""The planted faults are caught: by the standard suite, or by the full one where only a long case shows them."""

from __future__ import annotations

import pytest

from attncheck.attention.backend import Backend, Device, Installed
from attncheck.core.cases import Case, with_name
from attncheck.measure.suites import make_suite
from attncheck.measure.worker.repeats import Repeater
from tests.measure.planted.faults import FAULTS
from tests.measure.planted.hunt import hunt

# In bfloat16 these stay below the rounding of any 16-bit kernel, as the numerical study says; other dtypes show them.
CPU_LENGTH = 1100  # the emulations are slow on a CPU; what only longer cases show is hunted on a GPU
LOGIC = [fault for fault in FAULTS if fault.logic and not fault.long]
PRECISION = [fault for fault in FAULTS if fault.family == "precision"]
CHANCE = [fault for fault in FAULTS if fault.family == "determinism"]


def short_cases(cases: tuple[Case, ...]) -> list[Case]:
    return [case for case in cases if max(case.seqlen_q, case.seqlen_k) <= CPU_LENGTH]


def test_the_standard_suite_catches_every_fault_of_logic(capsys: pytest.CaptureFixture[str]) -> None:
    caught, missed = hunt(LOGIC, short_cases(make_suite("standard")), "cpu")
    with capsys.disabled():
        print(f"\ncaught {len(caught)} of {len(LOGIC)} planted faults of logic")
        for fault in caught:
            print(fault.format_row())
    assert not missed, [fault.name for fault in missed]


def test_the_standard_suite_sees_every_loss_of_precision(capsys: pytest.CaptureFixture[str]) -> None:
    caught, missed = hunt(PRECISION, short_cases(make_suite("standard")), "cpu")
    with capsys.disabled():
        print(f"\nseen {len(caught)} of {len(PRECISION)} planted losses of precision")
        for fault in caught:
            print(fault.format_row())
    assert not missed, [fault.name for fault in missed]


@pytest.mark.parametrize("fault", CHANCE, ids=lambda fault: fault.name)
def test_determinism_catches_what_differs_once_in_twenty_calls(fault: object) -> None:
    run = fault.run  # type: ignore[attr-defined]
    backend = Backend("chance", "", "", Installed, lambda case, device: "", run, lambda case: ())
    case = with_name(Case("repeats", (300,), (300,)))
    repeats = Repeater(backend, Device("cpu"), repeats=32).measure(case, "default")
    varied = [difference for difference in repeats.differences if difference.distinct > 1]
    assert varied
    assert all(difference.elements == 1 and difference.max_abs > 0 for difference in varied)
