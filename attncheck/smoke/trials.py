"""Runs checks of plans in workers: each trial (model, plan) gives a plan run with a result for each check."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from attncheck.core import codec
from attncheck.core.lists import group_values
from attncheck.core.plan import Plan
from attncheck.core.results.smoke import CheckResult, PlanRun, judge_result
from attncheck.ring.group import Ring
from attncheck.smoke import checks
from attncheck.workers import execution
from attncheck.workers.execution import ExecutionTarget
from attncheck.workers.pool import Event, Job, Pool

DEADLINE_FACTOR = 3.0  # times a case's deadline: a check builds several models, and may compile
NOT_REACHED = "it was not reached"
PARALLEL_CHECK = "parallel"  # the check that a worker with one device cannot run


@dataclass(frozen=True)
class Trial:
    """A plan to run on a model, and the names of the checks to run; without names, all applicable ones."""

    model: str
    plan: Plan
    reason: str = ""
    check_names: tuple[str, ...] = ()

    def select_checks(self) -> tuple[checks.SmokeCheck, ...]:
        """Return the checks that one worker runs, in order: the applicable named ones, without the one across ranks."""
        all_checks = checks.load()[0].values()
        local_checks = [check for check in all_checks if check.name != PARALLEL_CHECK]
        requested = [check for check in local_checks if not self.check_names or check.name in self.check_names]
        return tuple(check for check in requested if not check.applies(self.plan))


@dataclass
class TrialRunner:
    """Runs trials in workers of the target environment, one worker at a time: nothing else uses the device."""

    target: ExecutionTarget
    report_progress: Callable[[str], None]
    message_fields: dict[str, Any] = field(default_factory=dict)  # for each job's message: --full, --data
    extra_path: str = ""  # a folder put first on the workers' sys.path
    device: dict[str, Any] = field(default_factory=dict)
    finished: tuple[PlanRun, ...] = ()  # results of the last trials, as far as they ran
    # the results of the check across ranks
    over_ranks: dict[tuple[str, Plan, Ring], CheckResult] = field(default_factory=dict)

    def run(self, trials: Sequence[Trial]) -> tuple[PlanRun, ...]:
        """Return the plan run of each trial. Raises `Unanswered` if the device or torch is unavailable."""
        results: dict[tuple[int, str], CheckResult] = {}
        try:
            for indices in _group_by_environment(trials):
                self._run_in_worker(trials, indices, results)
        finally:
            self.finished = tuple(
                PlanRun(trial.model, trial.plan, _collect_results(trial, index, results), trial.reason)
                for index, trial in enumerate(trials)
            )
        return self.finished

    def _run_in_worker(
        self, trials: Sequence[Trial], indices: Sequence[int], results: dict[tuple[int, str], CheckResult]
    ) -> None:
        """Run the trials of these indices, with the same environment variables, in one worker; fill `results`."""
        worker_trials = [trials[index] for index in indices]
        items = tuple(
            f"{position}:{check.name}"
            for position, trial in enumerate(worker_trials)
            for check in trial.select_checks()
        )
        message = {
            "task": "attncheck.smoke.worker.tasks:smoke",
            "device": self.target.device,
            "threads": self.target.threads_per_worker(1),
            "attempts": [(trial.model, codec.to_plain(trial.plan)) for trial in worker_trials],
            **self.message_fields,
        }

        def on_event(event: Event) -> None:
            position, _, check_name = event.item.partition(":")
            self._report_event(event, worker_trials[int(position)], check_name)
            if event.kind not in ("started", "step"):
                results[indices[int(position)], check_name] = read_result(event, check_name)

        pool = Pool(self.target.python, 1)
        try:
            seconds = self.target.seconds * DEADLINE_FACTOR
            pool.run([Job("smoke", message, items, seconds, self.extra_path or self.target.extra_path)], on_event)
        finally:
            self.device = self.device or pool.device

    def _report_event(self, event: Event, trial: Trial, check_name: str) -> None:
        title = checks.load()[0][check_name].title
        if event.kind == "step":
            step = f"step {event.answer['step']} of {trial.plan.steps}, loss {event.answer['loss']:.3f}"
            self.report_progress(f"{trial.model}: {step}")
        elif event.kind == "started":
            self.report_progress(f"{trial.model}{f', {trial.reason}' if trial.reason else ''}: {title}")


def _group_by_environment(trials: Sequence[Trial]) -> Iterable[list[int]]:
    groups = group_values((trial.plan.environ, index) for index, trial in enumerate(trials) if trial.select_checks())
    return groups.values()


def read_result(event: Event, check_name: str) -> CheckResult:
    """Return the result in an event: the check's own, or how the item was lost."""
    if event.kind == "answer":
        return codec.read(CheckResult, event.answer)
    return CheckResult(check_name, execution.unmeasured_outcome(event), event.reason)


def _collect_results(trial: Trial, index: int, measured: dict[tuple[int, str], CheckResult]) -> tuple[CheckResult, ...]:
    """Return a trial's results in order; a check that raised the same error as an earlier one becomes a skip.

    A result that is skipped without a reason is left out: the check does not apply to this model.
    """
    results: list[CheckResult] = []
    for check in trial.select_checks():
        result = measured.get((index, check.name), CheckResult(check.name, "skipped", NOT_REACHED))
        if result.outcome == "skipped" and not result.reason:
            continue  # the check does not apply to the model
        earlier = next(
            (r for r in results if r.outcome == result.outcome == "raised" and r.reason == result.reason), None
        )
        if earlier is not None:
            result = replace(result, outcome="skipped", reason=f"it raises the same error as {earlier.check}")
        results.append(result)
    return tuple(results)


def failed_checks(plan_run: PlanRun) -> tuple[str, ...]:
    """Return the names of the checks that a plan fails or lost, except those that only ran out of time."""
    results = [result for result in plan_run.results if result.outcome != "out_of_time"]
    return tuple(result.check for result in results if judge_result(result) in ("fail", "lost"))


def find_result(plan_run: PlanRun, check_name: str) -> CheckResult | None:
    """Return the result of the check of this name in a plan run, None if it was not run."""
    return next((result for result in plan_run.results if result.check == check_name), None)


def seconds_since(began: float) -> float:
    """Return the seconds since `began`, a time.monotonic() value."""
    return round(time.monotonic() - began, 3)
