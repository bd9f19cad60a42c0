"""Sections of one command from several models or launches become one."""

from attncheck.core.cases import Case
from attncheck.core.report import BackendState, MeasuredOn, Run
from attncheck.core.results.parity import ParitySection
from attncheck.core.results.repair import RepairSection
from attncheck.core.results.ring import RingSection
from attncheck.core.results.ring_timings import RingRates

RUN = Run("eager", Case("dense", (8,), (8,)), "ok")
STATE = BackendState("eager", "eager attention", "torch")


def test_equal_measurements_are_two_and_other_things_are_listed_once() -> None:
    section = ParitySection(MeasuredOn("cpu", "CPU", seconds=1.0), (STATE,), (), (RUN,))
    merged = section.merge(ParitySection(MeasuredOn("cpu", "CPU", seconds=2.0), (STATE,), (), (RUN,)))
    assert (merged.runs, merged.backends) == ((RUN, RUN), (STATE,))
    assert merged.measured_on == section.measured_on.merge(MeasuredOn("cpu", "CPU", seconds=2.0))


def test_the_later_value_counts_if_it_is_known() -> None:
    earlier = RepairSection(targets=("ATN101",), resolution="Would install torch-2.13.0")
    merged = earlier.merge(RepairSection(targets=("ATN101", "ATN102"), trial="1 of 1 imports work"))
    assert merged.targets == ("ATN101", "ATN102")
    assert (merged.resolution, merged.trial) == ("Would install torch-2.13.0", "1 of 1 imports work")
    rates = RingRates(matmul_tflops=9.0)
    assert RingSection(rates=RingRates(matmul_tflops=1.0)).merge(RingSection(rates=rates)).rates == rates
    assert RingSection(rates=rates).merge(RingSection()).rates == rates
