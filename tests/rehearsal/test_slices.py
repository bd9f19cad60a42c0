"""Rows over several ranks, by `scripts/train_slices.py`: what is right gives no finding, each fault is named."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from attncheck.core.results.smoke import CheckResult, deciding_reason, judge_result
from tests.rehearsal.staging import SCRIPTS, ForkServer, list_failures, make_materials, rehearse

SCRIPT = SCRIPTS / "train_slices.py"


@dataclass(frozen=True)
class Fault:
    """A fault in the script: the code and the words that it must be named by, and what the script is started with."""

    code: str
    pattern: str
    options: str = ""
    ranks: int = 2


ZIGZAG = "--order zigzag"
GROUP = "size of the sequence-parallel group"
FAULTS: dict[str, Fault] = {
    "slices_alone": Fault(
        "ATN432", r"do not attend to the row's parts on other ranks.*100% .*\n(.*\n)*no attention layer com"
    ),
    "positions_anew": Fault("ATN432", r"positions restart on each rank; nothing else is wrong"),
    "zigzag_assumed": Fault("ATN432", r"takes the row's contiguous slices for zigzag ones"),
    "contiguous_assumed": Fault("ATN432", r"takes the row's zigzag slices for contiguous ones", ZIGZAG),
    "cu_seqlens_of_the_slice": Fault("ATN432", r"cu_seqlens describe each rank's slice, not the row"),
    "labels_lost": Fault("ATN434", r"shifted within each rank's slice: its last token has no target"),
    "labels_rolled": Fault(
        "ATN433", r"shifted within each rank's slice: its last token is trained to predict its first", ZIGZAG
    ),
    "mean_of_slices": Fault("ATN433", r"the mean over the targets of each rank's slice"),
    "divided_by_the_group": Fault("ATN433", rf"divided by the {GROUP} once too often"),
    "not_reduced": Fault(
        "ATN434", r"rank 1 steps with different gradients .* not reduced over the ranks that share a row"
    ),
    "gradients_divided_by_the_group": Fault("ATN434", rf"0.5 times those of the loss: one over the {GROUP}"),
}
# The same faults in another order of slices, on more ranks, in bfloat16.
MORE_FAULTS: dict[str, tuple[str, Fault]] = {
    "slices alone, zigzag": (
        "slices_alone",
        Fault("ATN432", r"do not attend to the row's parts on other ranks", ZIGZAG),
    ),
    "positions, zigzag": ("positions_anew", Fault("ATN432", r"positions begin anew on each rank", ZIGZAG)),
    "labels, zigzag": ("labels_lost", Fault("ATN433", r"its last token has no target", ZIGZAG)),
    "labels, within rounding": ("labels_lost", Fault("ATN434", r"its last token has no target", "--bf16")),
    "whole losses": ("divided_by_the_group", Fault("ATN433", rf"divided by the {GROUP}", "--loss whole")),
    "two groups": ("divided_by_the_group", Fault("ATN433", rf"divided by the {GROUP}", "--ring_size 2", 4)),
}
CLEAN: dict[str, tuple[str, int]] = {
    "contiguous": ("", 2),
    "zigzag": (ZIGZAG, 2),
    "striped": ("--order striped", 2),
    "whole losses": ("--loss whole", 2),
    "autocast, zigzag": (f"--bf16 {ZIGZAG}", 2),
    "two groups": ("--ring_size 2", 4),
    "two groups, zigzag": (f"--ring_size 2 {ZIGZAG}", 4),
}
EVERY_TIME = ("slices_alone",)


@dataclass(frozen=True)
class Bench:
    """Where scripts are run: the process that forks them, and materials by their seed."""

    server: ForkServer
    stages: dict[int, Path]
    factory: pytest.TempPathFactory
    watch: Path

    def rehearse(self, options: str, fault: str = "", ranks: int = 2, seed: int = 0) -> dict[str, CheckResult]:
        """Return the result of each check of the script."""
        if seed not in self.stages:
            self.stages[seed] = make_materials(self.factory.mktemp(f"materials-{seed}"), seed)
        return rehearse(self.server, self.stages[seed], self.watch, options, fault, ranks, script=SCRIPT)


@pytest.fixture
def bench(
    server: ForkServer, stages: dict[int, Path], tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> Bench:
    return Bench(server, stages, tmp_path_factory, tmp_path / "watch")


def check_fault(bench: Bench, name: str, fault: Fault) -> None:
    results = bench.rehearse(fault.options, name, fault.ranks)
    failures = list_failures(results)
    assert set(failures) == {fault.code}, {check: deciding_reason(result) for check, result in results.items()}
    assert re.search(fault.pattern, failures[fault.code]), failures[fault.code]


@pytest.mark.parametrize(
    "name", [name if name in EVERY_TIME else pytest.param(name, marks=pytest.mark.nightly) for name in FAULTS]
)
def test_a_fault_in_rows_over_ranks_is_named(name: str, bench: Bench) -> None:
    check_fault(bench, name, FAULTS[name])


@pytest.mark.nightly
@pytest.mark.parametrize("name", MORE_FAULTS)
def test_a_fault_is_named_in_another_order_too(name: str, bench: Bench) -> None:
    check_fault(bench, *MORE_FAULTS[name])


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        pytest.param(name, seed, marks=[pytest.mark.nightly] * ((name, seed) != ("zigzag", 0)))
        for name in CLEAN
        for seed in range(5)
    ],
)
def test_rows_over_ranks_that_are_right_give_no_finding(name: str, seed: int, bench: Bench) -> None:
    options, ranks = CLEAN[name]
    results = bench.rehearse(options, "", ranks, seed)
    answers = {check: (judge_result(result), deciding_reason(result)) for check, result in results.items()}
    assert {answer for answer, _ in answers.values()} == {"pass"}, answers
    assert re.search(r"rows over 2 ranks each", results["batch"].notes[0])
