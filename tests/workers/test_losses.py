"""A pool skips what the lost items share and runs all others: processes that really die, on the standard suite."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from attncheck.core.cases import Case
from attncheck.measure.case_features import list_features
from attncheck.measure.suites import make_suite
from attncheck.workers.losses import COST_OF_DEATH, MAX_COST, MAX_LOSSES, Losses, SharedFeature, explain_losses
from attncheck.workers.pool import Event, Job, Pool

# A worker without torch that dies as a kernel does, hangs, or loses its device, where its message says so.
TASKS = """
import ctypes, sys, time

def work(message, send):
    send({"device": {"kind": "cpu"}})
    for item in message["items"]:
        send({"started": item})
        log = open(message["log"], "a")
        print(item, file=log, flush=True)
        how = message["faults"].get(item, "")
        if how == "once" and open(message["log"]).read().split().count("dies") == 0:
            print("dies", file=log, flush=True)
            ctypes.string_at(0)
        if how == "segfault":
            ctypes.string_at(0)
        if how == "hang":
            time.sleep(100)
        marks = {"spoiled": how == "spoil", "survived": how not in ("spoil", "refuse")}
        send({"item": item, "answer": 1, **marks})
        if how == "spoil":
            sys.exit("the device no longer responds")
"""
CASES = make_suite("standard")


def run_cases(
    folder: Path, is_faulty: Callable[[Case], bool], how: str = "segfault", seconds: float = 20.0, workers: int = 1,
    refuses: Callable[[Case], bool] = lambda case: False,
) -> dict[str, Event]:  # fmt: skip
    """Run the standard suite's cases and return the last event of each; every case has exactly one outcome."""
    (folder / "planted_losses.py").write_text(TASKS)
    faults = {case.name: how for case in CASES if is_faulty(case)}
    faults |= {case.name: "refuse" for case in CASES if refuses(case)}
    message = {"task": "planted_losses:work", "log": str(folder / "log"), "threads": 1, "faults": faults}
    jobs = []
    for index in range(workers):
        own = CASES[index::workers]
        features = {case.name: list_features(case) for case in own}
        jobs.append(Job("backend", message, tuple(case.name for case in own), seconds, str(folder), features=features))
    events: list[Event] = []
    assert Pool(sys.executable, 2).run(jobs, events.append) == ()
    outcomes = [event for event in events if event.kind != "started"]
    assert Counter(event.item for event in outcomes) == Counter(case.name for case in CASES)
    return {event.item: event for event in outcomes}


def has_large_head(case: Case) -> bool:
    return case.head_dim > 128


FAULTS: dict[str, tuple[Callable[[Case], bool], int]] = {  # what dies, and how often it may before it is known
    "one head_dim": (lambda case: case.head_dim == 80, 3),
    "a partial build": (has_large_head, 4),
    "a different head_dim for v": (lambda case: case.head_dim != case.v_head_dim, 4),
    "one dtype": (lambda case: case.dtype == "float16", 3),
    "the usual dtype, which comes first": (lambda case: case.dtype == "bfloat16", 4),
    "one family": (lambda case: case.family == "window", 4),
    "one layout": (lambda case: case.layout == "packed", 4),
    "a soft-cap": (lambda case: case.softcap > 0, 4),
    "two features": (lambda case: case.layout == "packed" and case.dtype == "float16", 4),
    "two faults": (lambda case: case.head_dim == 80 or case.dropout > 0, 6),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_feature_that_was_lost_is_skipped_and_all_else_is_run(name: str, tmp_path: Path, marker: str) -> None:
    is_faulty, limit = FAULTS[name]
    outcomes = run_cases(tmp_path, is_faulty)
    for case in CASES:
        expected = ("died", "skipped") if is_faulty(case) else ("answer",)
        assert outcomes[case.name].kind in expected, (case.name, outcomes[case.name])
    counts = Counter(event.kind for event in outcomes.values())
    assert 1 <= counts["died"] <= limit, counts
    skipped = {event.reason for event in outcomes.values() if event.kind == "skipped"}
    assert all(reason.startswith("skipped: ") and reason.endswith("no case with it survived") for reason in skipped)


@pytest.mark.parametrize("how", ["segfault", pytest.param("spoil", marks=pytest.mark.nightly)])
def test_everything_dies_and_is_soon_given_up(how: str, tmp_path: Path, marker: str) -> None:
    outcomes = run_cases(tmp_path, lambda case: True, how)
    counts = Counter(event.kind for event in outcomes.values())
    assert counts["answer" if how == "spoil" else "died"] == MAX_LOSSES
    assert counts["given_up"] == len(CASES) - MAX_LOSSES
    assert (tmp_path / "log").read_text().count("\n") == MAX_LOSSES


def test_a_refusal_is_no_survivor(tmp_path: Path, marker: str) -> None:
    outcomes = run_cases(tmp_path, lambda case: case.layout == "dense", refuses=lambda case: case.layout != "dense")
    counts = Counter(event.kind for event in outcomes.values() if event.kind != "answer")
    assert counts["died"] == MAX_LOSSES and counts["given_up"] and not counts["skipped"]


def test_a_death_that_happens_once_costs_one_case(tmp_path: Path, marker: str) -> None:
    outcomes = run_cases(tmp_path, lambda case: case.family == "values", "once")
    assert Counter(event.kind for event in outcomes.values()) == {"answer": len(CASES) - 1, "died": 1}


def test_deaths_without_a_feature_end(tmp_path: Path, marker: str) -> None:
    """What dies here and there by chance is not run for ever; what could be a feature of it is skipped."""
    outcomes = run_cases(tmp_path, lambda case: hash_of(case.name) % 4 == 0)
    counts = Counter(event.kind for event in outcomes.values())
    assert counts["died"] <= MAX_COST // COST_OF_DEATH


def hash_of(name: str) -> int:
    return sum(ord(letter) * (1 + i) for i, letter in enumerate(name))


def test_a_lost_device_counts_as_a_death(tmp_path: Path, marker: str) -> None:
    outcomes = run_cases(tmp_path, lambda case: case.dropout > 0, "spoil")
    counts = Counter(event.kind for event in outcomes.values())
    dropouts = sum(case.dropout > 0 for case in CASES)
    assert counts["answer"] == len(CASES) - (dropouts - 2), counts
    assert counts["skipped"] == dropouts - 2


@pytest.mark.nightly
def test_a_hang_is_a_loss_of_its_feature(tmp_path: Path, marker: str) -> None:
    outcomes = run_cases(tmp_path, lambda case: case.dropout > 0, "hang", seconds=2.0)
    kinds = Counter(outcomes[case.name].kind for case in CASES if case.dropout > 0)
    assert kinds["timed_out"] == 2 and kinds["skipped"] == sum(kinds.values()) - 2
    assert all(outcomes[case.name].kind == "answer" for case in CASES if not case.dropout)
    assert any(event.reason.startswith("skipped: dropout hung twice before") for event in outcomes.values())


def test_a_hang_counts_more_and_is_named_so() -> None:
    losses = Losses({"a": ("dropout",), "b": ("dropout",), "c": ("dropout",), "d": ("a window",)}, survived=["d"])
    losses.record_loss("a", "hung")
    losses.record_loss("b", "hung")
    assert losses.reason_to_skip("c") == "dropout hung twice before, and no case with it survived"
    assert losses.reason_to_skip("d") == "" and not losses.is_over
    losses.record_loss("", "hung")
    assert losses.is_over


def test_what_one_worker_lost_another_one_skips(tmp_path: Path, marker: str) -> None:
    outcomes = run_cases(tmp_path, has_large_head, workers=4)
    for case in CASES:
        assert outcomes[case.name].kind in (("died", "skipped") if has_large_head(case) else ("answer",)), case.name
    assert sum(event.kind == "died" for event in outcomes.values()) <= MAX_COST // COST_OF_DEATH


def test_nothing_is_explained_before_an_item_survived_or_a_second_one_was_lost() -> None:
    lost = [("head_dim 160", "dtype bf16"), ("head_dim 160", "dtype fp16")]
    assert explain_losses(lost, []) == ()
    assert explain_losses(lost[:1], [("head_dim 64", "dtype bf16")]) == ()
    (shared,) = explain_losses(lost, [("head_dim 64", "dtype bf16")])
    assert shared == SharedFeature("head_dim 160", frozenset({"head_dim 160"}), 2)


def test_what_could_be_either_is_held_back_only_where_it_is_both() -> None:
    lost = [("head_dim 160", "layout packed", "a window"), ("head_dim 160", "layout packed")]
    (shared,) = explain_losses(lost, [("head_dim 64", "layout dense", "a window")])
    assert shared.features == {"head_dim 160", "layout packed"}
    (shared,) = explain_losses(lost, [("head_dim 64", "layout packed", "a window")])
    assert shared.features == {"head_dim 160"}


def test_two_features_explain_what_neither_does_alone() -> None:
    lost = [("head_dim 160", "dtype bf16"), ("head_dim 160", "dtype bf16", "a window")]
    survived = [("head_dim 160", "dtype fp16"), ("head_dim 64", "dtype bf16", "a window")]
    (shared,) = explain_losses(lost, survived)
    assert shared.name == "head_dim 160 with dtype bf16"
