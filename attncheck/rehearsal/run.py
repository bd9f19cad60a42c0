"""Rehearses launches: makes their materials, runs them scaled down, judges the first step, and tries fixes."""

import itertools
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attncheck.core import codec
from attncheck.core.experiments import HALVES
from attncheck.core.facts import Known
from attncheck.core.findings import Finding, Fix, Problem
from attncheck.core.io import interrupts
from attncheck.core.io.errors import BadUsage, Unanswered
from attncheck.core.io.secrets import mask_secrets
from attncheck.core.job import DROP
from attncheck.core.launch import NOWHERE, Setting, Source
from attncheck.core.rehearsal import (
    PAIRED_FORMS,
    TEXT_COLUMNS,
    TEXT_ONLY,
    UNDOCUMENTED,
    Isolation,
    JobCut,
    Materials,
    Targets,
)
from attncheck.core.report import InterruptedRun, Report
from attncheck.core.results.rehearsal import CLASS, Difference, RehearsalSection, RehearsedLaunch
from attncheck.core.results.smoke import CheckResult, deciding_reason, judge_result
from attncheck.core.snapshot import Snapshot
from attncheck.core.verdicts import MeasuredOn, Verdict
from attncheck.doctor import engine
from attncheck.doctor.rules.transformers.neutral_change_trains_otherwise import FIXES as TWIN_FIXES
from attncheck.lint import run as lint
from attncheck.lint.exports import REFERENCE, hide_environment, hide_exports, hide_exports_in_diff
from attncheck.lint.fields.rehearsing import OFF_VALUES, get_setting, is_on
from attncheck.lint.fields.releases import is_at_least
from attncheck.lint.launches import CONFIG_SUFFIXES
from attncheck.lint.pasting import format_command
from attncheck.lint.rewriting import ReadLaunch, read_launches, rewrite
from attncheck.rehearsal import corrections, cutting, execution, extensions, known, missing, paired
from attncheck.rehearsal.columns import (
    find_marker,
    find_script,
    freezes_parameters,
    iter_texts,
    read_columns,
    read_field_shapes,
    read_model_classes,
    read_named_columns,
    read_turns,
)
from attncheck.rehearsal.cutting import CutLaunch, NothingToRehearse
from attncheck.rehearsal.ending import excuse_stand_in, judge_end
from attncheck.rehearsal.fidelity import leave_unasked, list_differences, list_unasked, shares_rows
from attncheck.rehearsal.named_models import list_named_models
from attncheck.rehearsal.options import add_options
from attncheck.smoke.run import collect_evidence, make_verdict, summarize_training
from attncheck.workers import execution as workers
from attncheck.workers.execution import ExecutionTarget
from attncheck.workers.pool import Event, Job, Pool
from attncheck.workers.processors import thread_environment
from attncheck.workers.sandboxed import NOT_STARTED
from attncheck.workers.scratch import remove_folder, scratch_folder

# same names as in attncheck.rehearsal.worker.judging
CHECKS = ("batch", "documents", "update", "loss", "gradients", "learning")
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
STAND_IN = "llama"  # for a model whose type is not known
NO_NAME = "the model"  # of a launch that names none: what its script builds is trained
OF_PROCESS = ("run", "repeat", "twin")  # not of a step
MESSAGES = {
    "batch": "the batches do not contain the documents that they should",
    "documents": "packed documents influence each other",
    "loss": "the loss is not the documented one",
    "gradients": "the gradients are not those of the loss",
    "run": "the scaled-down launch ends with an error",
    "learning": "the launch does not train correctly",
    "repeat": "two runs of the launch differ",
    "update": "the weights do not follow the gradients",
    "labels": "the launch learns other tokens than intended",
    "twin": "a change that is neutral by documentation changes what is trained",
}
OTHER_OUTPUTS = "the model does not compute what its class defines"  # for a module that differs
OTHER_TARGETS = "the loss does not predict the next token"  # for targets that no document explains
STEPS = 30
FULL_STEPS = 10  # for the job's own model size, which is slow, and other launches whose learning is not judged
MAX_WEIGHTS = 8_000_000  # gradient values of such a model that are kept and compared, smallest parameters first
REPEATED_STEPS = 3  # in the second run of a launch that requests reproducible training, or has a twin
FIRST = "watch-first"  # the records of a launch as written, if it runs again
# Settings that are neutral by documentation, the most telling first; accumulating comes before them.
LIGER = "use_liger_kernel"
NEUTRAL = ("padding_free", "precompute_ref_log_probs", LIGER, "use_liger_loss", "gradient_checkpointing")
MAX_SCRIPTS = 200  # in addition to a launch's own
DOCUMENTS = 900  # more than the rows of all steps contain, so that none is used twice
LAUNCH_FACTOR = 5.0  # times a case's deadline, for the whole launch
CPU_PROCESSES = 2
MAX_LINES = 6  # in a finding's evidence
FOLDER = "REHEARSAL"  # the throwaway folder's name in the report
# Python's, datasets' (5.2.0 formatting/formatting.py) and transformers' (5.17.0 trainer.py: tokens) errors for a field
# that a row does not have.
MISSING_FIELD = re.compile(
    r"^KeyError: (?:'([a-z]\w*)'|[\"']Column '?([a-z]\w*)'? not in the dataset)"
    r"|^ValueError: No columns in the dataset match",
    re.MULTILINE,
)
MISSING_IMAGE = re.compile(r"\bimages?\b(?! processor)", re.IGNORECASE)
MAX_FIELDS = 3  # that are added one by one, each with a new run
LOGGED_ERROR = re.compile(r"\bERROR\b|^\S*(?:Error|Exception)\b")  # by a script that catches its own
PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")  # in transformers 5 and 4
NUMBER = re.compile(r"\d*\.?\d+(e-?\d+)?", re.IGNORECASE)
FREEZING = re.compile(r"freeze|freezing|frozen|trainable|lora|peft|adapter|tuner")


@dataclass(frozen=True)
class Request:
    """The launches to rehearse, each with its source; the permitted fixes; the seed of documents and weights."""

    sources: tuple[Source, ...]
    read_model: lint.ReadModel
    make_reader: Callable[[Source], lint.ReadFile]
    fix: bool = True
    seed: int = 0
    steps: int = 0  # 0: as many as needed
    full_model: bool = False  # whether to use the user's own full-size model instead of a small one of its architecture
    real_data: bool = False  # whether to use the first rows of the user's data instead of synthetic documents
    own_loops: bool = True  # whether to run scripts with their own training loop, whose other effects are unknown
    trusts_script: bool = False  # whether to run the user's own script even if nothing protects their files from it
    trusts_remote_code: bool = False  # whether to run code of model repositories if the launch requests it
    runs_substitutions: bool = False  # whether to run commands in the launch's options and exports, `$(…)`
    only: tuple[str, ...] = ()  # the checks to answer; (): all
    model: str = ""  # the launches' model, if they do not name it or its class is not known; "": their own


@dataclass
class _Stage:
    """Where a launch is rehearsed: its folder, and the launch itself."""

    read: ReadLaunch
    folder: str
    materials: Materials
    target: ExecutionTarget
    request: Request
    report_progress: Callable[[str], None]
    device: Mapping[str, Any]
    remarks: tuple[str, ...] = ()
    model: str = ""
    is_guessed: bool = False  # whether the configuration of the launch's model is not known
    unknown: str = ""  # the name of the launch's model, if its class is not known and a stand-in is trained
    targets: Targets | None = None  # what to learn of the user's rows; None: they are made by attncheck, or unknown
    made_up: tuple[str, ...] = ()  # the fields of rows that the script reads and whose contents are not known
    added: tuple[str, ...] = ()  # the fields that the script was found to read when it ended without them


def list_scripts(snapshot: Snapshot, request: Request, source: Source) -> list[str]:
    """Return the Python files that a source's launches start, and files next to them that they may import."""
    launches = read_launches_of(snapshot, request, source)
    words = [word.text for read in launches for word in read.recognised.launch.words[:1]]
    scripts = [word for word in words if word.endswith(".py") and os.path.isfile(word)]
    siblings = [
        os.path.join(os.path.dirname(script), name)
        for script in scripts
        for name in sorted(os.listdir(os.path.dirname(script) or "."))[:MAX_SCRIPTS]
        if name.endswith(".py")
    ]
    return list(dict.fromkeys((*scripts, *siblings)))


def runs_own_script(read: ReadLaunch) -> bool:
    """Return whether a launch starts the user's own script or module, whose other effects are unknown."""
    launch = read.recognised.launch
    if read.recognised.framework.general or not launch.words:
        return read.recognised.framework.general
    program = launch.words[0].text
    package = os.path.join(launch.folder, program.partition(".")[0])
    return (
        program.endswith(".py") or os.path.sep in program or os.path.isdir(package) or os.path.isfile(f"{package}.py")
    )


def read_launches_of(snapshot: Snapshot, request: Request, source: Source) -> list[ReadLaunch]:
    """Return the launches of a source, as the examined environment's releases read them."""
    read_file = _read_nearby(request.make_reader(source))
    launches = read_launches(snapshot, source, request.read_model, read_file, request.own_loops)
    if launches and all(map(paired.is_alone, launches)):

        def read_texts(texts: Sequence[Source]) -> Iterator[ReadLaunch]:
            starts = (read_launches(snapshot, text, request.read_model, read_file, request.own_loops) for text in texts)
            return (read for group in starts for read in group if paired.reads_file(read, source))

        own = [*itertools.islice(read_texts(paired.list_commands(source)), 1)]
        others = [] if own else [*read_texts(paired.list_commands_of_others(source))]
        if len({find_script(read.recognised.launch) for read in others}) == 1:
            own = others[:1]
        launches = own or launches
    if request.model:
        snapshot = lint.add_model(snapshot, request.model, request.read_model)
        return [replace(read, job=replace(read.job, model=request.model), snapshot=snapshot) for read in launches]
    models = map(_find_model_folder, launches)
    return [
        replace(
            read, job=replace(read.job, model=model), snapshot=lint.add_model(read.snapshot, model, request.read_model)
        )
        if model
        else read
        for read, model in zip(launches, models)
    ]


def _find_model_folder(read: ReadLaunch) -> str:
    """Return the first word of a script's command that is the folder of a model, "" if an option names its model."""
    launch = read.recognised.launch
    words = () if cutting.name_model(read) or not runs_own_script(read) else launch.words[1:]
    places = (word.text for word in words if not word.text.startswith("-"))
    return next((name for name in places if os.path.isfile(os.path.join(launch.folder, name, "config.json"))), "")


def _read_nearby(read_file: lint.ReadFile) -> lint.ReadFile:
    """Return a reader that, if a configuration file is missing, takes one with the longest end of its path.

    With a folder the end is that of the same file in another checkout.
    """

    def read(name: str) -> Source | None:
        parts = name.split("/") if name.endswith(CONFIG_SUFFIXES) else []
        ends = ("/".join(parts[first:]) for first in range(1, len(parts)))
        nearby = (replace(file, name=name, is_nearby="/" not in end) for end in ends if (file := read_file(end)))
        return read_file(name) or next(nearby, None)

    return read


def run(
    snapshot: Snapshot, request: Request, target: ExecutionTarget, report_progress: Callable[[str], None]
) -> Report:
    """Return the report on every launch of the request.

    Raises `NothingToRehearse` if none can be scaled down, `Unanswered` if none can run here, `InterruptedRun` with the
    results so far if it is interrupted after the first of them.
    """
    unknown = [name for name in request.only if name not in MESSAGES]
    if unknown:
        raise BadUsage(f"--only {unknown[0]}: a launch's rehearsal answers {', '.join(MESSAGES)}")
    began = time.monotonic()
    launches = [read for source in request.sources for read in read_launches_of(snapshot, request, source)]
    if not launches:
        names = ", ".join(source.name for source in request.sources)
        raise NothingToRehearse(
            f"{names}: starts neither a training that attncheck knows nor a script whose source trains a model that "
            f"it loads, or that has options for model, data and learning rate or steps"
        )
    sections: list[RehearsalSection] = []
    findings: list[Finding] = []
    errors: list[Unanswered] = []
    for read in launches:
        try:
            section, launch_findings = _rehearse(read, request, target, report_progress)
        except Unanswered as error:
            errors.append(error)
            section, launch_findings = _make_refused(read, str(error)), []
        except KeyboardInterrupt:
            if not sections:
                raise
            break
        sections.append(section)
        findings += launch_findings
    if len(errors) == len(launches):
        raise errors[0]
    section = sections[0]
    for other in sections[1:]:
        section = section.merge(other)
    measured_on = replace(
        section.measured_on,
        seed=request.seed,
        seconds=round(time.monotonic() - began, 3),
        interrupted=interrupts.is_interrupted(),
    )
    report = Report("smoke", snapshot, (*findings,), sections={"rehearsal": replace(section, measured_on=measured_on)})
    if measured_on.interrupted:
        raise InterruptedRun(report)
    return report


def _make_refused(read: ReadLaunch, reason: str) -> RehearsalSection:
    """Return the section of a launch that cannot run, among other launches."""
    job = read.job
    result = CheckResult("run", "skipped", reason.removeprefix(f"{job.location}: "))
    names = (str(job.location), job.framework, job.version, job.trainer, job.model)
    launch = RehearsedLaunch(*names, "not run", "", "", (result,), ranks=0)
    return RehearsalSection(verdicts=(_make_verdict(launch, result),), launches=(launch,))


def choose_steps(request: Request) -> int:
    """Return the number of steps to take, which are fewer if the learning is not judged."""
    is_short = request.full_model or (request.only and "learning" not in request.only)
    return request.steps or (FULL_STEPS if is_short else STEPS)


def _rehearse(
    read: ReadLaunch, request: Request, target: ExecutionTarget, report_progress: Callable[[str], None]
) -> tuple[RehearsalSection, list[Finding]]:
    with scratch_folder() as folder:
        processes = max(1, len(read.snapshot.visible_devices())) if target.uses_gpu else CPU_PROCESSES
        steps = choose_steps(request)
        materials = cutting.make_materials(
            read,
            folder,
            steps,
            target.uses_gpu,
            processes,
            request.full_model,
            request.real_data,
            request.trusts_remote_code,
        )
        cut = cutting.cut_job(read, materials)
        stage = _Stage(read, folder, materials, target, request, report_progress, {})
        has_processor = _make_materials(stage, cut)
        if has_processor != materials.has_tower:  # frameworks divide the loss by it
            cut = replace(cut, objective=cutting.cut_job(read, replace(materials, has_tower=has_processor)).objective)
        cut = replace(cut, objective=add_options(cut.objective, read.job))
        first = _run_once(stage, cut, {}, "")
        while len(stage.added) < MAX_FIELDS and (name := _find_missing_field(stage, cut, first)):
            stage.added = (*stage.added, name)
            for path in os.listdir(folder):
                remove_folder(os.path.join(folder, path))
            _make_materials(stage, cut)
            again = _run_once(stage, cut, {}, "")
            if again.results[0].violations == first.results[0].violations:  # of another dictionary, not of a row
                break
            first = again
        if not first.steps and not materials.real_data and execution.list_unread(folder):
            cut = replace(cut, environ={**cut.environ, "ATTNCHECK_WITHOUT_READERS": "1"})
            first = _run_once(stage, cut, {}, "")
        first = _keep_requested(first, request.only)
        trials = _try_corrections(stage, cut, first) if request.fix else []
        launches = [first, *(_keep_requested(trial.launch, request.only) for trial in trials if trial.is_better)]
    verdicts = tuple(_make_verdict(launch, result) for launch in launches for result in launch.results)
    kind, name, torch = (str(stage.device.get(key, "")) for key in ("kind", "name", "torch"))
    measured_on = MeasuredOn(kind, name, torch)
    corrected = next((_format_corrected(read, trial.correction) for trial in trials if trial.is_clean), ())
    section = RehearsalSection(measured_on, verdicts, tuple(launches), corrected)
    return section, list(_iter_findings(read, cut, first, trials))


def _reads_fields(cut: JobCut) -> bool:
    """Return whether a launch's rows have the fields that its script reads."""
    is_own_pair = cut.form == "preference_text" and "ATTNCHECK_ROWS" in cut.environ
    return cut.form in ("every", "prompt_texts") or is_own_pair


def _find_missing_field(stage: _Stage, cut: JobCut, launch: RehearsedLaunch) -> str:
    """Return the field without which a script ended before its first step, "" if it ended otherwise."""
    end = launch.results[0]
    text = "\n".join((*end.violations, *end.notes))
    has_failed = end.violations and not launch.steps and _reads_fields(cut)
    missing = MISSING_FIELD.search(text) if has_failed else None
    name = next(filter(None, missing.groups()), "input_ids") if missing is not None else ""
    if has_failed and missing is None and MISSING_IMAGE.search(text):  # `row.get("image")`
        name = next(filter({*iter_texts(stage.read)}.__contains__, ("image", "images")), "")
    return "" if name in stage.added or "environ[" in text else name


def _keep_requested(launch: RehearsedLaunch, only: tuple[str, ...]) -> RehearsedLaunch:
    """Return a launch with only the requested results, and a note that it did not run if there are none."""
    results = (r for r in launch.results if r.check in only or (r.check == "run" and judge_result(r) != "pass"))
    return replace(launch, results=tuple(results)) if only else launch


def _make_materials(stage: _Stage, cut: JobCut) -> bool:
    """Fill the stage's folder with the model, its tokenizer, documents, extensions; return whether it has a processor.

    Raises `Unanswered`.
    """
    cutting.lay_files(cut, stage.materials)
    built = extensions.find_built(stage.read.snapshot, os.environ)
    if built is not None:
        extensions.copy_built(built, Path(stage.folder) / extensions.FOLDER)
    is_full = stage.materials.full_model
    real_data = cutting.find_data(stage.read, cut) if stage.materials.real_data else ""
    stage.model, missing_model = (_name_model(stage.read), "") if is_full or real_data else choose_model(stage.read)
    message = {
        "task": "attncheck.rehearsal.worker.materials:prepare",
        "device": stage.target.device,
        "threads": stage.target.threads_per_worker(1),
        "model": stage.model,
        "stand_in_for": missing_model,
        "classes": read_model_classes(stage.read) if missing_model else [],
        "named": list_named_models(stage.read, missing_model),
        "stage": stage.folder,
        "documents": DOCUMENTS,
        "form": cut.form,
        **describe_fields(stage.read, cut, stage.added),
        "pictures": cut.pictures,
        "seed": stage.request.seed,
        "has_padding_token": True,
        "dtype": "float32",
        "full_model": is_full,
        "real_data": real_data,
        "row_length": cutting.limit_rows(stage.read, stage.materials),
        "roles": dict(cut.roles),
        "keeps_code": stage.request.trusts_remote_code,
        "is_float32": stage.read.job.plan.precision == "fp32",
    }
    stage.report_progress("copying the model" if is_full else "making a small model and its documents")
    event = _run_worker(stage, message, ("materials",))["materials"]
    if event.kind != "answer":
        what = "the model cannot be rehearsed at full size" if is_full else "no small model could be made"
        raise Unanswered(f"{stage.read.job.location}: {what}: {event.reason}")
    remarks = list(event.answer["remarks"])
    if missing_model:
        stage.model, stage.is_guessed = event.answer["model"], True
        # a script may build the model that its launch does not name; a driver only loads one
        stage.unknown = missing_model * (
            not event.answer["is_known"]
            and (missing_model != NO_NAME or bool(cut.driver) or get_setting(stage.read.job, "model_type") is not None)
        )
        because = f", because {event.answer['reason']}" * bool(event.answer["reason"])
        remarks.insert(0, f"{missing_model} is not available locally: using a small {stage.model} instead{because}")
    launch = stage.read.recognised.launch
    if launch.file is not None and paired.is_of_others(launch):
        remarks.append(f"no command names {launch.file.name}: started as {launch.source.name} starts others")
    stage.remarks = (*cut.remarks, *remarks)
    stage.made_up = tuple(dict.fromkeys((*event.answer["made_up"], *stage.added)))
    if stage.added:
        names = ", ".join(stage.added)
        stage.remarks += (f"the script ended without these fields of its rows, which were added: {names}",)
    if event.answer.get("has_turns"):
        stage.targets = choose_targets(stage.read, stage.materials, event.answer)
    return any(os.path.isfile(os.path.join(stage.materials.model, name)) for name in PROCESSOR_FILES)


def describe_fields(read: ReadLaunch, cut: JobCut, added: Sequence[str] = ()) -> dict[str, Any]:
    """Return the part of a worker's message that says which fields a script reads from rows; `added`: found by runs."""
    return {
        "columns": [*read_columns(read), *added] if _reads_fields(cut) else [],
        "added": added,
        "parts": read_named_columns(read) if _reads_fields(cut) else {},
        # trl 0.24.0 data_utils.py (`is_conversational`) takes any of several fields, in the order of a set
        "makes_text": read.job.framework == "trl" and bool(TEXT_COLUMNS.intersection(read_columns(read))),
        "shapes": read_field_shapes(read) if _reads_fields(cut) else {},
        "turns": read_turns(read, cut.data) if _reads_fields(cut) and not cut.driver else [],
        "marker": find_marker(read) if "ATTNCHECK_ROWS" in cut.environ else "",
    }


def _name_model(read: ReadLaunch) -> str:
    """Return the name or folder of the launch's model. Raises `Unanswered` if it has no readable one."""
    name = cutting.name_model(read)
    if not name:
        raise Unanswered(f"{read.job.location}: cannot tell from the launch which model and tokenizer it trains")
    return name


def choose_targets(read: ReadLaunch, materials: Materials, made: Mapping[str, Any]) -> Targets:
    """Return the tokens that a launch should learn; `made` describes the user's rows: pairs, or those that choose.

    trl since 0.17 trainer/sft_trainer.py: completions alone are learned of pairs, unless `completion_only_loss` is off.
    """
    targets = cutting.cut_job(read, replace(materials, real_data=False)).objective.targets
    if read.recognised.launch.starts_written_script and targets == "all":
        return "labelled"  # a script's settings in code may not be readable: without settings, not all need be learned
    if not materials.real_data:
        return targets
    if made["chooses"]:
        return "chosen"
    if targets != "all" or not (read.job.framework == "trl" or read.recognised.framework.general):
        return targets
    default = get_setting(read.job, "completion_only_loss") or "none"
    if made["is_mixed"] or read.job.framework != "trl" or not is_at_least(read.job.version, "0.17"):
        return "labelled"
    is_off = default.lower() in OFF_VALUES and default.lower() not in ("none", "null")  # TRL's default, which is on
    return "assistant" if made["pairs"] and not is_off else "all"


def choose_model(read: ReadLaunch) -> tuple[str, str]:
    """Return the model or a stand-in, and the name that it replaces, by which the worker may find its type."""
    name = cutting.name_model(read)
    return (name, "") if isinstance(read.snapshot.model, Known) and name else (STAND_IN, name or NO_NAME)


def _run_worker(stage: _Stage, message: Mapping[str, Any], items: tuple[str, ...]) -> dict[str, Event]:
    events, device = ask_worker(stage.target, message, items)
    stage.device = stage.device or device
    return events


def ask_worker(
    target: ExecutionTarget, message: Mapping[str, Any], items: tuple[str, ...]
) -> tuple[dict[str, Event], Mapping[str, Any]]:
    """Return the last event of each item that a worker reached, also before an interrupt, and the worker's device."""
    events: dict[str, Event] = {}

    def on_event(event: Event) -> None:
        if event.kind not in ("started", "step"):
            events[event.item] = event

    pool = Pool(target.python, 1)
    try:
        pool.run([Job("rehearsal", message, items, target.seconds * 3.0)], on_event)
    except KeyboardInterrupt:
        if not events:
            raise
    return events, pool.device


def _run_once(stage: _Stage, cut: JobCut, sets: Mapping[str, str], tried: str) -> RehearsedLaunch:
    """Run a launch scaled down, with the settings `sets` added, and judge its first step."""
    cut_launch = cutting.cut_launch(
        stage.read, cut, sets, stage.folder, stage.materials, stage.request.runs_substitutions
    )
    location = str(stage.read.job.location)
    prefix = f"{location}{f' with {tried}' if tried else ''}: "
    shutil.rmtree(os.path.join(stage.folder, FIRST), ignore_errors=True)
    ring_size = int(sets.get("ring_size", cut.ring_size))
    Path(stage.folder, execution.QUESTIONS).write_text(json.dumps(_describe_judging(stage, cut, ring_size)))
    ended = _execute(stage, cut_launch, stage.materials.steps, prefix)
    cut, made = _take_loss_settings(stage, cut)
    stage.report_progress(prefix + "comparing with the float32 reference")
    ranks = execution.count_ranks(stage.folder)
    environ = stage.read.recognised.launch.environ
    copies = execution.describe_data_parallel(stage.folder)
    results = [judge_end(ended, copies)]
    if stage.unknown and not ended.steps:
        results = [excuse_stand_in(results[0], stage.model, stage.unknown)]
    remarks = (*filter(None, (cutting.describe_corrections(stage.read, cut),)), *execution.list_absent(stage.folder))
    if results[0].violations and not ended.steps:  # possibly because of the installed versions
        remarks = (*missing.list_stated(stage.read.snapshot, stage.read.recognised.launch.source), *remarks)
    if remarks:
        results[0] = replace(results[0], warnings=(*remarks, *results[0].warnings))
    if ranks and not copies:
        results += _judge(stage, _describe_judging(stage, cut, ring_size))
    elif results[0].outcome == "ok" and not results[0].violations:
        results[0] = replace(results[0], outcome="skipped", reason=_explain_blindness(stage, ended.lines))
    differences = list_differences(stage.read, cut_launch.cut, stage.materials, ranks)
    differences += execution.list_watched_differences(stage.folder)
    replaced, left_out = execution.list_replaced(stage.folder), execution.list_left_out(stage.folder)
    left_out += (LIGER,) * (cut.sets.get(LIGER) == DROP)
    own_class = execution.name_own_class(stage.folder)
    left_out += (f"whether the attention of {own_class} itself is right",) * bool(own_class)
    if stage.unknown and not own_class:
        ran = f"that of {stage.model}, a stand-in for {stage.unknown} (--model names the model)"
        differences += (Difference(CLASS, "not known", ran),)
    if stage.made_up:
        differences += (Difference("field that the script reads", ", ".join(stage.made_up), "made up"),)
    results = leave_unasked(results, differences)
    if ranks and stage.read.job.plan.deterministic and not interrupts.is_interrupted():
        reseeded = {**cut_launch.cut.environ, "ATTNCHECK_SEED": "1"}  # for what is drawn before it sets a seed
        again = replace(cut_launch, cut=replace(cut_launch.cut, environ=reseeded))
        results.append(_rerun(stage, again, REPEATED_STEPS, f"{prefix}again: ", "repeat", "repeating:compare"))
    if ranks and not tried and not interrupts.is_interrupted():
        results += _run_twin(stage, cut, results, prefix)
    job = stage.read.job
    model = own_class or stage.model
    scope = f"asked of {job.framework} {job.version} {job.trainer}, {model}, ranks: {ranks}"
    results = [replace(r, notes=(*r.notes, scope)) if r.check in OF_PROCESS and ranks else r for r in results]
    objective = f"the loss: {cut.objective.text}"
    if cut.objective.is_documented:
        objective = f"the loss, as documented: {cut.objective.text} ({cut.objective.source})"
    command, diff = hide_exports(cut_launch.command), hide_exports_in_diff(cut_launch.diff, environ)
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
        (*stage.remarks, *cut_launch.cut.remarks[len(cut.remarks) :], *made, *replaced),
        stage.materials.full_model,
        stage.materials.real_data,
        _shorten_paths(ended.isolation, stage.folder),
        differences,
        tuple(
            list_unasked(stage.read, cut.objective, any(TEXT_ONLY in text for text in stage.remarks), results, left_out)
        ),
    )


def _take_loss_settings(stage: _Stage, cut: JobCut) -> tuple[JobCut, tuple[str, ...]]:
    """Return a cut with the objective of the settings that the script's trainer had, and a remark on new ones."""
    job, made = stage.read.job, execution.list_loss_settings(stage.folder)
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


def _execute(stage: _Stage, cut_launch: CutLaunch, steps: int, prefix: str) -> execution.Execution:
    """Run a scaled-down launch for this many steps, and report each with the prefix."""
    is_large = (
        stage.materials.full_model or stage.materials.real_data
    )  # the launch's own options make even a small model large
    limit = {"ATTNCHECK_MAX_WEIGHTS": str(MAX_WEIGHTS)} if is_large else thread_environment(1, False, os.environ)
    return run_cut(
        stage.read,
        cut_launch,
        stage.folder,
        stage.target,
        steps,
        lambda text: stage.report_progress(prefix + text),
        limit,
        stage.request.trusts_script,
        stage.request.trusts_remote_code,
    )


def run_cut(
    read: ReadLaunch,
    cut_launch: CutLaunch,
    folder: str,
    target: ExecutionTarget,
    steps: int,
    report_progress: Callable[[str], None],
    environ: Mapping[str, str],
    trusts_script: bool,
    trusts_remote_code: bool = False,
) -> execution.Execution:
    """Return how a scaled-down launch ended, with `environ` added; its lines contain no secrets.

    Raises `Unanswered` if nothing can protect the user's files from their own script.
    """
    for path, text in cut_launch.files.items():
        with open(path, "w") as stream:
            stream.write(text)
    request = execution.RunRequest(
        cut_launch.command,
        {**cut_launch.cut.environ, **environ},
        cut_launch.cut.emulates_flash_attn,
        steps,
        target.seconds * LAUNCH_FACTOR,
        runs_own_script(read) and not trusts_script,
        trusts_remote_code,
        cut_launch.folders,
    )
    ended = execution.run_launch(request, folder, target.python, report_progress)
    if ended.returncode == NOT_STARTED and ended.isolation.files == "none":
        raise Unanswered(
            f"{read.job.location}: neither user namespaces nor Landlock are available, so the "
            "script could overwrite your files; --trust-script runs it anyway"
        )
    exports = {**os.environ, **read.recognised.launch.environ}
    printed = mask_secrets(hide_environment("\n".join(ended.lines), exports))  # before lines are shortened
    return replace(ended, lines=tuple(printed.split("\n")))


def _rerun(
    stage: _Stage, cut_launch: CutLaunch, steps: int, prefix: str, check: str, task: str, **message: Any
) -> CheckResult:
    """Run a launch again, and return how a worker's task compares it with the first run."""
    watch, first = (os.path.join(stage.folder, name) for name in ("watch", FIRST))
    if not os.path.isdir(first):
        os.rename(watch, first)
    try:
        ended = _execute(stage, cut_launch, steps, prefix)
        if ended.returncode != 0:
            end = f"the second run ended with status {ended.returncode}: {''.join(ended.lines[-1:])}"
            return CheckResult(check, "skipped", end.replace(stage.folder, FOLDER)[:250])
        message |= {
            "task": f"attncheck.rehearsal.worker.{task}",
            "device": "cpu",
            "threads": stage.target.threads_per_worker(1),
            "folders": [first, watch],
        }
        return _read_result(_run_worker(stage, message, (check,)).get(check), check)
    except KeyboardInterrupt:  # what the first run answered is reported
        return CheckResult(check, "skipped", "the second run was interrupted")


def _run_twin(stage: _Stage, cut: JobCut, results: Sequence[CheckResult], prefix: str) -> list[CheckResult]:
    """Run a launch again without a setting that is neutral by documentation, and return the answer, if there is one.

    It is asked of a launch without failures whose loss no definition has judged, or whose definition judges one
    division of the rows, that of pairs or a policy; and of each launch if it is requested.
    """
    answers = {result.check: judge_result(result) for result in results}
    objective, request = cut.objective, stage.request
    is_open = answers.get("loss") == "skipped" or objective.preference is not None or objective.policy is not None
    is_asked = "twin" in request.only if request.only else is_open and "fail" not in answers.values()
    change, twin = next(_iter_twins(stage, cut) if is_asked else iter(()), ("", None))
    if twin is None:
        return []
    launch = cutting.cut_launch(stage.read, twin, {}, stage.folder, stage.materials, request.runs_substitutions)
    return [
        _rerun(
            *(stage, launch, REPEATED_STEPS, f"{prefix}{change}: ", "twin", "twins:compare"),
            how={"change": change, "is_defined": objective.couples_rows},
        )
    ]


def _iter_twins(stage: _Stage, cut: JobCut) -> Iterator[tuple[str, JobCut]]:
    """Yield the neutral settings of a launch, the most telling first, each with the cut launch without it.

    Liger's losses of pairs and policies need no GPU, and are left out of the first run only.
    """
    job, materials = stage.read.job, stage.materials
    is_left_out = cut.sets.get(LIGER) == DROP and all(map(stage.read.snapshot.lists, ("liger-kernel", "triton")))
    if is_left_out and job.framework == "trl" and job.trainer != "sft":
        yield LIGER, replace(cut, sets={**cut.sets, LIGER: "true"}, environ={**cut.environ, "ATTNCHECK_LIGER": LIGER})
    if materials.accumulation > 1:
        rows = cut.sets.get("per_device_train_batch_size", "")
        batch = max(materials.batch, int(rows) if rows.isdecimal() else 0) * materials.accumulation
        whole = cutting.cut_job(stage.read, replace(materials, batch=batch, accumulation=1))
        yield HALVES, replace(cut, sets={**cut.sets, **whole.sets}, options=whole.options)
    for name in NEUTRAL:
        if is_on(job, name) and cut.sets.get(name) != DROP:
            yield name, replace(cut, sets={**cut.sets, name: "false"})


def _explain_blindness(stage: _Stage, lines: Sequence[str]) -> str:
    failure = execution.read_watcher_failures(stage.folder) or execution.describe_data_parallel(stage.folder)
    error = next((line.strip()[:200] for line in reversed(lines) if LOGGED_ERROR.search(line)), "")
    blind = "the launch succeeded, but no step of a transformers model was observed"
    return failure or (f"{blind}; it printed: {error}" if error else blind)


def _describe_judging(stage: _Stage, cut: JobCut, ring_size: int) -> dict[str, Any]:
    """Return the message of the judge, which a job with its own class of models also gets."""
    is_mean = cut.objective.is_documented or cut.form not in PAIRED_FORMS
    return {
        "task": "attncheck.rehearsal.worker.judging:judge",
        "device": "cpu",
        "threads": stage.target.threads_per_worker(1),
        "stage": stage.folder,
        "objective": codec.to_plain(replace(cut.objective, is_mean=is_mean)),
        "ring_size": ring_size,
        "full_model": stage.materials.full_model,
        "real_data": stage.materials.real_data,
        "targets": stage.targets,
        "freezes": _freezes(stage.read),
        "shares_rows": shares_rows(stage.read.job),
        "replaces_rewards": cut.driver == "trl",
        "rates": _read_rates(stage.read, cut),
        "is_guessed": stage.is_guessed,
    }


def _judge(stage: _Stage, message: Mapping[str, Any]) -> list[CheckResult]:
    """Return the results of the checks; those that an interrupt leaves out are skipped, and how it ended is kept."""
    checks = (*CHECKS, "labels") if stage.targets else CHECKS
    events: dict[str, Event] = {}
    with suppress(KeyboardInterrupt):
        events = _run_worker(stage, message, checks)
    return [_read_result(events.get(name), name) for name in checks]


def _read_rates(read: ReadLaunch, cut: JobCut) -> list[float]:
    """Return the launch's own learning rate, 0.0 if it is not known, and the one that replaces it in the rehearsal."""
    own = [get_setting(read.job, name) or "" for name in cutting.RATES]
    replacing = [{**cut.sets, **cut.options}.get(name) or "" for name in cutting.RATES]
    return [next((float(v) for v in values if NUMBER.fullmatch(v)), 0.0) for values in (own, [*replacing, *own])]


def _freezes(read: ReadLaunch) -> bool:
    """Return whether a setting or option of the launch, or its script, freezes parameters or uses adapters."""
    settings = [f"{setting.name} {setting.value}" for setting in read.job.settings]
    texts = (*settings, *(word.text for word in read.recognised.launch.words))
    return any(FREEZING.search(text.lower()) for text in texts) or freezes_parameters(read)


def _read_result(event: Event | None, name: str) -> CheckResult:
    if event is None:
        return CheckResult(name, "skipped", "it was not reached")
    if event.kind == "answer":
        return codec.read(CheckResult, event.answer)
    return CheckResult(name, workers.unmeasured_outcome(event), event.reason)


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


def _try_corrections(stage: _Stage, cut: JobCut, first: RehearsedLaunch) -> list[_Trial]:
    """Return the trials of possible fixes, up to the first that fixes everything."""
    failed = failed_checks(first)
    trials: list[_Trial] = []
    proposed = corrections.propose(stage.read, cut, failed, first) if failed else ()
    for correction in itertools.takewhile(lambda _: not interrupts.is_interrupted(), proposed):
        text = corrections.describe(stage.read, correction)
        trial_cut = replace(cut, environ={**cut.environ, **correction.environ})
        try:
            launch = _run_once(stage, trial_cut, correction.sets, text)
        except (Unanswered, KeyboardInterrupt):  # this launch cannot be written that way
            continue
        passes = {result.check for result in launch.results if judge_result(result) in ("pass", "warn")}
        trials.append(_Trial(correction, launch, tuple(name for name in failed if name in passes)))
        if trials[-1].is_clean:
            break
    return trials


def _format_corrected(read: ReadLaunch, correction: corrections.Correction) -> tuple[str, ...]:
    """Return the user's own launch with the settings that fix it: the change and the command; () for a fix in code."""
    if correction.line:
        return ()
    rewritten = rewrite(read, correction.sets)
    diff = hide_exports_in_diff(rewritten.diff, read.recognised.launch.environ)
    command = hide_exports(format_command(rewritten.launch).text, REFERENCE)
    return tuple(text for text in (diff, command) if text)


def _make_verdict(launch: RehearsedLaunch, result: CheckResult) -> Verdict:
    return make_verdict(f"{launch.location}{f' with {launch.tried}' if launch.tried else ''}", result)


def _iter_findings(
    read: ReadLaunch, cut: JobCut, first: RehearsedLaunch, trials: Sequence[_Trial]
) -> Iterator[Finding]:
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
                fixes += (*missing.list_advice("\n".join(result.violations), command),)
        tried = [trial.launch.tried for trial in trials if result.check not in trial.corrected]
        lines = collect_evidence(result) + ((f"tried without success: {'; '.join(tried)}",) if tried else ())
        reason, what = deciding_reason(result), MESSAGES[result.check]
        if result.check == "loss" and not cut.objective.is_documented:
            what = OTHER_TARGETS
        if result.check == "documents" and "module" in reason:
            what = OTHER_OUTPUTS
        message = f"{what}: {reason}"
        place = 1 if result.check == "run" else 0  # an error's own text comes before context that may be unrelated
        lines = (*lines[:place], *known.list_known_causes(read, result.check), *lines[place:])
        problem = Problem(message, lines[:MAX_LINES], fixes, f"{first.framework} {first.trainer}")
        yield engine.make_finding_by_code(CODES[result.check], problem)


def _prove(launch: RehearsedLaunch, check: str) -> str:
    result = next(result for result in launch.results if result.check == check)
    learning = next((result for result in launch.results if result.steps), None)
    text = deciding_reason(result)
    return f"run: {text}; {summarize_training(learning)}" if learning is not None else f"run: {text}"
