"""Trains small models the way the job will, says what goes wrong, mends the plan and proves the mended one.

before: every question under the plan as given; then, for what fails, changes of the plan, each run; then every
question again under the plan with all changes that mend: that is what the report ends with, ready to paste.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attncheck.core.errors import BadUsage, Unanswered
from attncheck.core.findings import Finding, Fix, Problem
from attncheck.core.plan import Change, Plan
from attncheck.core.report import Report
from attncheck.core.results.smoke import (
    CheckResult,
    PlanRun,
    Settings,
    SmokeSection,
    answer,
    deciding_reason,
    describe,
    worst_first,
)
from attncheck.core.results.verdicts import HUGE, MeasuredOn, Verdict
from attncheck.core.snapshot import Snapshot
from attncheck.doctor import engine
from attncheck.lint import frameworks, plan_settings
from attncheck.ring.group import Ring
from attncheck.smoke import checks, fix_search, over_ranks, package_trials
from attncheck.smoke.fix_search import Search
from attncheck.smoke.package_trials import Tried
from attncheck.smoke.trials import OVER_RANKS, Runner, Trial, failing, proof_of, seconds_since
from attncheck.workers.execution import ExecutionTarget
from attncheck.workers.launcher_env import RankEnv, read_rank_env

DEFAULTS = ("llama", "qwen2")  # shapes trained where no model is named


@dataclass(frozen=True)
class Request:
    """What was asked: the plan, the model or shapes, which questions, and what may be tried to mend it."""

    plan: Plan = Plan()
    models: tuple[str, ...] = DEFAULTS
    questions: tuple[str, ...] = ()
    full: bool = False
    data: str = ""
    data_field: str | None = None
    fix: bool = True
    try_packages: bool = False
    ring: Ring | None = None


def questions(names: Sequence[str]) -> tuple[str, ...]:
    """Return the questions asked for. Raises `BadUsage` naming the known ones."""
    known = checks.load()[0]
    for name in names:
        if name not in known:
            raise BadUsage(f"--only {name!r} is not one of {', '.join(known)}")
    return tuple(dict.fromkeys(names))


def check(request: Request) -> None:
    """Raise `BadUsage` for what does not go together."""
    if request.full and request.models == DEFAULTS:
        raise BadUsage("--full trains the real weights of a MODEL; name one")
    if request.data and request.models == DEFAULTS:
        raise BadUsage("--data needs a MODEL, whose tokenizer reads it; name one")
    if request.data_field and not request.data:
        raise BadUsage("--data-field is for --data")
    if request.plan.seed < 0 or request.plan.learning_rate <= 0:
        raise BadUsage("the learning rate must be above 0")


def run(snapshot: Snapshot, request: Request, bench: ExecutionTarget, say: Callable[[str], None]) -> Report:
    """Return the report. Raises `Unanswered` where nothing can be run."""
    began = time.monotonic()
    request = placed(request, read_rank_env(os.environ))
    plan = completed(request.plan, snapshot, bench)
    runner = Runner(bench, say, _extra(request))
    before = _attempts(request, runner, [Trial(model, plan, "", request.questions) for model in request.models])
    _check(before)
    searches = [_search(attempt, request, runner) for attempt in before]
    packages = [_packages(attempt, snapshot, request, runner) for attempt in before]
    device = runner.device
    on = MeasuredOn(
        str(device.get("kind", "")),
        str(device.get("name", "")),
        str(device.get("torch", "")),
        seed=plan.seed,
        seconds=seconds_since(began),
        ring_size=plan.ring_size if plan.ring_size > 1 else 0,
        emulated=plan.ring_size > 1 and request.ring is not None and request.ring.emulated(bench),
    )
    return report(snapshot, before, searches, on, packages)


def placed(request: Request, where: RankEnv | None) -> Request:
    """Return what a rank asks that a launcher outside started: one model, over ranks, once; rank 0 also by itself.

    A second group of ranks cannot be had there, so nothing that needs one is tried. Raises `BadUsage` without a ring.
    """
    if where is None:
        return request
    if request.ring is None:
        raise BadUsage(f"under a launcher of {where.world_size} ranks say --ring-size {where.world_size}")
    asked = request.questions if where.rank == 0 else (OVER_RANKS,)
    return replace(request, models=request.models[:1], questions=asked, fix=False, try_packages=False)


def _extra(request: Request) -> dict[str, Any]:
    """Return what workers are told beside models and plans."""
    data = str(Path(request.data).absolute()) if request.data else ""
    return {"full": request.full, "data": data, "data_field": request.data_field}


def completed(plan: Plan, snapshot: Snapshot, bench: ExecutionTarget) -> Plan:
    """Return the plan with an implementation where none was named: flash-attn where it is, else transformers' own.

    A ring needs flash_attention_2, which the adapter replaces.
    """
    if plan.attn_implementation:
        return plan
    hooked = plan.ring_size > 1 and plan.scheme == "llama3"
    if plan.precision != "fp32" and (hooked or (bench.uses_gpu and snapshot.has("flash-attn"))):
        return replace(plan, attn_implementation="flash_attention_2")
    return plan


def _attempts(request: Request, runner: Runner, trials: Sequence[Trial]) -> list[PlanRun]:
    """Return what came of each trial, on one device and over ranks.

    Where flash-attn is emulated for the ranks, one device has none: it runs transformers' own choice.
    """
    emulated = request.ring is not None and request.ring.emulated(runner.bench)
    alone = [
        replace(trial, plan=replace(trial.plan, attn_implementation="")) if emulated else trial for trial in trials
    ]
    ran = [replace(one, plan=trial.plan) for one, trial in zip(runner.run(alone), trials, strict=True)]
    return [_over_ranks(attempt, request, runner.bench, runner.say) for attempt in ran]


def _over_ranks(attempt: PlanRun, request: Request, bench: ExecutionTarget, say: Callable[[str], None]) -> PlanRun:
    """Return an attempt with the question over ranks answered, where it arises and is asked."""
    question = checks.load()[0].get(OVER_RANKS)
    if question is None or request.ring is None or question.applies(attempt.plan):
        return attempt
    if request.questions and OVER_RANKS not in request.questions:
        return attempt
    say(f"{attempt.model}: {question.title}")
    proof = over_ranks.measure(attempt.model, attempt.plan, request.ring, bench, say)
    return replace(attempt, results=(*attempt.results, proof))


def _check(attempts: Sequence[PlanRun]) -> None:
    """Raise `Unanswered` where no question arises or nothing fits into memory."""
    outcomes = [proof for attempt in attempts for proof in attempt.results]
    if not outcomes:
        raise Unanswered("no question arises under this plan")
    if all(proof.outcome == "out_of_memory" for proof in outcomes):
        raise Unanswered(f"nothing fits into memory: {outcomes[0].reason}")


def _search(attempt: PlanRun, request: Request, runner: Runner) -> Search:
    """Return what mends the plan of an attempt; nothing is tried where nobody wants that."""

    def attempts(last: PlanRun, changes: Sequence[Change], asked: tuple[str, ...]) -> list[PlanRun]:
        wanted = replace(request, questions=asked or request.questions)
        titles = [", ".join(filter(None, (last.reason, change.title))) for change in changes]
        trials = [
            Trial(last.model, change.plan, title, wanted.questions)
            for change, title in zip(changes, titles, strict=True)
        ]
        return _attempts(wanted, runner, trials)

    return fix_search.search(attempt, attempts) if request.fix else Search((), (), attempt)


def _packages(attempt: PlanRun, snapshot: Snapshot, request: Request, runner: Runner) -> tuple[Tried, ...]:
    """Return what other versions of packages make of the questions that an attempt fails."""
    if not request.try_packages:
        return ()

    def ask(before: PlanRun, questions: tuple[str, ...], folder: str) -> PlanRun:
        ring = replace(request.ring, extra_path=folder) if request.ring is not None else None
        wanted = replace(request, questions=questions, ring=ring)
        beside = replace(runner, extra_path=folder)
        return _attempts(wanted, beside, [Trial(before.model, before.plan, "with other packages", questions)])[0]

    return package_trials.tried(attempt, snapshot, runner.bench.python, ask, runner.say)


def report(
    snapshot: Snapshot,
    before: Sequence[PlanRun],
    searches: Sequence[Search],
    on: MeasuredOn,
    packages: Sequence[tuple[Tried, ...]] = (),
) -> Report:
    """Return the report on what was run: pure judging. `packages` holds what was tried for each model."""
    mended = [found.last for found in searches if found.mended]
    attempts = (*before, *mended)
    final = next(iter(mended), before[0]).plan
    verdicts = tuple(_verdict(attempt, proof) for attempt in attempts for proof in attempt.results)
    findings = tuple(_findings(before, searches, packages or [()] * len(before)))
    section = SmokeSection(on, verdicts, attempts, tuple(_settings(snapshot, final)))
    return Report("smoke", snapshot, findings, sections={"smoke": section})


def _verdict(attempt: PlanRun, proof: CheckResult) -> Verdict:
    excess = max((measure.budget_ratio for measure in proof.measures), default=0.0)
    name = f"{attempt.model} {attempt.reason}".strip()
    return Verdict(
        "smoke", name, proof.check, "", answer(proof), deciding_reason(proof), min(excess, HUGE), evidence(proof)
    )


def evidence(proof: CheckResult) -> tuple[str, ...]:
    """Return what speaks for the answer to a question, the gravest first."""
    beyond = [describe(measure) for measure in worst_first(proof) if measure.beyond]
    return tuple(dict.fromkeys((*proof.violations, *beyond, *proof.reservations, *proof.notes)))


def _findings(
    before: Sequence[PlanRun], searches: Sequence[Search], packages: Sequence[tuple[Tried, ...]]
) -> Iterator[Finding]:
    """Yield one finding for each question that fails, whatever the number of models that fail it."""
    for question in checks.load()[0].values():
        every = zip(before, searches, packages, strict=True)
        wrong = [(attempt, found, other) for attempt, found, other in every if question.name in failing(attempt)]
        if not wrong:
            continue
        first, search, others = wrong[0]
        proof = proof_of(first, question.name)
        assert proof is not None
        lines = [line for attempt, _, _ in wrong for line in _lines(attempt, question.name)]
        tried = [title for name, title in search.tried if name == question.name]
        if tried:
            lines.append(f"tried, and it is still wrong: {'; '.join(tried)}")
        lines += package_trials.told(others, question.name)
        fixes = (*_fixes(question.name, search), *_package_fixes(question.name, others))
        subject = ", ".join(attempt.model for attempt, _, _ in wrong)
        yield engine.make_finding_by_code(question.code, Problem(question.message(proof), tuple(lines), fixes, subject))


def _lines(attempt: PlanRun, question: str) -> Iterator[str]:
    proof = proof_of(attempt, question)
    if proof is not None:
        yield from (f"{attempt.model}: {line}" for line in (evidence(proof) or (proof.reason,))[:4])


def _fixes(question: str, search: Search) -> Iterator[Fix]:
    """Yield the changes that mend a question, with what the run under all of them showed.

    A question that was mended along with another has that one's changes.
    """
    if not search.mended or not fix_search.passes(search.last, question):
        return
    own = [one.change for one in search.mended if one.question == question]
    for change in own or [one.change for one in search.mended]:
        yield Fix(change.title, change.kind, change.text, "safe", _proven(question, search.last))


def _package_fixes(question: str, found: tuple[Tried, ...]) -> Iterator[Fix]:
    for one in found:
        if one.mends(question) and one.attempt is not None:
            yield replace(one.fix, proven=f"in a temporary folder: {_proven(question, one.attempt)}")


def _proven(question: str, attempt: PlanRun) -> str:
    """Return what showed that a question passes: its number, and the training run under the same plan."""
    proof, training = proof_of(attempt, question), proof_of(attempt, "training")
    told = "the question does not arise any more" if proof is None else deciding_reason(proof)
    return told if training is None or not training.steps or proof is training else f"{told}; {learned(training)}"


def learned(proof: CheckResult) -> str:
    """Return a training run in a few words."""
    losses = [step.loss for step in proof.steps]
    return f"{len(losses)} steps, loss {losses[0]:.2f} → {losses[-1]:.2f}"


def _settings(snapshot: Snapshot, plan: Plan) -> Iterator[Settings]:
    """Yield the plan as plain transformers and each installed framework write it."""
    yield Settings("transformers", plan_settings.settings(plan, "transformers"))
    for framework in frameworks.load():
        if not framework.general and snapshot.has(framework.distribution):
            version = str(getattr(snapshot.version(framework.distribution), "value", ""))
            yield Settings(framework.name, plan_settings.settings(plan, framework.name, version))
