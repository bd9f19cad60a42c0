"""Evaluating fails although training works, or has another loss than training on the same rows.

What it checks: `doctor --deep` evaluates a tiny model before its first step and after its last, with the installed
Trainer and the trainers of TRL, LLaMA-Factory and ms-swift. The evaluation loss must be that of the first step on the
same rows. Rows of two lengths are also evaluated one by one and in one batch: the losses differ if each batch has the
same weight. Every release has this, so it is only reported of a launch that evaluates rows without packing. With a
launch, only its trainer is reported, and only if the launch evaluates.

Why it matters: an evaluation that fails stops the training, at its start or hours later. A different loss makes
overfitting look like something else. A loss that depends on the batch size cannot be compared with another run's.

What to do: do not evaluate with this trainer, or use a release that was measured right.

Source: the measurement (attncheck/doctor/experiments/worker/). Faults of this kind: huggingface/trl#4010 (measured: TRL
0.22.1, GRPO with loss_type=grpo), huggingface/transformers#39241 (measured with 4.56.1, 5.12.0 and 5.17.0); TRL 1.16.0
and 1.9.0 cannot evaluate OnlineDPO.
"""

from dataclasses import replace

from attncheck.core.experiments import TOLERANCE, EvaluationMeasurement
from attncheck.doctor.queries.launch import name_settings
from attncheck.doctor.rules import Fix, Job, Known, Problem, Problems, Rule, Snapshot

SAME = 0.1  # a loss may count the first label of a row, or not
OFF = {"no", "false", "null", "none", ""}
NAMES = ("eval_on_start", "eval_strategy", "evaluation_strategy")
BUILT = ("transformers", "trl")  # other trainers are not made to evaluate, so a failure may not be theirs


def check(snapshot: Snapshot) -> Problems:
    job = snapshot.job.value if isinstance(snapshot.job, Known) else None
    evaluations = snapshot.measurements.evaluations
    stated = name_settings(job) if job is not None and evaluations else {}
    for item in evaluations:
        names = NAMES[:1] if item.at_start else NAMES
        settings = [stated[name] for name in names if name in stated and stated[name].value.lower() not in OFF]
        # So in every release: no defect of this one. Packed rows have about as many tokens each.
        depends = abs(item.by_row - 1) > TOLERANCE and job is not None and job.plan.packing == "padding"
        if not (_describe(item) or depends) or (job is not None and not (settings and _is_of_job(item, job))):
            continue
        name = f"{item.trainer}{f' ({item.variant})' if item.variant else ''}"
        problem = Problem(
            message=f"{name}: evaluating {_describe(item)}",
            evidence=("measured: the same rows can be trained",) if item.error else (),
            fixes=(Fix("train without evaluating", "setting", "eval_strategy: no, eval_on_start: false"),),
            subject=f"{item.trainer} {item.variant}".strip(),
            predicted=job is None,
            locations=tuple(setting.location for setting in settings[:1]),
        )
        if _describe(item):
            yield problem
        if depends:
            yield replace(
                problem,
                message=f"{name}: the evaluation loss depends on per_device_eval_batch_size: it is a mean over batches",
                evidence=(f"measured: rows one by one have {item.by_row:.3g} times the loss of one batch of them",),
                fixes=(Fix("compare runs of one batch size only", "setting", "per_device_eval_batch_size: 1"),),
            )


def _describe(item: EvaluationMeasurement) -> str:
    """Return what is wrong with evaluating, "" if nothing is or it was not measured."""
    if item.unmeasured or (item.error and item.trainer not in BUILT):
        return ""
    if item.error:
        return f"{'before the first step ' if item.at_start else ''}fails: {item.error}"
    return f"gives {item.ratio:.3g} times the training loss" if abs(item.ratio - 1) > SAME else ""


def _is_of_job(item: EvaluationMeasurement, job: Job) -> bool:
    objective, _, setting = item.variant.partition(" ")
    name, _, value = setting.partition("=")
    stated = name_settings(job).get(name)
    is_set = not name or (stated is not None and stated.value == value)
    is_trained = job.trainer == (objective or "sft") or job.framework != "trl"
    return item.trainer == job.framework and is_set and is_trained


RULE = Rule("ATN469", "warning", check)
