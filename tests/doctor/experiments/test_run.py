"""Experiments are run where a trainer is installed, and kept by what they rest on."""

from __future__ import annotations

from pathlib import Path

import pytest

from attncheck.core.experiments import BatchMeasurement, Experiments, GradientMeasurement
from attncheck.core.facts import Absent, Known
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.experiments import run
from attncheck.workers.child import ChildResult
from tests import snapshots as s

MEASURED = Experiments(
    (GradientMeasurement("transformers", "one batch", 1.0, 1.0, 1.0),),
    (BatchMeasurement("trl", "packing", "sdpa", ("input_ids",), False),),
)


def with_trainer() -> Snapshot:
    return s.with_package(s.laptop(), "accelerate", "1.12.0")


def test_without_a_trainer_nothing_is_run() -> None:
    missing = run.add_experiments(s.without_packages(s.laptop(), "accelerate"), None).experiments
    assert isinstance(missing, Absent) and "accelerate" in missing.reason


def test_what_was_measured_is_kept_until_a_package_changes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    runs: list[str] = []

    def measure(python: str, snapshot: Snapshot) -> Experiments:
        runs.append(python)
        return MEASURED

    monkeypatch.setattr(run, "_run", measure)
    assert run.add_experiments(with_trainer(), "python").experiments == Known(MEASURED)
    assert run.add_experiments(with_trainer(), "python").experiments == Known(MEASURED) and len(runs) == 1
    assert run.find_kept_experiments(with_trainer()) == Known(MEASURED)
    changed = s.with_package(with_trainer(), "transformers", "5.18.0")
    assert isinstance(run.find_kept_experiments(changed), Absent)
    run.add_experiments(changed, "python")
    assert len(runs) == 2


def test_an_experiment_without_an_answer_is_lost_and_not_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(run, "_run", lambda python, snapshot: Experiments(lost=("the keys of a batch: it died",)))
    assert run.add_experiments(with_trainer(), "python").lost == ("experiment: the keys of a batch: it died",)
    assert isinstance(run.find_kept_experiments(with_trainer()), Absent)


def test_a_trainer_that_could_not_be_made_is_lost_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    broken = Experiments(
        (GradientMeasurement("llamafactory", "one batch", error="TypeError: no"),),
        (
            BatchMeasurement("llamafactory", "padded", "sdpa", error="TypeError: no"),
            BatchMeasurement("llamafactory", "padding_free", "sdpa", error="ValueError: it has none"),
        ),
    )
    monkeypatch.setattr(run, "_run", lambda python, snapshot: broken)
    lost = run.add_experiments(with_trainer(), "python").lost
    assert [text for text in lost if "llamafactory" in text] == [
        "experiment: gradients of llamafactory, one batch: TypeError: no",
        "experiment: batches of llamafactory: TypeError: no",
    ]
    assert run.add_experiments(with_trainer(), "python").lost == lost, "kept, and still not silent"


def test_ranks_that_were_stopped_are_lost_and_measured_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    late = {"trainer": "transformers", "division": "two ranks", "error": run.NO_ANSWER}
    answers = {"trainers": ChildResult("ok", {"gradients": [late], "batches": []})}
    monkeypatch.setattr(run, "Child", lambda python, call, message: None)
    monkeypatch.setattr(run, "wait_for_children", lambda children, deadline: answers)
    assert "experiment: two ranks: no answer in time" in run.add_experiments(with_trainer(), "python").lost
    assert isinstance(run.find_kept_experiments(with_trainer()), Known), "lint takes what was measured"
    monkeypatch.setattr(run, "_run", lambda python, snapshot: MEASURED)
    assert run.add_experiments(with_trainer(), "python").experiments == Known(MEASURED)
