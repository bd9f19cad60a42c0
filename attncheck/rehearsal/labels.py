"""Reads which tokens launches train on: each runs one step on conversations, and its batches are read by role."""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from attncheck.core import codec
from attncheck.core.facts import Known
from attncheck.core.findings import Finding, Fix, Problem
from attncheck.core.io.errors import AttncheckError, Unanswered
from attncheck.core.launch import ReadFile, Source
from attncheck.core.rehearsal import PAIRED_FORMS, JobCut, Materials
from attncheck.core.report import Report
from attncheck.core.results.labels import ROLE_TEXTS, LabelledLaunch, LabelsSection, RoleCount, Span
from attncheck.core.results.lint import LintSection
from attncheck.core.snapshot import Snapshot
from attncheck.doctor import engine
from attncheck.doctor.probes.payload.model import files
from attncheck.lint.context import ReadModel
from attncheck.lint.rewriting import ReadLaunch, read_launches
from attncheck.rehearsal import cutting, execution, kept_labels
from attncheck.rehearsal.cutting import CutLaunch, NothingToRehearse
from attncheck.rehearsal.ending import judge_end
from attncheck.rehearsal.staging import ask_worker, choose_model, choose_targets, describe_fields, make_job, run_cut
from attncheck.workers.execution import ExecutionTarget
from attncheck.workers.pool import Event, Pool
from attncheck.workers.processors import thread_environment
from attncheck.workers.scratch import scratch_folder

CODE = "ATN439"
NO_STEP = "the launch ended before its first step"
CONVERSATIONS = 400  # more than the rows of a step contain, even packed ones, and than a script keeps for evaluation
MAX_LINES = 6
TOKENIZER_FILES = re.compile(r"tokenizer|vocab|merges|spiece|sentencepiece|tekken")
SOUND = re.compile("audio|speech")
# Frameworks that render a row with the tokenizer's chat template, including its fields for thoughts and tool calls.
RENDERED = ("trl", "axolotl")
TARGET_TEXTS = {
    "all": "every token of a document",
    "assistant": "the answers alone",
    "last": "only the last answer of each conversation",
    "labelled": "the tokens that its script or framework labels",
    "chosen": "the tokens that its rows or settings choose",
}


@dataclass(frozen=True)
class LabelsRequest:
    """The launches with labels to read, each with its source.

    `template` is a folder or model with the tokenizer and chat template to use, "" for the launch's own model's.
    """

    sources: tuple[Source, ...]
    read_model: ReadModel
    make_reader: Callable[[Source], ReadFile]
    template: str = ""
    seed: int = 0
    trusts_script: bool = False
    runs_substitutions: bool = False


def run(
    snapshot: Snapshot, request: LabelsRequest, target: ExecutionTarget, report_progress: Callable[[str], None]
) -> Report:
    """Return the report on the labels of every launch of the request.

    Raises `NothingToRehearse` if no launch can be scaled down, `Unanswered` if one cannot run here.
    """
    launches = _find_launches(snapshot, request)
    if not launches:
        names = ", ".join(source.name for source in request.sources) or "the folder"
        raise NothingToRehearse(f"{names}: starts no training that attncheck recognises")
    labelled = tuple(_read_labels(read, request, target, report_progress) for read in launches)
    findings = tuple(finding for launch in labelled for finding in _iter_findings(launch))
    return Report("labels", snapshot, findings, sections={"labels": LabelsSection(labelled)})


def read_labels(
    snapshot: Snapshot, request: LabelsRequest, target: ExecutionTarget, report_progress: Callable[[str], None]
) -> LabelsSection:
    """Return the labels of the request's SFT launches, each with the reason if its labels cannot be read here."""
    labelled = []
    for read in _find_launches(snapshot, request):
        job, distribution = read.job, read.recognised.framework.distribution
        if job.trainer != "sft":
            continue
        launch = LabelledLaunch(str(job.location), job.framework, job.version, job.trainer, "", "")
        try:
            if distribution and not read.snapshot.has(distribution):
                raise Unanswered(f"{distribution} is not installed")
            options = (request.seed, request.trusts_script, request.runs_substitutions, target.python)
            path = kept_labels.find_path(snapshot, read, request.template, options)
            launch = kept_labels.read_labels(path) or _read_labels(read, request, target, report_progress)
            kept_labels.keep(path, launch)
        except AttncheckError as error:
            launch = replace(launch, reason=str(error).removeprefix(f"{job.location}: "))
        labelled.append(launch)
    return LabelsSection(tuple(labelled))


def add_labels(report: Report, section: LabelsSection, select: tuple[str, ...], ignore: tuple[str, ...]) -> Report:
    """Return lint's report with labels that were read, and findings about them."""
    linted = report.section(LintSection) or LintSection()
    known = {launch.location for launch in section.launches if not launch.reason}
    findings = [finding for launch in section.launches for finding in _iter_findings(launch)]
    report = report.with_section(linted.with_labels(known)).with_section(section)
    return engine.add_findings(report, findings, select, ignore)


def _find_launches(snapshot: Snapshot, request: LabelsRequest) -> list[ReadLaunch]:
    return [
        read
        for source in request.sources
        for read in read_launches(snapshot, source, request.read_model, request.make_reader(source), True)
    ]


def _read_labels(
    read: ReadLaunch, request: LabelsRequest, target: ExecutionTarget, report_progress: Callable[[str], None]
) -> LabelledLaunch:
    """Run a launch for one step and read its labels: with its own rows, if they and its tokenizer are here."""
    tokenizer, remarks = _choose_tokenizer(read, request)
    for has_own_rows in (True, False) if tokenizer and _has_own_rows(read, target) else (False,):
        with scratch_folder() as folder:
            try:
                launch = _read_step(read, request, target, report_progress, folder, tokenizer, has_own_rows)
                break
            except Unanswered as error:
                if not has_own_rows:
                    raise
                remarks = (f"its own rows are not used: {str(error).removeprefix(f'{read.job.location}: ')}",)
    return replace(launch, remarks=(*remarks, *launch.remarks))


def _has_own_rows(read: ReadLaunch, target: ExecutionTarget) -> bool:
    """Return whether a launch names data that are a file or folder here, and its framework's cut can use them."""
    cut = cutting.cut_job(read, cutting.make_materials(read, "", 1, target.uses_gpu, 1))
    return bool(cut.data) and os.path.exists(cutting.find_data(read, cut)) and read.job.plan.ring_size == 1


def _read_step(
    read: ReadLaunch,
    request: LabelsRequest,
    target: ExecutionTarget,
    report_progress: Callable[[str], None],
    folder: str,
    tokenizer: str,
    has_own_rows: bool,
) -> LabelledLaunch:
    """Run a launch for one step in a folder, and read its labels.

    Raises `Unanswered` if it cannot be prepared, or if no turn of the user's rows is found in its batches.
    """
    job = read.job
    materials = cutting.make_materials(read, folder, 1, target.uses_gpu, 1, bool(tokenizer), has_own_rows)
    cut = cutting.cut_job(read, materials)
    if cut.form in PAIRED_FORMS or cut.driver:
        raise NothingToRehearse(f"{job.location}: {job.trainer} does not train on labels of its data set")
    report_progress(f"{job.location}: making conversations")
    made = _prepare(folder, cut, materials, tokenizer, read, request, target)
    targets = choose_targets(read, materials, made)
    cut_launch = cutting.cut_launch(read, cut, {}, folder, materials, request.runs_substitutions)
    launch = LabelledLaunch(
        str(job.location),
        job.framework,
        job.version,
        job.trainer,
        TARGET_TEXTS[targets],
        tokenizer,
        remarks=(*cut_launch.cut.remarks, *_note_sound(read), *made["remarks"]),
    )
    reason = _run_step(read, cut_launch, folder, request, target, report_progress)
    if reason:
        return replace(launch, reason=reason)
    report_progress(f"{job.location}: reading labels")
    message = {
        "task": f"attncheck.rehearsal.worker.{'own_labels' if has_own_rows else 'labels'}:judge",
        "stage": folder,
        "targets": targets,
        "renders": job.framework in RENDERED,
    }
    event = _ask_worker(message, target)
    if event is None or event.kind != "answer":
        reason = event.reason if event is not None else "its labels could not be read"
        if has_own_rows:
            raise Unanswered(reason)
        return replace(launch, reason=reason)
    answer, marker = event.answer, "" if tokenizer else describe_fields(read, cut)["marker"]
    if marker and not any(marker in span["text"] for row in answer["rows"] for span in row):
        return replace(
            launch,
            reason=f"{marker}, which its script may search for, is not in rows of the synthetic tokenizer: name the "
            "model's own with --template FOLDER",
        )
    return replace(
        launch,
        rows=tuple(tuple(codec.read(Span, span) for span in row) for row in answer["rows"]),
        counts=tuple(codec.read(RoleCount, count) for count in answer["counts"]),
        problems=tuple(answer["problems"]),
        notes=tuple(answer["notes"]),
        total_rows=answer["total_rows"],
    )


def _choose_tokenizer(read: ReadLaunch, request: LabelsRequest) -> tuple[str, tuple[str, ...]]:
    """Return the model of the tokenizer ("": a synthetic one), and remarks. Raises `Unanswered` for a bad template."""
    name = request.template or read.job.model or read.recognised.framework.model(read.recognised.launch)
    folder = files.find_model_folder(name).get("known") if name else None
    if folder and any(map(TOKENIZER_FILES.match, os.listdir(folder))):
        return (os.path.abspath(name) if os.path.isdir(name) else name), ()
    if request.template:
        raise Unanswered(f"--template {name}: no such folder with a tokenizer, and no model of this name in the cache")
    remark = f"{name or 'the model'} is not available locally: a tokenizer with a plain chat template is used instead"
    return "", (f"{remark} (--template FOLDER names another)",)


def _note_sound(read: ReadLaunch) -> Iterator[str]:
    """Yield a remark if the launch's model takes sound, because rows have none."""
    model = read.snapshot.model
    towers = model.value.towers if isinstance(model, Known) else ()
    if any(SOUND.search(tower.name) for tower in towers):
        yield "labels of rows with sound were not asked: attncheck makes no sound, so rows have text and images at most"


def _prepare(
    folder: str,
    cut: JobCut,
    materials: Materials,
    tokenizer: str,
    read: ReadLaunch,
    request: LabelsRequest,
    target: ExecutionTarget,
) -> dict[str, Any]:
    """Fill the folder with a small model, its tokenizer and conversations. Raises `Unanswered`."""
    cutting.lay_files(cut, materials)
    message = {
        "task": f"attncheck.rehearsal.worker.{'own_labels' if materials.real_data else 'conversations'}:prepare",
        "stage": folder,
        "documents": CONVERSATIONS,
        "form": cut.form,
        **describe_fields(read, cut),
        "pictures": cut.pictures,
        "seed": request.seed,
        "tokenizer": tokenizer,
        "as_parquet": materials.parquet_file in (*cut.sets.values(), *cut.options.values()),
        "has_fields": read.job.framework in RENDERED,
        "real_data": cutting.find_data(read, cut) if materials.real_data else "",
        "row_length": cutting.limit_rows(read, materials),
        "roles": dict(cut.roles),
        **dict(zip(("model", "stand_in_for"), choose_model(read))),
        "has_padding_token": True,
        "dtype": "float32",
    }
    event = _ask_worker(message, target)
    if event is None or event.kind != "answer":
        reason = event.reason if event is not None else "the worker did not answer"
        raise Unanswered(f"no conversations could be made: {reason}")
    answer: dict[str, Any] = event.answer
    if materials.real_data and not answer["has_turns"]:
        raise Unanswered(f"{read.job.location}: they are not a prompt and an answer, or messages")
    return answer


def _ask_worker(message: dict[str, Any], target: ExecutionTarget) -> Event | None:
    """Return a worker's answer to a job of one item."""
    job = make_job(target, message, ("labels",))
    return ask_worker(Pool(target.python, 1), job).get("labels")


def _run_step(
    read: ReadLaunch,
    cut_launch: CutLaunch,
    folder: str,
    request: LabelsRequest,
    target: ExecutionTarget,
    report_progress: Callable[[str], None],
) -> str:
    """Run the launch for one step; return why it took none, "" if it took one."""
    ended = run_cut(
        read,
        cut_launch,
        folder,
        target,
        1,
        lambda text: report_progress(f"{read.job.location}: {text}"),
        {"ATTNCHECK_LABELS": "1", **thread_environment(1, False, os.environ)},
        request.trusts_script,
    )
    if execution.count_ranks(folder, "calls-*.json"):
        return ""
    result, failure = judge_end(ended), execution.read_watcher_failures(folder, ended.returncode)
    return failure or result.reason or next(iter(result.violations), NO_STEP)


def _iter_findings(launch: LabelledLaunch) -> Iterator[Finding]:
    """Yield a finding for each error in a launch's labels."""
    name = " ".join(filter(None, (launch.framework, launch.trainer)))
    counts = tuple(
        f"{ROLE_TEXTS[count.role]}: {count.learned} of {count.tokens} tokens learned" for count in launch.counts
    )
    for problem in launch.problems:
        evidence = (f"the launch should learn {launch.targets}", *counts)[:MAX_LINES]
        fix = Fix("check the marked rows", "advice", "attncheck labels -v LAUNCH")
        yield engine.make_finding_by_code(CODE, Problem(problem, evidence, (fix,), f"{name}: {problem.split(':')[0]}"))
