"""How the rehearsed job differs from the launch, and which questions therefore stay unanswered.

A check that depends on a replaced part would judge the replacement. A failure with other ranks or accumulation also
holds for the launch, so these differences only turn passes into "unknown".
"""

import contextlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from attncheck.core.experiments import HALVES
from attncheck.core.facts import Known
from attncheck.core.job import DROP, Job
from attncheck.core.rehearsal import JobCut, Materials, Objective
from attncheck.core.results.rehearsal import CLASS, DIVISOR, Difference
from attncheck.core.results.smoke import CheckResult, deciding_reason, judge_result
from attncheck.lint.fields.effects import find_effect
from attncheck.lint.fields.rehearsing import OFF_VALUES, get_setting
from attncheck.lint.rewriting import ReadLaunch
from attncheck.rehearsal.columns import find_script
from attncheck.rehearsal.continuing import EPOCHS, RESUMED, list_resumed

CONSEQUENCE = "a consequence of the failed"  # check, which is not asked either
ROLLOUTS = "source of the rollouts"
TRAINER = "model and trainer"
LENGTHS = ("max_length", "max_seq_length", "cutoff_len", "sequence_len")
DTYPES = ("dtype", "torch_dtype", "bf16", "fp16", "precision", "param_dtype")
EVALUATES = ("eval_strategy", "evaluation_strategy", "eval_on_start", "do_eval", "val_set_size")
OWN_ROWS = "of the launch's own rows"  # in the watcher's line if they were read
EVALUATED, SAVED = "an evaluation of", "loaded again"  # in the watcher's lines
SAVES = re.compile(r"\.save_(model|pretrained)\(|\btorch\.save\(")
QUANTISED = ("load_in_4bit", "load_in_8bit", "quantization_bit", "quant_bits")
SHARED_BY = "sequence_parallel_size"  # 360-LLaMA-Factory's
SHARING = re.compile(r"packing|packed|padding_free|flatten|remove_padding")


@dataclass(frozen=True)
class _Dimension:
    """A dimension of a job: the checks whose answers depend on it, and whether a failure or a pass holds anyway."""

    checks: tuple[str, ...]
    keeps_failures: bool = False
    keeps_passes: bool = False


DIMENSIONS = {
    "model class": _Dimension(("run", "batch", "documents", "loss", "gradients")),
    CLASS: _Dimension(("documents", "loss", "gradients", "learning"), keeps_failures=True),
    "attn_implementation": _Dimension(("batch", "documents", "gradients")),
    "max_length": _Dimension(("run", "batch")),
    "precision": _Dimension(("documents", "loss", "gradients", "learning")),
    "quantisation": _Dimension(("loss", "gradients", "learning"), True),
    "ranks that share a row": _Dimension(("documents", "loss", "gradients"), True),
    "ranks": _Dimension(("loss", "gradients"), True),
    "accumulation": _Dimension(("loss", "gradients"), True),
    DIVISOR: _Dimension(("loss", "gradients"), keeps_passes=True),
    "images": _Dimension(("batch", "documents", "loss", "gradients", "learning"), keeps_passes=True),
    "template": _Dimension(("batch",)),
    # a trainer that only the script knows may continue or replace the completions that it gets
    ROLLOUTS: _Dimension(("batch", "documents", "loss", "gradients", "learning"), keeps_passes=True),
    TRAINER: _Dimension(("batch", "documents", "update", "learning")),
    "configuration file": _Dimension(("run", "batch", "documents", "update", "loss", "gradients", "learning")),
    "function that reads rows": _Dimension(("batch", "learning")),
    "field that the script reads": _Dimension(("batch", "learning"), keeps_passes=True),
}


def list_differences(read: ReadLaunch, cut: JobCut, materials: Materials, ranks: int) -> tuple[Difference, ...]:
    """Return how the job that ran on `ranks` processes differs from the launch."""
    return tuple(
        Difference(dimension, written, ran)
        for dimension, written, ran in _iter_differences(read, cut, materials, ranks)
        if written != ran
    )


def _iter_differences(
    read: ReadLaunch, cut: JobCut, materials: Materials, ranks: int
) -> Iterator[tuple[str, str, str]]:
    job = read.job
    model = read.snapshot.model
    launch = read.recognised.launch
    if launch.file is not None and launch.file.is_nearby:
        yield "configuration file", launch.file.name, f"{os.path.basename(launch.file.name)} next to the launch"
    if isinstance(model, Known) and model.value.architectures:
        yield "model class", model.value.architectures[0], _read_class(materials) or model.value.architectures[0]
    requested = job.plan.attn_implementation
    yield "attn_implementation", requested, cut.sets.get("attn_implementation", requested)
    if cut.driver == "trl" and read.recognised.framework.general:
        yield ROLLOUTS, "the script's own trainer", "made up"
    if cut.driver == "slime":
        yield TRAINER, "Megatron's", "a small model of transformers with torch's AdamW"
    if (  # these generate answers, of which `lmbda` is the share
        job.trainer in ("gkd", "gold", "distillation", "online_dpo", "xpo", "nash_md")
        and get_setting(job, "lmbda") not in ("0", "0.0")
    ):
        yield ROLLOUTS, "the launch's model", "a small model"
    for name in LENGTHS:
        written, ran = get_setting(job, name), cut.sets.get(name)
        if written is not None and written.lower() in OFF_VALUES and ran is not None and ran.isdecimal():
            yield "max_length", written, ran
    for name in DTYPES:
        written, ran = get_setting(job, name), cut.sets.get(name)
        if written and ran and ran != DROP:
            yield "precision", f"{name} {written}".lower(), f"{name} {ran}".lower()
    for name in QUANTISED:
        written = get_setting(job, name)
        is_on = written is not None and written.lower() not in OFF_VALUES[:-2]
        if is_on and cut.sets.get(name, written) != written:
            yield "quantisation", f"{name} {written}".strip(), "none"
    if job.plan.ring_size > 1 and ranks:
        yield "ranks that share a row", str(job.plan.ring_size), "1" if cut.ring_size == 1 else str(job.plan.ring_size)
    written = get_setting(job, SHARED_BY) or "1"
    yield "ranks that share a row", written, cut.sets.get(SHARED_BY, written)
    if isinstance(job.world_size, Known) and job.world_size.value > 1 and ranks:
        yield "ranks", str(job.world_size.value), "1" if ranks == 1 else str(job.world_size.value)
    if job.plan.accumulation > 1 and materials.accumulation == 1:
        yield "accumulation", str(job.plan.accumulation), "1"


def _read_class(materials: Materials) -> str:
    """Return the class of the trained model, "" if its folder does not name one."""
    path = Path(materials.model) / "config.json"
    names = json.loads(path.read_text()).get("architectures") if path.exists() else None
    return str(names[0]) if names else ""


def list_unasked(
    read: ReadLaunch,
    objective: Objective,
    has_text_only: bool,
    results: Sequence[CheckResult] = (),
    left_out: Sequence[str] = (),
    has_made_up: bool = False,
) -> Iterator[str]:
    """Yield what the launch does, or may do, and a rehearsal of its first steps on short documents leaves out."""
    texts = [text for own in results for text in (*own.notes, *own.warnings, *own.violations)]
    if has_made_up and not any(OWN_ROWS in text for text in texts):
        yield "the contents of the launch's own rows"
    if has_text_only:
        yield "images"
    yield from ["truncated rows"] if objective.policy is None else ["the rewards", "how completions are sampled"]
    if objective.policy is not None and (get_setting(read.job, "beta") or "0").lower() not in (*OFF_VALUES, "0.0"):
        yield "the KL term, which is 0 at the first step"
    job, script = read.job, read.recognised.launch.file
    twins = " ".join(deciding_reason(result) for result in results if result.check == "twin" and result.outcome == "ok")
    is_set = any((get_setting(job, name) or "no").lower() not in OFF_VALUES for name in EVALUATES)
    written = find_script(read.recognised.launch)
    own = script.text if script is not None else ""
    with contextlib.suppress(OSError):
        own += written.read_text(encoding="utf-8", errors="replace") if written is not None else ""
    continued = " ".join(note for result in results if result.check == "repeat" for note in result.notes)
    # a framework's checkpoint is what it saves
    saves = SAVES.search(own) or not (read.recognised.framework.general or RESUMED in continued)
    if saves and not any(SAVED in text for text in texts):
        yield "what is saved"
    is_tried = any(text.startswith(EVALUATED) for text in texts)
    if not is_tried and (is_set or ".evaluate(" in own):
        yield "evaluation"
    resumes = any(find_effect(own.name, "", own.value) == "resume" and own.value for own in job.settings)
    if resumes and RESUMED not in continued:
        yield "a resumed training"
    yield from (f"resuming from {path}" for path in list_resumed(read))
    if EPOCHS not in continued:
        yield "later epochs"
    if job.plan.accumulation > 1:
        yield "an epoch's short last step"
        if HALVES not in twins:
            yield "the same rows in other micro-batches"
    yield from (name for name in dict.fromkeys(left_out) if name not in twins)


def shares_rows(job: Job) -> bool:
    """Return whether a setting of the launch puts several documents into a row."""
    settings = ((setting.name, setting.value.lower()) for setting in job.settings)
    return job.plan.packed and any(SHARING.search(name) and value not in OFF_VALUES[:-2] for name, value in settings)


def leave_unasked(results: Sequence[CheckResult], differences: Sequence[Difference]) -> list[CheckResult]:
    """Return the results; the ones that depend on a difference become "not asked"."""
    return [_leave_unasked(result, differences) for result in results]


def _leave_unasked(result: CheckResult, differences: Sequence[Difference]) -> CheckResult:
    fails = judge_result(result) not in ("pass", "warn")
    for difference in differences:
        dimension = DIMENSIONS[difference.dimension]
        holds = dimension.keeps_failures if fails else dimension.keeps_passes
        is_judged = result.outcome == "ok" or CONSEQUENCE in result.reason
        if result.check in dimension.checks and not holds and is_judged:
            return replace(CheckResult(result.check, "skipped", f"not asked: {difference.text}"), notes=result.notes)
    return result
