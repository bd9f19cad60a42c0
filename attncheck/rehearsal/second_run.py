"""Runs a launch again, as it is, without a GPU or without a neutral setting, and compares the runs."""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from attncheck.core.experiments import HALVES
from attncheck.core.io.errors import Unanswered
from attncheck.core.job import DROP
from attncheck.core.rehearsal import JobCut
from attncheck.core.results.smoke import CheckResult, judge_result
from attncheck.lint.fields.rehearsing import is_on
from attncheck.rehearsal import cutting
from attncheck.rehearsal.cutting import CutLaunch
from attncheck.rehearsal.staging import FOLDER, Stage, execute, read_result, run_worker

REPEATED_STEPS = 3  # in the second run of a launch that requests reproducible training, or has a twin
FIRST = "watch-first"  # the records of a launch as written, if it runs again
ON_GPU = "watch-gpu"  # the records of a launch on a GPU, while it runs without one
FORKED_STEPS = 6  # in the run without a GPU: its questions are asked in the first steps, and after the last
ASKED_WITHOUT_GPU = "interruptions, epochs, evaluations, saves and the launch's own rows were tried without the GPU"
ANSWERS = ("continued", "start", "skipped", "effects-*", "relations-*", "own-*")  # of forks
# Settings that are neutral by documentation, the most telling first; accumulating comes before them.
LIGER = "use_liger_kernel"
NEUTRAL = ("padding_free", "precompute_ref_log_probs", LIGER, "use_liger_loss", "gradient_checkpointing")


def rerun(
    stage: Stage, cut_launch: CutLaunch, steps: int, prefix: str, check: str, task: str, **message: Any
) -> CheckResult:
    """Run a launch again, and return how a worker's task compares it with the first run."""
    watch, first = (os.path.join(stage.folder, name) for name in ("watch", FIRST))
    if not os.path.isdir(first):
        os.rename(watch, first)
    try:
        ended = execute(stage, cut_launch, steps, prefix)
        if ended.returncode != 0:
            end = f"the second run ended with status {ended.returncode}: {''.join(ended.lines[-1:])}"
            return CheckResult(check, "skipped", end.replace(stage.folder, FOLDER)[:250])
        message |= {
            "task": f"attncheck.rehearsal.worker.{task}",
            "folders": [first, watch],
        }
        return read_result(run_worker(stage, message, (check,)).get(check), check)
    except KeyboardInterrupt:  # what the first run answered is reported
        return CheckResult(check, "skipped", "the second run was interrupted")


def run_without_gpu(
    stage: Stage, cut: JobCut, with_questions: Callable[[Stage, CutLaunch], CutLaunch], prefix: str
) -> tuple[str, ...]:
    """Run a launch's first steps without its GPU for what its forks answer, and return a remark that says so.

    A process with a GPU cannot be forked.
    """
    watch, kept = (os.path.join(stage.folder, name) for name in ("watch", ON_GPU))
    few = replace(stage, materials=replace(stage.materials, uses_gpu=False, processes=1, steps=FORKED_STEPS))
    with suppress(Unanswered, KeyboardInterrupt):  # what the run on the GPU answered is reported
        before, own = (cutting.cut_job(stage.read, materials) for materials in (stage.materials, few.materials))
        added = {name: text for name, text in cut.environ.items() if before.environ.get(name) != text}
        own = replace(own, environ={**own.environ, **added, "CUDA_VISIBLE_DEVICES": ""})
        launch = cutting.cut_launch(few.read, own, {}, few.folder, few.materials, few.request.runs_substitutions)
        questioned = with_questions(few, launch)
        if questioned is launch:
            return ()
        os.rename(watch, kept)
        try:
            ended = execute(few, questioned, FORKED_STEPS, f"{prefix}without the GPU: ")
            for path in (path for name in ANSWERS for path in Path(watch).glob(f"{name}.json")):
                os.rename(path, os.path.join(kept, path.name.replace("-", "-cpu-")))
        finally:
            shutil.rmtree(watch, ignore_errors=True)
            os.rename(kept, watch)
        return (ASKED_WITHOUT_GPU,) if ended.returncode == 0 else ()
    return ()


def run_twin(stage: Stage, cut: JobCut, results: Sequence[CheckResult], prefix: str) -> list[CheckResult]:
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
        rerun(
            *(stage, launch, REPEATED_STEPS, f"{prefix}{change}: ", "twin", "twins:compare"),
            how={"change": change, "is_defined": objective.couples_rows},
        )
    ]


def _iter_twins(stage: Stage, cut: JobCut) -> Iterator[tuple[str, JobCut]]:
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
