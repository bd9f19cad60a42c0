"""Prepares where a launch is rehearsed, a folder with its model, tokenizer and documents, and runs it there."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attncheck.core import codec
from attncheck.core.facts import Known
from attncheck.core.io.errors import Unanswered
from attncheck.core.io.secrets import mask_secrets
from attncheck.core.rehearsal import TEXT_COLUMNS, JobCut, Materials, Targets
from attncheck.core.results.smoke import CheckResult
from attncheck.lint.exports import hide_environment
from attncheck.lint.fields.rehearsing import OFF_VALUES, get_setting
from attncheck.lint.fields.releases import is_at_least
from attncheck.lint.rewriting import ReadLaunch
from attncheck.rehearsal import cutting, execution, extensions
from attncheck.rehearsal.columns import (
    find_marker,
    iter_first_rows,
    list_own_files,
    read_columns,
    read_field_shapes,
    read_model_classes,
    read_named_columns,
    read_prefixes,
    read_turns,
    read_values,
)
from attncheck.rehearsal.cutting import CutLaunch
from attncheck.rehearsal.named_models import list_named_models
from attncheck.rehearsal.reading import Request, runs_own_script
from attncheck.workers import execution as workers
from attncheck.workers.execution import ExecutionTarget
from attncheck.workers.pool import Event, Job, Pool
from attncheck.workers.processors import count_cores, thread_environment
from attncheck.workers.sandboxed import NOT_STARTED

STAND_IN = "llama"  # for a model whose type is not known
NO_NAME = "the model"  # of a launch that names none: what its script builds is trained
MAX_WEIGHTS = 8_000_000  # gradient values of such a model that are kept and compared, smallest parameters first
# More than the rows of all steps contain, so that none is used twice, and than the 1,000 rows of one batch of datasets'
# `map`: a script that packs each batch may lose the next.
DOCUMENTS = 1100
LIBRARIES = "attncheck.rehearsal.worker.libraries"
LAUNCH_FACTOR = 5.0  # times a case's deadline, for the whole launch
FOLDER = "REHEARSAL"  # the throwaway folder's name in the report
PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")  # in transformers 5 and 4


@dataclass
class Stage:
    """Where a launch is rehearsed: its folder, and the launch itself."""

    read: ReadLaunch
    folder: str
    materials: Materials
    target: ExecutionTarget
    request: Request
    report_progress: Callable[[str], None]
    pool: Pool
    remarks: tuple[str, ...] = ()
    model: str = ""
    is_guessed: bool = False  # whether the configuration of the launch's model is not known
    has_class: bool = True  # whether its class is known
    unknown: str = ""  # the name of the launch's model, if its class is not known and a stand-in is trained
    targets: Targets | None = None  # what to learn of the user's rows; None: they are made by attncheck, or unknown
    made_up: tuple[str, ...] = ()  # the fields of rows that the script reads and whose contents are not known
    added: tuple[str, ...] = ()  # the fields that the script was found to read when it ended without them
    fills: bool = False  # whether the script ended as if an empty field was the cause
    documents: int = DOCUMENTS
    is_trial: bool = False  # of a fix of what the first steps show, so that nothing else is asked
    has_whole_vocabulary: bool = False  # whether the small model's embedding has the launch's own size
    kind: str = ""  # the type of model that the script was found to read, if the launch's model is not known


def reads_fields(cut: JobCut) -> bool:
    """Return whether a launch's rows have the fields that its script reads."""
    is_own_pair = cut.form == "preference_text" and "ATTNCHECK_ROWS" in cut.environ
    return cut.form in ("every", "prompt_texts", "answers") or is_own_pair


def make_materials(stage: Stage, cut: JobCut) -> bool:
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
        "model": stage.model,
        "stand_in_for": missing_model,
        "classes": read_model_classes(stage.read) if missing_model else [],
        "named": [
            *([[(stage.kind, "the script")]] if stage.kind else []),
            *list_named_models(stage.read, missing_model),
        ],
        "stage": stage.folder,
        "documents": stage.documents,
        "form": cut.form,
        **describe_fields(stage.read, cut, stage.added, stage.fills),
        "pictures": cut.pictures,
        "seed": stage.request.seed,
        "has_whole_vocabulary": stage.has_whole_vocabulary,
        "has_padding_token": True,
        "dtype": "float32",
        "full_model": is_full,
        "real_data": real_data,
        "row_length": cutting.limit_rows(stage.read, stage.materials),
        "roles": dict(cut.roles),
        "keeps_code": stage.request.trusts_remote_code,
        "is_float32": stage.read.job.plan.precision == "fp32",
        "own_files": _list_own_files(stage, cut),
    }
    stage.report_progress("copying the model" if is_full else "making a small model and its documents")
    event = run_worker(stage, message, ("materials",))["materials"]
    if event.kind != "answer":
        what = "the model cannot be rehearsed at full size" if is_full else "no small model could be made"
        raise Unanswered(f"{stage.read.job.location}: {what}: {event.reason}")
    remarks = list(event.answer["remarks"])
    if missing_model:
        stage.model, stage.is_guessed, stage.has_class = event.answer["model"], True, event.answer["is_known"]
        # a script may build the model that its launch does not name; a driver only loads one
        stage.unknown = missing_model * (
            not stage.has_class
            and (missing_model != NO_NAME or bool(cut.driver) or get_setting(stage.read.job, "model_type") is not None)
        )
        because = f", because {event.answer['reason']}" * bool(event.answer["reason"])
        remarks.insert(0, f"{missing_model} is not available locally: using a small {stage.model} instead{because}")
    stage.remarks = (*cut.remarks, *remarks, *filter(None, (stage.read.origin,)))
    stage.made_up = tuple(dict.fromkeys((*event.answer["made_up"], *stage.added)))
    if stage.added:
        names = ", ".join(stage.added)
        stage.remarks += (f"the script ended without these fields of its rows, which were added: {names}",)
    if event.answer.get("has_turns"):
        stage.targets = choose_targets(stage.read, stage.materials, event.answer)
    return any(os.path.isfile(os.path.join(stage.materials.model, name)) for name in PROCESSOR_FILES)


def _list_own_files(stage: Stage, cut: JobCut) -> tuple[str, ...]:
    """Return the files of rows that a script names, if a small model can read them in a fork of it."""
    is_asked = "ATTNCHECK_ROWS" in cut.environ and cut.driver in ("", "trl")
    return tuple(list_own_files(stage.read, cut.data)) if is_asked else ()


def describe_fields(read: ReadLaunch, cut: JobCut, added: Sequence[str] = (), fills: bool = False) -> dict[str, Any]:
    """Return the part of a worker's message that says which fields a script reads from rows; `added`: found by runs.

    `fills`: those whose contents are not known have a word.
    """
    rows, columns = [] if cut.driver else list(iter_first_rows(read, cut.data)), read_columns(read)
    return {
        "columns": [*columns, *added] if reads_fields(cut) else [*added],
        "added": added,
        "optional": [name for name in (*columns, *added) if fills or name not in columns],
        "parts": read_named_columns(read) if reads_fields(cut) else {},
        # trl 0.24.0 data_utils.py (`is_conversational`) takes any of several fields, in the order of a set
        "makes_text": read.job.framework == "trl" and bool(TEXT_COLUMNS.intersection(columns)),
        "shapes": read_field_shapes(read) if reads_fields(cut) or added else {},
        "turns": read_turns(read, rows) if reads_fields(cut) else [],
        "values": read_values(read, rows) if reads_fields(cut) else {},
        "prefixes": read_prefixes(rows),
        "own_columns": sorted({name for row in rows for name in row}),
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


def run_worker(stage: Stage, message: Mapping[str, Any], items: tuple[str, ...]) -> dict[str, Event]:
    """Return the last event of each item that a worker reached."""
    return ask_worker(stage.pool, make_job(stage.target, message, items))


@contextmanager
def open_pool(target: ExecutionTarget) -> Iterator[Pool]:
    """Yield a pool whose workers are forked from one process, which imports their libraries once."""
    pool = Pool(target.python, 1)
    with pool.prepare(make_job(target, {}, ())):
        yield pool


def make_job(target: ExecutionTarget, message: Mapping[str, Any], items: tuple[str, ...]) -> Job:
    """Return the work of one worker."""
    message = {"threads": target.threads_per_worker(1), **message}
    return Job("rehearsal", message, items, target.seconds * 3.0, imports=(LIBRARIES,))


def ask_worker(pool: Pool, job: Job) -> dict[str, Event]:
    """Return the last event of each item that a worker reached, also before an interrupt."""
    events: dict[str, Event] = {}

    def on_event(event: Event) -> None:
        if event.kind not in ("started", "step"):
            events[event.item] = event

    try:
        pool.run([job], on_event)
    except KeyboardInterrupt:
        if not events:
            raise
    return events


def execute(stage: Stage, cut_launch: CutLaunch, steps: int, prefix: str) -> execution.Execution:
    """Run a scaled-down launch for this many steps, and report each with the prefix."""
    materials = stage.materials
    is_large = materials.full_model or materials.real_data  # the launch's own options make even a small model large
    limit = thread_environment(count_cores() if is_large else 1, False, os.environ)
    if is_large:
        limit["ATTNCHECK_MAX_WEIGHTS"] = str(MAX_WEIGHTS)
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


def read_result(event: Event | None, name: str) -> CheckResult:
    """Return the result of a check from its worker's last event; None: the worker did not reach it."""
    if event is None:
        return CheckResult(name, "skipped", "it was not reached")
    if event.kind == "answer":
        return codec.read(CheckResult, event.answer)
    return CheckResult(name, workers.unmeasured_outcome(event), event.reason)
