"""Runs planted faults through a suite as parity runs a backend, and tells which case caught each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from attncheck.attention.backend import Outputs
from attncheck.attention.inputs import Inputs, make_inputs
from attncheck.attention.reference.oracle import Reference, compute_reference
from attncheck.attention.reference.score import score_outputs
from attncheck.attention.reference.structured import run_probe
from attncheck.core.cases import Case
from attncheck.core.verdicts import Run, Verdict, judge_run
from tests.measure.planted.fault import Fault

RING_FACTOR = 1.25  # what 16-bit block results legitimately cost


@dataclass(frozen=True)
class Caught:
    """A fault and the first verdict against it."""

    fault: Fault
    case: Case
    verdict: Verdict
    tried: int  # cases on which it was run, up to this one

    def format_row(self) -> str:
        """Return one row of the table."""
        name = f"| {self.fault.family} | {self.fault.name} | {self.verdict.answer} | {self.tried} | "
        return name + f"{self.case.name} | {self.verdict.reason} |"


def hunt(faults: Iterable[Fault], cases: Iterable[Case], device: str) -> tuple[list[Caught], list[Fault]]:
    """Return the faults that were caught, each by its first failing case, and those that were not.

    A warning catches only a loss of precision; a fault of logic has to fail.
    """
    uncaught, caught = list(faults), []
    tried = {fault.name: 0 for fault in uncaught}
    for case in cases:
        if not uncaught:
            break
        for fault, verdict in _verdicts([fault for fault in uncaught if fault.applies(case)], case, device):
            tried[fault.name] += 1
            if verdict.answer == "fail" or (verdict.answer == "warn" and not fault.logic):
                caught.append(Caught(fault, case, verdict, tried[fault.name]))
                uncaught.remove(fault)
    return caught, uncaught


def _verdicts(faults: list[Fault], case: Case, device: str) -> Iterable[tuple[Fault, Verdict]]:
    faults = [fault for fault in faults if (fault.family == "dropout") == (case.dropout > 0.0)]
    if not faults:
        return
    inputs: Inputs | None = None
    exact: Reference | None = None
    for fault in faults:
        factor = RING_FACTOR if fault.family == "ring" else 1.0
        if case.probe:
            found = run_probe(case, device, lambda x, run=fault.run: run(x, False))  # type: ignore[misc]
            run = Run(fault.name, case, "ok", violations=found.violations, warnings=found.warnings)
            yield fault, judge_run(run)
            continue
        inputs = inputs or make_inputs(case, device)
        exact = exact or compute_reference(inputs)
        outputs: Outputs = fault.run(inputs, fault.family == "deterministic")
        tensor_scores = tuple(score_outputs(outputs, exact))
        yield fault, judge_run(Run(fault.name, case, "ok", scores=tensor_scores, class_factor=factor))
