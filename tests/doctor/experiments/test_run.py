"""Experiments are run where a trainer is installed, and kept by what they rest on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attncheck.core.facts import Absent, Known
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.experiments import run
from attncheck.workers.child import ChildResult
from tests import snapshots as s


def with_trainer() -> Snapshot:
    return s.with_package(s.laptop(), "accelerate", "1.12.0")


def test_without_a_trainer_nothing_is_run() -> None:
    missing = run.add_experiments(s.without_packages(s.laptop(), "accelerate"), None).experiments
    assert isinstance(missing, Absent) and "accelerate" in missing.reason


def answer(reason: str = "", **measured: object) -> dict[str, object]:
    return {"reason": reason, "measured": measured}


class Machine:
    """Runs no child: gives the answers of parts, and records which were settled."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.settled: list[list[str]] = []
        self.parts: dict[str, object] = {}
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
        monkeypatch.setattr(run, "Child", self._start)
        monkeypatch.setattr(run, "wait_for_children", self._wait)

    def _start(self, python: str, call: str, message: dict[str, Any]) -> None:
        self.settled.append(message["request"]["settled"])

    def _wait(self, children: object, deadline: float) -> dict[str, ChildResult]:
        parts = {name: part for name, part in self.parts.items() if name not in self.settled[-1]}
        return {"experiments": ChildResult("ok", parts) if parts else ChildResult("died", returncode=1)}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    return Machine(monkeypatch, tmp_path)


STEPS = answer(gradients=[{"trainer": "transformers", "division": "one batch", "ratio": 1.0}])
KEYS = answer(batches=[{"trainer": "trl", "layout": "packing", "attention": "sdpa", "keys": ["input_ids"]}])


def test_what_was_measured_is_kept_until_a_package_changes(machine: Machine) -> None:
    machine.parts = {"steps": STEPS, "keys": KEYS}
    first = run.add_experiments(with_trainer(), "python")
    assert run.add_experiments(with_trainer(), "python") == first and len(machine.settled) == 1
    assert run.find_kept_experiments(with_trainer()) == first.experiments
    changed = s.with_package(with_trainer(), "transformers", "5.18.0")
    assert isinstance(run.find_kept_experiments(changed), Absent)
    run.add_experiments(changed, "python")
    assert machine.settled == [[], []]


def test_experiments_without_an_answer_are_lost_and_not_kept(machine: Machine) -> None:
    for _ in range(2):
        assert "exit status 1" in run.add_experiments(with_trainer(), "python").lost[0]
    assert isinstance(run.find_kept_experiments(with_trainer()), Absent)


def test_a_trainer_that_could_not_be_made_is_lost_too(machine: Machine) -> None:
    broken = {"trainer": "llamafactory", "error": "TypeError: no"}
    none = {**broken, "layout": "padding_free", "attention": "sdpa", "error": "ValueError: it has none"}
    batches = [{**broken, "layout": "padded", "attention": "sdpa"}, none]
    machine.parts = {"steps": answer(gradients=[{**broken, "division": "one batch"}], batches=batches)}
    lost = run.add_experiments(with_trainer(), "python").lost
    assert [text for text in lost if "llamafactory" in text] == [
        "experiment: gradients of llamafactory, one batch: TypeError: no",
        "experiment: batches of llamafactory: TypeError: no",
    ]
    assert run.add_experiments(with_trainer(), "python").lost == lost, "kept, and still not silent"


def test_a_part_that_was_stopped_is_run_again_only_with_more_time_and_alone(machine: Machine) -> None:
    half = {"trainer": "trl", "variant": "dpo", "change": "padding_free"}
    machine.parts = {"steps": STEPS, "twins": answer("no answer in time", twins=[half])}
    first = run.add_experiments(with_trainer(), "python")
    assert [text for text in first.lost if "twins: not measured in 480 s" in text and "--timeout 960" in text]
    kept = run.find_kept_experiments(with_trainer())
    assert isinstance(kept, Known) and len(kept.value.twins) == 1, "lint takes what was measured"
    assert [text.partition(":")[0] for text in kept.value.lost] == ["twins"]
    assert run.add_experiments(with_trainer(), "python").lost == first.lost and len(machine.settled) == 1
    machine.parts["twins"] = answer(twins=[half, {**half, "change": "more padding"}])
    again = run.add_experiments(with_trainer(), "python", 960)
    assert machine.settled == [[], ["steps"]] and not again.lost
    assert isinstance(again.experiments, Known)
    assert (len(again.experiments.value.twins), len(again.experiments.value.gradients)) == (2, 1)
    assert run.add_experiments(with_trainer(), "python") == again and len(machine.settled) == 2
