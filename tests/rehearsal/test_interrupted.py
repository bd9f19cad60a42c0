"""An interrupt while a launch is judged: what was judged until then is reported, and nothing that was not."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from attncheck.core.facts import Absent
from attncheck.core.io import interrupts
from attncheck.core.launch import Source
from attncheck.core.report import InterruptedRun
from attncheck.core.results.rehearsal import RehearsalSection
from attncheck.core.results.smoke import CheckResult
from attncheck.rehearsal import judged_run, reading, run, second_run, staging
from attncheck.workers.execution import ExecutionTarget
from attncheck.workers.pool import Event
from tests.snapshots import laptop

TRL = "trl sft --model_name_or_path m --dataset_name d --output_dir o --per_device_train_batch_size 4\n"
JUDGED = ("batch", "documents")
TARGET = ExecutionTarget(sys.executable, "cpu", 60.0)


@pytest.fixture(autouse=True)
def handled() -> Iterator[None]:
    """Handle signals as the program does."""
    before = {number: signal.getsignal(number) for number in interrupts.STOP_SIGNALS}
    interrupts.install_handlers()
    yield
    interrupts.forget_interrupt()
    for number, handler in before.items():
        signal.signal(number, handler)


def end_after(count: int) -> Any:
    """Return a pool whose worker answers this many checks before the machine ends the program."""

    def run(jobs: list[Any], on_event: Callable[[Event], None]) -> None:
        for name in JUDGED[:count]:
            on_event(Event("rehearsal", name, "answer", answer={}))
        signal.raise_signal(signal.SIGTERM)

    return SimpleNamespace(run=run)


def test_the_answers_before_an_interrupt_are_kept() -> None:
    job = staging.make_job(TARGET, {}, judged_run.CHECKS)
    events = staging.ask_worker(end_after(1), job)
    assert list(events) == ["batch"] and staging.read_result(events.get("loss"), "loss").outcome == "skipped"
    with pytest.raises(KeyboardInterrupt):
        staging.ask_worker(end_after(0), job)


def test_an_interrupt_before_the_first_answer_leaves_how_the_launch_ended() -> None:
    stage: Any = SimpleNamespace(target=TARGET, targets=None, pool=end_after(0))
    results = judged_run._judge(stage, {})
    assert [(result.check, result.outcome) for result in results] == [(name, "skipped") for name in judged_run.CHECKS]
    assert interrupts.is_interrupted()


def test_a_second_run_that_is_interrupted_leaves_the_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "watch").mkdir()
    monkeypatch.setattr(second_run, "execute", lambda *arguments: signal.raise_signal(signal.SIGINT))
    stage: Any = SimpleNamespace(folder=str(tmp_path))
    result = second_run.rerun(stage, cast(Any, None), 3, "", "twin", "twins:compare")
    assert (result.check, result.outcome) == ("twin", "skipped") and interrupts.is_interrupted()


@pytest.mark.parametrize("judged", [1, 0])
def test_the_launches_before_an_interrupt_are_reported(monkeypatch: pytest.MonkeyPatch, judged: int) -> None:
    """Marked as interrupted; without any the interrupt stays one."""
    left = [judged]

    def rehearse(read: Any, *arguments: Any) -> tuple[RehearsalSection, list[Any]]:
        if not left[0]:
            signal.raise_signal(signal.SIGTERM)
        left[0] -= 1
        return run._make_refused(read, "a reason"), []

    monkeypatch.setattr(run, "_rehearse", rehearse)
    source = Source("run.sh", TRL * 2, "shell")
    request = reading.Request((source,), lambda name: Absent("no"), lambda source: lambda path: None)
    with pytest.raises(InterruptedRun if judged else KeyboardInterrupt) as ended:
        run.run(laptop(), request, TARGET, lambda text: None)
    assert isinstance(ended.value, InterruptedRun) == bool(judged)
    if isinstance(ended.value, InterruptedRun):
        section = ended.value.report.section(RehearsalSection)
        assert section is not None and section.measured_on.interrupted and len(section.launches) == 1
        assert section.launches[0].results == (CheckResult("run", "skipped", "a reason"),)
