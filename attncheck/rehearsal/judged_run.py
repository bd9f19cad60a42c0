"""Runs a scaled-down launch and judges what was recorded of its steps."""

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from attncheck.core import codec
from attncheck.core.io import interrupts
from attncheck.core.job import DROP
from attncheck.core.launch import NOWHERE, Setting
from attncheck.core.rehearsal import PAIRED_FORMS, TEXT_ONLY, UNDOCUMENTED, Isolation, JobCut
from attncheck.core.results.rehearsal import CLASS, Difference, RehearsedLaunch
from attncheck.core.results.smoke import CheckResult, judge_result
from attncheck.lint.exports import hide_exports, hide_exports_in_diff
from attncheck.lint.fields.rehearsing import get_option, get_setting
from attncheck.lint.fields.script_options import LENGTH_OPTIONS, find_data_option
from attncheck.lint.frameworks.own_loop.reading import LENGTH_OF_TRAINING
from attncheck.lint.rewriting import ReadLaunch
from attncheck.rehearsal import cutting, execution, missing
from attncheck.rehearsal.columns import freezes_parameters
from attncheck.rehearsal.continuing import judge_continued, list_lost_files, list_questions
from attncheck.rehearsal.cutting import CutLaunch, NothingToRehearse
from attncheck.rehearsal.effects import list_effects, list_idle_rates, list_stated, list_unshown
from attncheck.rehearsal.ending import excuse_stand_in, judge_end
from attncheck.rehearsal.fidelity import leave_unasked, list_differences, list_unasked, shares_rows
from attncheck.rehearsal.options import add_options
from attncheck.rehearsal.second_run import FIRST, LIGER, REPEATED_STEPS, rerun, run_twin, run_without_gpu
from attncheck.rehearsal.staging import FOLDER, NO_NAME, Stage, execute, read_result, run_worker
from attncheck.rehearsal.worker.materials import OWN_MODEL
from attncheck.workers.pool import Event

# same names as in attncheck.rehearsal.worker.judging
CHECKS = ("batch", "documents", "update", "loss", "gradients", "learning")
OF_PROCESS = ("run", "repeat", "twin")  # not of a step
LOGGED_ERROR = re.compile(r"\bERROR\b|^\S*(?:Error|Exception)\b")  # by a script that catches its own
NO_SEED = "7919"  # before the launch sets its own, which may be 0
NUMBER = re.compile(r"\d*\.?\d+(e-?\d+)?", re.IGNORECASE)
TIED = "whether the head and the embeddings are one parameter"
# Settings of how rows are chosen, cut or joined, which leave something unasked if a cut removes them.
OF_ROWS = re.compile(r"^cached_(?!val)|interleave|mix|probs|truncation|stream|packing_(length|strategy)")
FREEZING = re.compile(r"freeze|freezing|frozen|trainable|lora|peft|adapter|tuner")


def run_once(stage: Stage, cut: JobCut, sets: Mapping[str, str], tried: str) -> RehearsedLaunch:
    """Run a launch scaled down, with the settings `sets` added, and judge its first steps."""
    read, job, materials = stage.read, stage.read.job, stage.materials
    cut_launch = cutting.cut_launch(read, cut, sets, stage.folder, materials, stage.request.runs_substitutions)
    location = str(job.location)
    prefix = f"{location}{f' with {tried}' if tried else ''}: "
    shutil.rmtree(os.path.join(stage.folder, FIRST), ignore_errors=True)
    ring_size = int(sets.get("ring_size", cut.ring_size))
    Path(stage.folder, execution.QUESTIONS).write_text(json.dumps(_describe_judging(stage, cut, ring_size)))
    ended = execute(stage, _add_questions(stage, cut_launch, tried), materials.steps, prefix)
    cut, made = _take_loss_settings(stage, cut)
    stage.report_progress(prefix + "comparing with the float32 reference")
    ranks, own_class = execution.count_ranks(stage.folder), "".join(execution.list_noted(stage.folder, "class")[:1])
    copies = execution.describe_data_parallel(stage.folder)
    is_observed = ranks > 0 and not copies
    results = [_judge_end(stage, cut, ended, copies, is_observed)]
    if is_observed:
        results += _judge(stage, _describe_judging(stage, cut, ring_size))
    if ranks == 1 and stage.materials.uses_gpu and not tried and not interrupts.is_interrupted():
        made += run_without_gpu(stage, cut, _add_questions, prefix)
    differences = _list_differences(stage, cut_launch.cut, ranks, own_class)
    results = _add_effects(stage, leave_unasked(results, differences))
    if ranks:
        results += _run_again(stage, cut, cut_launch, results, tried, prefix)
    model = own_class or stage.model
    scope = f"asked of {job.framework} {job.version} {job.trainer}, {model}, ranks: {ranks}"
    results = [replace(r, notes=(*r.notes, scope)) if r.check in OF_PROCESS and ranks else r for r in results]
    objective = f"the loss: {cut.objective.text}"
    if cut.objective.is_documented:
        objective = f"the loss, as documented: {cut.objective.text} ({cut.objective.source})"
    command = hide_exports(cut_launch.command)
    diff = hide_exports_in_diff(cut_launch.diff, read.recognised.launch.environ)
    left_out = _list_left_out(stage, cut, own_class)
    is_text_only = any(TEXT_ONLY in text for text in stage.remarks)
    return RehearsedLaunch(
        location,
        job.framework,
        job.version,
        job.trainer,
        model,
        objective,
        command.replace(stage.folder, FOLDER),
        diff.replace(stage.folder, FOLDER),
        tuple(results),
        round(ended.seconds, 1),
        ranks,
        ended.steps,
        tried,
        (
            *stage.remarks,
            *cut_launch.cut.remarks[len(cut.remarks) :],
            *made,
            *execution.list_replaced(stage.folder),
        ),
        materials.full_model,
        materials.real_data,
        _shorten_paths(ended.isolation, stage.folder),
        differences,
        tuple(list_unasked(read, cut.objective, is_text_only, results, left_out, not stage.materials.real_data)),
    )


def _add_questions(stage: Stage, launch: CutLaunch, tried: str = "") -> CutLaunch:
    """Return a launch that also answers what is asked in forks of it."""
    return _ask_own_rows(stage, _ask_to_continue(stage, launch), tried)


def _ask_to_continue(stage: Stage, launch: CutLaunch) -> CutLaunch:
    """Return a launch that also answers what its trainer does if it is interrupted, or reaches a second epoch."""
    only, materials = stage.request.only, stage.materials
    if (
        stage.is_trial
        or materials.uses_gpu
        or materials.full_model
        or launch.cut.driver
        or (only and {*only}.isdisjoint(OF_PROCESS[:2]))
    ):
        return launch
    cut = {**launch.cut.sets, **launch.cut.options, **json.loads(launch.cut.environ.get("ATTNCHECK_SETTINGS", "{}"))}
    stated = dict.fromkeys(f"{'-' * (name in cut)}{name}" for name in (*list_stated(stage.read), *cut))
    questions = {"ATTNCHECK_CONTINUES": list_questions(stage.read.job), "ATTNCHECK_SEED": NO_SEED}
    questions["ATTNCHECK_STATED"] = " ".join(stated)
    return replace(launch, cut=replace(launch.cut, environ={**launch.cut.environ, **questions}))


def _ask_own_rows(stage: Stage, launch: CutLaunch, tried: str) -> CutLaunch:
    """Return a launch whose script also reads its own rows, with its own lengths, up to its batches."""
    is_made = os.path.exists(os.path.join(path := os.path.join(stage.folder, OWN_MODEL), "tokenizer.json"))
    if not is_made or tried or stage.materials.uses_gpu:
        return launch
    written = stage.read.recognised.launch
    names = (name for name in launch.cut.options if name in (*LENGTH_OPTIONS, find_data_option(written)))
    own = json.dumps({name.replace("-", "_"): get_option(written, name) for name in names})
    environ = {**launch.cut.environ, "ATTNCHECK_OWN": own, "ATTNCHECK_OWN_MODEL": path}
    return replace(launch, cut=replace(launch.cut, environ=environ))


def _judge_end(stage: Stage, cut: JobCut, ended: execution.Execution, copies: str, is_observed: bool) -> CheckResult:
    """Return how a launch ended, and with which corrections and without which packages it ran."""
    end = judge_end(ended, copies)
    if not stage.has_class and not ended.steps:
        end = excuse_stand_in(end, stage.model, stage.unknown or NO_NAME)
    remarks = (*filter(None, (cutting.describe_corrections(stage.read, cut),)), *execution.list_absent(stage.folder))
    if end.violations and not ended.steps:  # possibly because of the installed versions
        remarks = (*missing.list_stated(stage.read.snapshot, stage.read.recognised.launch.source), *remarks)
    if not is_observed and end.outcome == "ok" and not end.violations:
        end = replace(end, outcome="skipped", reason=_explain_blindness(stage, ended.lines))
    return replace(end, warnings=(*remarks, *end.warnings))


def _run_again(
    stage: Stage, cut: JobCut, cut_launch: CutLaunch, results: Sequence[CheckResult], tried: str, prefix: str
) -> list[CheckResult]:
    """Return what a second run answers: with the same seed if the launch asks for it, and without a neutral setting."""
    continued = judge_continued(execution.read_continued(stage.folder), stage.read.job)
    again = [excuse_stand_in(continued, stage.model, stage.unknown)] if continued is not None else []
    if stage.read.job.plan.deterministic and not interrupts.is_interrupted():
        reseeded = {**cut_launch.cut.environ, "ATTNCHECK_SEED": "1"}  # for what is drawn before it sets a seed
        launch = replace(cut_launch, cut=replace(cut_launch.cut, environ=reseeded))
        repeated = rerun(stage, launch, REPEATED_STEPS, f"{prefix}again: ", "repeat", "repeating:compare")
        again = [_join(repeated, *again)]
    if not tried and not interrupts.is_interrupted():
        again += run_twin(stage, cut, [*results, *again], prefix)
    return again


def _add_effects(stage: Stage, results: Sequence[CheckResult]) -> list[CheckResult]:
    """Return the results with settings without an effect, which updates of weights show, and the script's functions."""
    effects = execution.read_answers(stage.folder, "effects")
    rates = execution.read_rates(stage.folder)
    lines = (*list_effects(effects), *list_idle_rates(stage.read, rates), *list_lost_files(stage.read))
    answers: list[dict[str, Any]] = [{"check": "update", "warnings": lines, "notes": [*list_unshown(effects)]}]
    answers += execution.read_answers(stage.folder, "relations")
    thawed = execution.read_continued(stage.folder).get("epochs", {}).get("thawed")
    answers += [{"check": "update", "violations": [thawed]}] if thawed else []
    answers += ({"check": "batch", **own} for own in execution.read_answers(stage.folder, "own"))
    for answer in answers:
        violations, warnings, notes = (tuple(answer.get(kind, ())) for kind in ("violations", "warnings", "notes"))
        added = CheckResult(answer["check"], violations=violations, warnings=warnings, notes=notes)
        is_fault = bool(violations)
        measured = (own.check for own in results if own.check == added.check and judge_result(own) != "skipped")
        name = added.check if is_fault else next(measured, "run")
        if name not in (own.check for own in results):
            results = [*results, CheckResult(name, "skipped", "the launch took no step")]
        # a fault also fails a check that could not compare the rest
        results = [
            _join(replace(own, outcome="ok") if is_fault else own, added) if own.check == name else own
            for own in results
        ]
    return [*results]


def _join(result: CheckResult, *others: CheckResult) -> CheckResult:
    """Return a result with what others of the same check say."""
    for other in others:
        parts = {name: getattr(result, name) + getattr(other, name) for name in ("violations", "warnings", "notes")}
        result = replace(result, **parts)
    return result


def _list_differences(stage: Stage, cut: JobCut, ranks: int, own_class: str) -> tuple[Difference, ...]:
    """Return how the rehearsed job differs from the launch."""
    differences = list_differences(stage.read, cut, stage.materials, ranks)
    differences += execution.list_watched_differences(stage.folder)
    if stage.unknown and not own_class:
        ran = f"that of {stage.model}, a stand-in for {stage.unknown} (--model names the model)"
        differences += (Difference(CLASS, "not known", ran),)
    if stage.made_up:
        differences += (Difference("field that the script reads", ", ".join(stage.made_up), "made up"),)
    return differences


def _list_left_out(stage: Stage, cut: JobCut, own_class: str) -> tuple[str, ...]:
    """Return what the rehearsal leaves out."""
    left_out = execution.list_left_out(stage.folder)
    left_out += (LIGER,) * (cut.sets.get(LIGER) == DROP)
    stated = dict.fromkeys(setting.name.lstrip("-").replace("-", "_") for setting in stage.read.job.settings)
    left_out += tuple(name for name in stated if cut.sets.get(name) == DROP and OF_ROWS.search(name))
    left_out += (TIED,) * stage.is_guessed  # small releases of a type tie what its default configuration does not
    return left_out + (f"whether the attention of {own_class} itself is right",) * bool(own_class)


def _take_loss_settings(stage: Stage, cut: JobCut) -> tuple[JobCut, tuple[str, ...]]:
    """Return a cut with the objective of the settings that the script's trainer had, and a remark on new ones."""
    noted = execution.list_noted(stage.folder, "loss")
    job, made = stage.read.job, dict(text.split("=", 1) for text in noted if "=" in text)
    new = {name: value for name, value in made.items() if not _is_same(value, get_setting(job, name) or "")}
    if not new or "ATTNCHECK_ROWS" not in cut.environ:
        return cut, ()
    settings = (Setting(name, value, job.location, NOWHERE) for name, value in new.items())
    job = replace(job, settings=(*job.settings, *settings))
    try:
        own = cutting.cut_job(replace(stage.read, job=job), stage.materials)
        is_known = DROP not in map(own.sets.get, new)  # otherwise it was to be off
        objective = add_options(own.objective, job) if is_known else UNDOCUMENTED
    except NothingToRehearse:
        objective = UNDOCUMENTED
    text = ", ".join(f"{name} {value}" for name, value in new.items())
    return replace(cut, objective=objective), (f"the script's trainer has {text}",)


def _is_same(value: str, written: str) -> bool:
    """Return whether a trainer's value is the written one: 0.1 of "1e-1", or True of "true"."""
    is_number = NUMBER.fullmatch(value) and NUMBER.fullmatch(written)
    return float(value) == float(written) if is_number else value.lower() == written.lower()


def _shorten_paths(isolation: Isolation, folder: str) -> Isolation:
    """Return the text without paths of the rehearsal's own folder, which is discarded."""

    def keep(paths: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(path for path in paths if not path.startswith(folder))

    written, removed, denied = keep(isolation.written), keep(isolation.removed), keep(isolation.denied)
    return replace(isolation, written=written, removed=removed, denied=denied)


def _explain_blindness(stage: Stage, lines: Sequence[str]) -> str:
    failure = execution.read_watcher_failures(stage.folder) or execution.describe_data_parallel(stage.folder)
    error = next((line.strip()[:200] for line in reversed(lines) if LOGGED_ERROR.search(line)), "")
    blind = "the launch succeeded, but no step of a transformers model was observed"
    if untrained := execution.list_noted(stage.folder, "untrained"):
        blind += f": the {untrained[0]} that it calls in training mode has no trained parameter, as if all are frozen"
    return failure or (f"{blind}; it printed: {error}" if error else blind)


def _describe_judging(stage: Stage, cut: JobCut, ring_size: int) -> dict[str, Any]:
    """Return the message of the judge, which a job with its own class of models also gets."""
    is_mean = cut.objective.is_documented or cut.form not in PAIRED_FORMS
    return {
        "task": "attncheck.rehearsal.worker.judging:judge",
        "stage": stage.folder,
        "objective": codec.to_plain(replace(cut.objective, is_mean=is_mean)),
        "ring_size": ring_size,
        "full_model": stage.materials.full_model,
        "real_data": stage.materials.real_data,
        "targets": stage.targets,
        "freezes": _freezes(stage.read),
        "shares_rows": shares_rows(stage.read.job),
        "makes_rows": stage.read.recognised.framework.general,
        "replaces_rewards": cut.driver == "trl",
        "rates": _read_rates(stage.read, cut),
        "epochs": _read_epochs(stage.read),
        "is_guessed": stage.is_guessed,
    }


def _judge(stage: Stage, message: Mapping[str, Any]) -> list[CheckResult]:
    """Return the results of the checks; those that an interrupt leaves out are skipped, and how it ended is kept."""
    checks = (*CHECKS, "labels") if stage.targets else CHECKS
    events: dict[str, Event] = {}
    with suppress(KeyboardInterrupt):
        events = run_worker(stage, message, checks)
    return [read_result(events.get(name), name) for name in checks]


def _read_rates(read: ReadLaunch, cut: JobCut) -> list[float]:
    """Return the launch's own learning rate, 0.0 if it is not known, and the one that replaces it in the rehearsal."""
    own = [get_setting(read.job, name) or "" for name in cutting.RATES]
    replacing = [{**cut.sets, **cut.options}.get(name) or "" for name in cutting.RATES]
    return [next((float(v) for v in values if NUMBER.fullmatch(v)), 0.0) for values in (own, [*replacing, *own])]


def _read_epochs(read: ReadLaunch) -> float:
    """Return the number of epochs that a loop is started with, 0.0 if it may get a number of steps."""
    launch = read.recognised.launch
    values = [(name, get_setting(read.job, name) or get_option(launch, name)) for name in LENGTH_OF_TRAINING]
    given = [(name, float(value)) for name, value in values if NUMBER.fullmatch(value) and float(value) > 0]
    return given[0][1] if len(given) == 1 and "epochs" in given[0][0] and read.job.trainer == "loop" else 0.0


def _freezes(read: ReadLaunch) -> bool:
    """Return whether a setting or option of the launch, or its script, freezes parameters or uses adapters."""
    settings = [f"{setting.name} {setting.value}" for setting in read.job.settings]
    texts = (*settings, *(word.text for word in read.recognised.launch.words))
    return any(FREEZING.search(text.lower()) for text in texts) or freezes_parameters(read)
