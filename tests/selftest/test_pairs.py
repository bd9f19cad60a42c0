"""Pairs of faults: two faults at once are both named, or the report says which covers the other."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from attncheck.selftest.faults.running import CheckOutcome
from tests.selftest import edits, pairs
from tests.selftest.pairs import PairsResult
from tests.selftest.planted import PairedFault, get_fault, load_faults
from tests.selftest.planted.job import ENVIRONMENT, MODEL

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a throwaway environment needs Linux")
pytestmark = LINUX
NOT_INSTALLED_BY_ANY = ("axolotl", "ms-swift")  # frameworks, named for completeness
FLASH_ATTN_FAULTS = (
    "flash-attn-of-another-torch",
    "flash-attn-of-another-cuda",
    "flash-attn-of-newer-glibc",
    "flash-attn-of-another-python",
    "flash-attn-raises",
    "flash-attn-dies",
)


def load_paired() -> list[PairedFault]:
    return [fault for fault in load_faults() if isinstance(fault, PairedFault)]


def run_some(*chosen: str | PairedFault, codes: tuple[str, ...] = ()) -> PairsResult:
    """Return the result of all pairs of these faults of which one has one of `codes`."""
    some = tuple(get_fault(fault) if isinstance(fault, str) else fault for fault in chosen)
    return pairs.run_pairs(some, codes, None, 0, 60.0)


def find_conflict(first: str, second: str) -> str:
    both = (get_fault(first), get_fault(second))
    first_edits, second_edits = (edits.record_edits(fault, fault.family) for fault in both)
    return edits.find_conflict(both[0], first_edits, both[1], second_edits)


@pytest.mark.nightly
def test_a_broken_flash_attn_hides_nothing_of_ring_flash_attn() -> None:
    """The import of ring_flash_attn ends in flash_attn; that transformers lacks the name too is read from versions."""
    result = run_some(*FLASH_ATTN_FAULTS, "ring-import", codes=("ATN140",))
    assert [pair.status for pair in result.results] == ["named"] * len(FLASH_ATTN_FAULTS), pairs.pairs_as_text(result)


def test_what_only_an_import_tells_is_covered_by_what_stops_it() -> None:
    result = run_some("torch-raises", "flash-attn-raises", "flash-attn-of-another-cuda", codes=("ATN102",))
    by_faults = {pair.faults: pair for pair in result.results}
    covered = by_faults["torch-raises", "flash-attn-raises"]
    assert covered.status == "covered"
    assert covered.because == "ATN108: torch cannot be imported; fix ATN102 first"
    assert by_faults["torch-raises", "flash-attn-of-another-cuda"].status == "named", "its files tell"
    text = pairs.pairs_as_text(result)
    assert "covered torch-raises and flash-attn-raises\n        ATN108: torch cannot" in text
    assert "2 pairs of faults: both named in 1, one covers the other in 1, one hides the other in 0" in text


def test_a_fault_that_is_lost_is_called_hidden() -> None:
    """One that is never injected is not named alongside the other: selftest must say so."""
    lost = replace(get_fault("metadata-missing"), inject=lambda sandbox: None)
    result = run_some(lost, "memory-in-use")
    assert [pair.status for pair in result.results] == ["hidden"]
    assert "ATN117 of metadata-missing did not fire; the check found ATN211" in result.results[0].because
    assert "one hides the other in 1" in pairs.pairs_as_text(result)


def test_a_check_without_a_report_hides_both() -> None:
    pair = pairs._Pair(get_fault("mig"), get_fault("metadata-missing"), ENVIRONMENT)
    result = pairs._judge_pair(pair, CheckOutcome(1.0, -1, None, "the import was still running"))
    assert result.status == "hidden" and "the import was still running" in result.because


def test_a_skip_that_names_no_finding_covers_nothing() -> None:
    pair = pairs._Pair(get_fault("mig"), get_fault("metadata-missing"), ENVIRONMENT)
    finding = {"code": "ATN214", "message": "MIG", "subject": "", "evidence": []}
    skip = {"code": "ATN117", "reason": "it is unreadable", "covered_by": []}
    hidden = pairs._judge_pair(pair, CheckOutcome(1.0, 1, (finding,), skips=(skip,)))
    assert hidden.status == "hidden" and "it could not judge (it is unreadable)" in hidden.because
    covered = pairs._judge_pair(pair, CheckOutcome(1.0, 1, (finding,), skips=({**skip, "covered_by": ["ATN214"]},)))
    assert covered.status == "covered"


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        ("flash-attn-raises", "flash-attn-dies", "both change flash_attn/__init__.py"),
        ("mig", "mixed-gpus", "both change tools/nvidia-smi"),
        ("flash-attn-denied", "ring-import", "both change transformers"),
        ("ring-import", "ring-removed", "ring-import relies on ring-flash-attn"),
        ("flash-attention-deterministic-707", "cublas-workspace-config-702", "relies on $CUBLAS_WORKSPACE_CONFIG"),
        ("torch-library-missing", "mig", "one of them asks another question"),
        ("ring-import", "flash-attn-raises", ""),
        ("torch-removed", "flash-attn-removed", ""),
    ],
)
def test_faults_contradict_each_other_by_what_they_change(first: str, second: str, reason: str) -> None:
    found = find_conflict(first, second)
    assert reason in found and bool(reason) == bool(found)


@pytest.mark.nightly
def test_what_a_fault_relies_on_is_what_others_change() -> None:
    """A name that no fault changes excludes nothing: it is misspelt, or not needed."""
    paired = load_paired()
    assert {fault.family.name for fault in paired} == {"environment", "model", "launch"}
    changed = {key for fault in paired for key in edits.record_edits(fault, fault.family)} | {*MODEL.adds}
    for fault in paired:
        for name in fault.relies_on:
            assert edits.edited_key(name) in changed or name in NOT_INSTALLED_BY_ANY, f"{fault.name}: {name}"


def test_a_sample_is_the_same_for_the_same_seed() -> None:
    possible = [fault for fault in load_paired() if fault.family is ENVIRONMENT][:12]
    candidates = list(pairs._list_pairs(possible))
    assert len(candidates) == 66
    chosen, incompatible = pairs._choose_compatible(candidates, 5)
    assert len(chosen) == 5 and pairs._choose_compatible(candidates, 5)[1] == incompatible
    everything, contradictions = pairs._choose_compatible(candidates, None)
    assert len(everything) + contradictions == 66 and everything[:5] == chosen


def test_no_fault_hides_another_in_a_sample() -> None:
    result = pairs.run_pairs(load_paired(), (), 8, 20, 150.0)
    print(pairs.pairs_as_text(result))
    assert len(result.results) == 8 and not result.count_status("hidden"), pairs.pairs_as_text(result)


@pytest.mark.nightly
def test_no_fault_hides_another() -> None:
    """Every pair: 8,124 of 10,651, the others contradict each other. An hour and a half of processor time."""
    result = pairs.run_pairs(load_paired(), (), None, 0, 300.0)
    print(pairs.pairs_as_text(result).splitlines()[-1])
    assert len(result.results) > 6000 and not result.count_status("hidden"), pairs.pairs_as_text(result)
