"""Shows that one fault does not hide another: injects faults two at a time, if they do not contradict each other.

Each of both must be named as it is when it is alone, or the report must say that its rule cannot judge before the
other is repaired (`Skip.covered_by`). What is hidden silently is a defect of the rules.
"""

from __future__ import annotations

import itertools
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from attncheck.core.io.visible import show_line_ends
from attncheck.doctor.probes.collect import collect_snapshot
from attncheck.selftest.faults import Fault, Sandbox
from attncheck.selftest.faults.running import CheckOutcome
from attncheck.selftest.run import Capabilities, Task, find_naming_finding, run_tasks, throwaway_folder
from tests.selftest.edits import Edits, find_conflict, record_edits
from tests.selftest.planted import PairedFamily, PairedFault

PairStatus = Literal["named", "covered", "hidden"]
STATUSES: tuple[PairStatus, ...] = get_args(PairStatus)  # the worst last


@dataclass(frozen=True)
class PairResult:
    """What the check made of two faults at once.

    `status` is "named" if it names both, "covered" if it says which finding keeps it from judging the other,
    "hidden" if it loses one; `because` says which.
    """

    faults: tuple[str, str]
    codes: tuple[str, ...]
    family: str
    status: PairStatus
    seconds: float
    because: str


@dataclass(frozen=True)
class PairsResult:
    """The results of all pairs, and how many there are that contradict each other and were not tried."""

    results: tuple[PairResult, ...]
    incompatible: int
    seed: int | None  # None if every pair was tried
    seconds: float

    def count_status(self, status: PairStatus) -> int:
        """Return how many pairs have this status."""
        return sum(result.status == status for result in self.results)


@dataclass(frozen=True)
class _Pair:
    first: PairedFault
    second: PairedFault
    family: PairedFamily  # that sets up the sandbox


def run_pairs(
    faults: Sequence[PairedFault], codes: tuple[str, ...], sample: int | None, seed: int, timeout: float
) -> PairsResult:
    """Inject pairs of `faults`, of which one at least has one of `codes`, and return whether one hides the other.

    `sample` is how many of them, None for all; `seed` chooses.
    """
    began = time.monotonic()
    capabilities = Capabilities(collect_snapshot(None, ("static",)), "cpu")
    selected = [fault for fault in faults if any(code.startswith(codes or ("ATN",)) for code in fault.codes)]
    possible = [fault for fault in faults if not capabilities.missing_need((*fault.family.needs, *fault.needs))]
    candidates = [pair for pair in _list_pairs(possible) if pair.first in selected or pair.second in selected]
    if sample is not None:
        random.Random(seed).shuffle(candidates)
    pairs, incompatible = _choose_compatible(candidates, sample)
    with throwaway_folder() as folder:
        tasks = [
            Task(
                str(number),
                pair.family,
                (pair.first, pair.second),
                Sandbox(folder / str(number), sys.executable, "cpu"),
            )
            for number, pair in enumerate(pairs)
        ]
        outcomes = run_tasks(tasks, timeout, lambda text: None)
    results = tuple(_judge_pair(pair, outcomes[task.name]) for pair, task in zip(pairs, tasks))
    return PairsResult(results, incompatible, None if sample is None else seed, round(time.monotonic() - began, 1))


def _list_pairs(faults: Sequence[PairedFault]) -> Iterator[_Pair]:
    """Yield the pairs of faults that one sandbox can take: of one family, or of one and the family that it extends."""
    for first, second in itertools.combinations(faults, 2):
        if first.family is second.family or second.family.extends is first.family:
            yield _Pair(first, second, second.family)
        elif first.family.extends is second.family:
            yield _Pair(first, second, first.family)


def _choose_compatible(candidates: Sequence[_Pair], sample: int | None) -> tuple[list[_Pair], int]:
    """Return the first `sample` pairs whose faults do not contradict each other, and how many before them do."""
    edits: dict[str, Edits] = {}
    chosen: list[_Pair] = []
    incompatible = 0
    for pair in candidates:
        if sample is not None and len(chosen) >= sample:
            break
        for fault in (pair.first, pair.second):
            if fault.name not in edits:
                edits[fault.name] = record_edits(fault, fault.family)
        if _relies_on_absence(pair) or find_conflict(
            pair.first, edits[pair.first.name], pair.second, edits[pair.second.name]
        ):
            incompatible += 1
        else:
            chosen.append(pair)
    return chosen, incompatible


def _relies_on_absence(pair: _Pair) -> bool:
    """Return whether a fault of the family that this one extends relies on the absence of what its setup adds."""
    guests = (fault for fault in (pair.first, pair.second) if fault.family is not pair.family)
    return any(name in pair.family.adds for guest in guests for name in guest.relies_on)


def _judge_pair(pair: _Pair, outcome: CheckOutcome) -> PairResult:
    both = (pair.first, pair.second)
    statuses = [_judge_fault(fault, outcome) for fault in both]
    worst = max((status for status, _ in statuses), key=STATUSES.index)
    return PairResult(
        (pair.first.name, pair.second.name),
        tuple(code for fault in both for code in fault.codes),
        pair.family.name,
        worst,
        outcome.seconds,
        "; ".join(because for _, because in statuses if because),
    )


def _judge_fault(fault: Fault, outcome: CheckOutcome) -> tuple[PairStatus, str]:
    """Return whether the report names this fault, or says which findings keep it from judging it, and the words."""
    if outcome.findings is None:
        return "hidden", outcome.reason
    reasons = []
    for code in fault.codes:
        if find_naming_finding(fault, code, outcome.findings):
            continue
        skip = next((skip for skip in outcome.skips if skip["code"] == code), None)
        if skip is None or not skip["covered_by"]:
            others = ", ".join(dict.fromkeys(str(finding["code"]) for finding in outcome.findings)) or "nothing"
            reason = f": it could not judge ({skip['reason']})" if skip else ""
            return "hidden", f"{code} of {fault.name} did not fire{reason}; the check found {others}"
        reasons.append(f"{code}: {skip['reason']}")
    return ("covered", "; ".join(reasons)) if reasons else ("named", "")


def pairs_as_text(pairs: PairsResult) -> str:
    """Return one line per pair in which one fault is covered or hidden, and the counts."""
    lines = []
    for result in pairs.results:
        if result.status != "named":
            lines.append(f"{result.status:8}{' and '.join(result.faults)}")
            lines.append(f"{'':8}{show_line_ends(result.because)}")
    named, covered, hidden = (pairs.count_status(status) for status in ("named", "covered", "hidden"))
    chosen = "" if pairs.seed is None else f" (sampled by the seed {pairs.seed})"
    lines.append(
        f"{len(pairs.results)} pairs of faults{chosen}: both named in {named}, one covers the other in {covered}, "
        f"one hides the other in {hidden} · {pairs.incompatible} contradict each other · {pairs.seconds:.0f} s"
    )
    return "\n".join(lines) + "\n"
