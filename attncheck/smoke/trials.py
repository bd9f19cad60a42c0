"""Runs plans: models and plans -> workers -> proofs, each question in its turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from attncheck.core import codec
from attncheck.core.plan import Plan
from attncheck.core.results.smoke import CheckResult, PlanRun, answer
from attncheck.smoke import checks
from attncheck.workers import execution
from attncheck.workers.execution import ExecutionTarget
from attncheck.workers.pool import Event, Job, Pool

PATIENCE = 3.0  # times a case's deadline: a question builds several models, and a compiler may have to work
OVER_RANKS = "parallel"  # the question that workers of one device cannot answer


@dataclass(frozen=True)
class Trial:
    """A plan to run on a model, and what to ask of it; all that arises where nothing is named."""

    model: str
    plan: Plan
    because: str = ""
    questions: tuple[str, ...] = ()

    def asked(self) -> tuple[checks.SmokeCheck, ...]:
        """Return the questions to ask, in order, but for the one over ranks."""
        known = checks.load()[0].values()
        wanted = [one for one in known if one.name != OVER_RANKS and (not self.questions or one.name in self.questions)]
        return tuple(one for one in wanted if not one.applies(self.plan))


@dataclass
class Runner:
    """Runs trials in workers of the examined environment, one worker at a time: nothing else uses the device."""

    bench: ExecutionTarget
    say: Callable[[str], None]
    extra: dict[str, Any] = field(default_factory=dict)  # of the message: --full, --data
    extra_path: str = ""  # a folder put first on the workers' sys.path
    device: dict[str, Any] = field(default_factory=dict)

    def run(self, trials: Sequence[Trial]) -> tuple[PlanRun, ...]:
        """Return what came of each trial. Raises `Unanswered` where the device or torch cannot be had."""
        found: dict[tuple[int, str], CheckResult] = {}
        for numbers in _by_environment(trials):
            self._serve(trials, numbers, found)
        return tuple(
            PlanRun(trial.model, trial.plan, _proofs(trial, number, found), trial.because)
            for number, trial in enumerate(trials)
        )

    def _serve(
        self, trials: Sequence[Trial], numbers: Sequence[int], found: dict[tuple[int, str], CheckResult]
    ) -> None:
        """Run the trials that share their environment variables in one worker."""
        mine = [trials[number] for number in numbers]
        items = tuple(f"{at}:{question.name}" for at, trial in enumerate(mine) for question in trial.asked())
        message = {
            "task": "attncheck.smoke.worker.tasks:smoke",
            "device": self.bench.device,
            "threads": self.bench.threads_per_worker(1),
            "attempts": [(trial.model, codec.plain(trial.plan)) for trial in mine],
            **self.extra,
        }

        def tell(event: Event) -> None:
            at, _, question = event.item.partition(":")
            self._show(event, mine[int(at)], question)
            if event.kind not in ("started", "step"):
                found[numbers[int(at)], question] = _proof(event, question)

        pool = Pool(self.bench.python, 1)
        pool.run([Job("smoke", message, items, self.bench.seconds * PATIENCE, self.extra_path)], tell)
        self.device = self.device or pool.device

    def _show(self, event: Event, trial: Trial, question: str) -> None:
        title = checks.load()[0][question].title
        if event.kind == "step":
            told = f"step {event.answer['step']} of {trial.plan.steps}, loss {event.answer['loss']:.3f}"
            self.say(f"{trial.model}: {told}")
        elif event.kind == "started":
            self.say(f"{trial.model}{f', {trial.because}' if trial.because else ''}: {title}")


def _by_environment(trials: Sequence[Trial]) -> Iterable[list[int]]:
    groups: dict[object, list[int]] = {}
    for number, trial in enumerate(trials):
        if trial.asked():
            groups.setdefault(trial.plan.environ, []).append(number)
    return groups.values()


def _proof(event: Event, question: str) -> CheckResult:
    if event.kind == "answer":
        return codec.read(CheckResult, event.answer)
    return CheckResult(question, execution.unmeasured_outcome(event), event.reason)


def _proofs(trial: Trial, number: int, found: dict[tuple[int, str], CheckResult]) -> tuple[CheckResult, ...]:
    """Return a trial's proofs in order; what raises the same thing as an earlier one is said once."""
    proofs: list[CheckResult] = []
    for question in trial.asked():
        proof = found.get((number, question.name), CheckResult(question.name, "skipped", "it was not reached"))
        earlier = next((p for p in proofs if p.outcome == proof.outcome == "raised" and p.reason == proof.reason), None)
        if earlier is not None:
            proof = replace(proof, outcome="skipped", reason=f"it raises as {earlier.check} does")
        proofs.append(proof)
    return tuple(proofs)


def failing(attempt: PlanRun) -> tuple[str, ...]:
    """Return the questions that an attempt fails."""
    return tuple(proof.check for proof in attempt.results if answer(proof) in ("fail", "lost"))


def proof_of(attempt: PlanRun, question: str) -> CheckResult | None:
    """Return an attempt's proof of a question."""
    return next((proof for proof in attempt.results if proof.check == question), None)


def seconds_since(began: float) -> float:
    """Return the seconds since a time.monotonic() value."""
    return round(time.monotonic() - began, 3)
