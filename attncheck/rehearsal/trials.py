"""Tries fixes of a rehearsed launch, and makes its findings."""

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from attncheck.core.findings import Finding, Fix, Problem
from attncheck.core.io import interrupts
from attncheck.core.io.errors import Unanswered
from attncheck.core.rehearsal import JobCut
from attncheck.core.results.rehearsal import RehearsedLaunch
from attncheck.core.results.smoke import deciding_reason, judge_result
from attncheck.doctor import engine
from attncheck.doctor.rules.transformers.neutral_change_trains_otherwise import FIXES as TWIN_FIXES
from attncheck.lint.exports import REFERENCE, hide_exports, hide_exports_in_diff
from attncheck.lint.pasting import format_command
from attncheck.lint.rewriting import ReadLaunch, rewrite
from attncheck.rehearsal import corrections, known, missing, own_errors
from attncheck.rehearsal.judged_run import run_once
from attncheck.rehearsal.staging import Stage
from attncheck.smoke.run import collect_evidence, summarize_training

CODES = {
    "batch": "ATN431",
    "documents": "ATN432",
    "loss": "ATN433",
    "gradients": "ATN434",
    "run": "ATN435",
    "learning": "ATN436",
    "repeat": "ATN437",
    "update": "ATN438",
    "labels": "ATN439",
    "twin": "ATN470",
}
MESSAGES = {
    "batch": "the batches do not contain the documents that they should",
    "documents": "packed documents influence each other",
    "loss": "the loss is not the documented one",
    "gradients": "the gradients are not those of the loss",
    "run": "the scaled-down launch ends with an error",
    "learning": "the launch does not train correctly",
    "repeat": "two runs of the launch differ, or it does not continue from its checkpoint",
    "update": "the weights are not trained, evaluated or saved as they should be",
    "labels": "the launch learns other tokens than intended",
    "twin": "a change that is neutral by documentation changes what is trained",
}
OTHER_OUTPUTS = "the model does not compute what its class defines"  # for a module that differs
OTHER_TARGETS = "the loss does not predict the next token"  # for targets that no document explains
MAX_LINES = 6  # in a finding's evidence
OF_WHOLE_RUN = {"run", "update", "repeat", "learning", "twin"}  # checks that the first steps do not decide
LEARNING_STEPS = 20  # with which a launch is seen to learn


@dataclass(frozen=True)
class _Trial:
    """A fix that was tried, and the resulting launch."""

    correction: corrections.Correction
    launch: RehearsedLaunch
    corrected: tuple[str, ...]  # the checks that failed before and now pass

    @property
    def is_better(self) -> bool:
        return bool(self.corrected)

    @property
    def is_clean(self) -> bool:
        return not failed_checks(self.launch) and self.is_better


def failed_checks(launch: RehearsedLaunch) -> tuple[str, ...]:
    """Return the names of the checks that a launch fails."""
    return tuple(result.check for result in launch.results if judge_result(result) == "fail")


def try_corrections(stage: Stage, cut: JobCut, first: RehearsedLaunch) -> list[_Trial]:
    """Return the trials of possible fixes, up to the first that fixes everything."""
    failed = failed_checks(first)
    trials: list[_Trial] = []
    if failed and not {*failed} & OF_WHOLE_RUN:
        few = replace(stage.materials, steps=min(stage.materials.steps, LEARNING_STEPS))
        stage = replace(stage, materials=few, is_trial=True)
    proposed = corrections.propose(stage.read, cut, failed, first) if failed else ()
    for correction in itertools.takewhile(lambda _: not interrupts.is_interrupted(), proposed):
        text = corrections.describe(stage.read, correction)
        trial_cut = replace(cut, environ={**cut.environ, **correction.environ})
        try:
            launch = run_once(stage, trial_cut, correction.sets, text)
        except (Unanswered, KeyboardInterrupt):  # this launch cannot be written that way
            continue
        passes = {result.check for result in launch.results if judge_result(result) in ("pass", "warn")}
        trials.append(_Trial(correction, launch, tuple(name for name in failed if name in passes)))
        if trials[-1].is_clean:
            break
    return trials


def format_corrected(read: ReadLaunch, correction: corrections.Correction) -> tuple[str, ...]:
    """Return the user's own launch with the settings that fix it: the change and the command; () for a fix in code."""
    if correction.line:
        return ()
    rewritten = rewrite(read, correction.sets)
    diff = hide_exports_in_diff(rewritten.diff, read.recognised.launch.environ)
    command = hide_exports(format_command(rewritten.launch).text, REFERENCE)
    return tuple(text for text in (diff, command) if text)


def iter_findings(read: ReadLaunch, cut: JobCut, first: RehearsedLaunch, trials: Sequence[_Trial]) -> Iterator[Finding]:
    """Yield a finding for each failed check of the launch, with its fix and its known cause."""
    failed = failed_checks(first)
    for result in first.results:
        if result.check not in failed:
            continue
        helped = [trial for trial in trials if result.check in trial.corrected]
        helped.sort(key=lambda trial: not trial.is_clean)
        fixes = tuple(
            Fix(
                trial.correction.title or trial.launch.tried,
                "edit" if trial.correction.line else "setting",
                trial.launch.tried,
                "safe",
                _prove(trial.launch, result.check),
            )
            for trial in helped[:1]
        )
        if result.check == "twin":
            setting = result.violations[0].partition(":")[0]
            fixes += (Fix("leave the change out", "setting", TWIN_FIXES.get(setting, f"{setting}: false")),)
        if result.check == "run":
            folders = dict.fromkeys(("", os.path.dirname(read.recognised.launch.source.name)))
            text = "\n".join((*result.violations, *result.warnings, *result.notes))
            stated = () if first.steps else missing.list_differing(read.snapshot, read.recognised.launch.source)
            fixes += missing.list_installs(read.snapshot, folders, text, stated)
            if not first.steps:
                has_own = bool(cut.data) and not first.real_data
                command = f"attncheck smoke {read.recognised.launch.source.name} --real-data" * has_own
                absent = missing.list_absent(read.recognised.launch)
                fixes += (*missing.list_advice("\n".join(result.violations), command, absent),)
        tried = [trial.launch.tried for trial in trials if result.check not in trial.corrected]
        lines = collect_evidence(result) + ((f"tried without success: {'; '.join(tried)}",) if tried else ())
        reason, what = deciding_reason(result), MESSAGES[result.check]
        if result.check == "loss" and not cut.objective.is_documented:
            what = OTHER_TARGETS
        if result.check == "documents" and "module" in reason:
            what = OTHER_OUTPUTS
        message = f"{what}: {reason}"
        place = 1 if result.check == "run" else 0  # an error's own text comes before context that may be unrelated
        proof = own_errors.prove(read, first) if result.check == "run" else ""
        lines = (*filter(None, (proof,)), *lines[:place], *known.list_known_causes(read, result.check), *lines[place:])
        is_possible = result.check == "run" and not proof  # the real launch may have what the rehearsal lacks
        subject = f"{first.framework} {first.trainer}"
        problem = Problem(message, lines[:MAX_LINES], fixes, subject, is_possible)
        yield engine.make_finding_by_code(CODES[result.check], problem)


def _prove(launch: RehearsedLaunch, check: str) -> str:
    result = next(result for result in launch.results if result.check == check)
    learning = next((result for result in launch.results if result.steps), None)
    text = deciding_reason(result)
    return f"run: {text}; {summarize_training(learning)}" if learning is not None else f"run: {text}"
