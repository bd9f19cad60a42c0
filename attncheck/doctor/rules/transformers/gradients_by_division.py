"""The installed trainer's gradients depend on how a batch is divided.

What it checks: `doctor --deep` trains two steps on documents of two lengths with the installed Trainer, and with the
trainers that TRL, LLaMA-Factory and ms-swift make: as one batch, as two micro-batches, on two ranks (gloo), and (the
first two) as two imitated replicas of nn.DataParallel, and on two ranks that share a model (tensor parallel). If
liger-kernel is installed, its loss is run too, with torch instead of its triton kernel. If PEFT is installed, trainers
are also given a model that already has a LoRA adapter and the mark of a quantised model, and one with an adapter and
gradient checkpointing. DPO must then take the given adapter as its reference, so that the first loss is log 2. If
liger-kernel is installed, GKD and DPO are also run with its loss on a model that caps its logits. A mixture of experts
is run with its balancing loss; this result is used only for launches that set that loss. Norm and direction of the
gradient at the optimiser's first step are compared with the gradient of the same loss over the same tokens. How TRL's
other objectives divide a batch is compared by ATN470.
The logged norm must be that of the gradients, and the logged loss that of the undivided batch. The second step on the
same documents must have about the same gradient, and both must change every parameter. The last step of an epoch, which
may have fewer micro-batches, must have the same gradient on equal documents. A trainer whose import fails is reported
as well. The router logits of each installed mixture of experts must not be probabilities, because its balancing loss
takes their softmax.

Why it matters: the error is silent. The logged loss is right, but the gradients are off by a factor, or belong to a
different objective. Clipping, weight decay and optimisers that depend on scale then behave differently. Gradients that
are not cleared add up, and parameters that the optimiser does not hold are never trained.

What to do: use a release of transformers, accelerate or the framework in which the ratio is 1, or do not divide the
batch that way: one process per GPU, no accumulation.

Source: the measurement (attncheck/doctor/experiments/worker/). Faults of this kind: huggingface/transformers
#40709, #37474, #43919, #45994, #38837, #48690, #42489; huggingface/accelerate#3533; huggingface/trl#3926, #6006,
#6591, #6629. TRL 0.24.0 import_utils.py:33 takes the tuple that transformers 5.5.4 returns as true, so that its DPO
imports mergekit. Measured: DPO's first loss with `target_parameters`, 0.63 in TRL 1.9.0 with PEFT 0.20.0; liger's
losses of a capped model, GKD 3.9 and DPO 2.2 times the gradient in TRL 1.9.0, 1.0 in 1.16.0; router logits that are
probabilities: gpt_oss in transformers 4.57.3, and six types in 5.5.0 (huggingface/transformers#45120; right: 5.17.0).
"""

import math
import re
from collections.abc import Iterator

from attncheck.core.experiments import (
    CAPPED,
    CHECKPOINTED,
    EXPERTS,
    GIVEN,
    SHORT_STEP,
    TOLERANCE,
    Experiments,
    GradientMeasurement,
)
from attncheck.doctor.fixes.install import install_packages
from attncheck.doctor.knowledge.frameworks import TRAINER_FRAMEWORKS
from attncheck.doctor.rules import Fix, Job, Known, Problem, Problems, Rule, Snapshot
from attncheck.doctor.rules.transformers.neutral_change_trains_otherwise import is_of_job

UNDIVIDED = "one batch"
DIVIDES_TWICE = "ATN457"  # reports gradients that are divided by the accumulation steps twice, with its releases
SETTINGS = {"two micro-batches": "gradient_accumulation_steps: 1", "two replicas": "torchrun --nproc-per-node N"}
VARIANT_SETTINGS = {
    "liger": "use_liger_kernel: false",
    CAPPED: "use_liger_kernel: false",
    "tensor parallel": "parallelism_config_tp_size: 1",
}
COMPARED = (f"dpo {GIVEN}", f"dpo {EXPERTS}")  # DPO is given an adapter
CAPPING = re.compile(r"gemma-?(2|3n|4)", re.IGNORECASE)  # final_logit_softcapping is set in their configurations
BALANCING = "balancing loss"
MODEL = "peft.model"  # a setting of scripts: an adapter is given to the trainer
BALANCED = re.compile(r"router_logits|aux_loss_coef")  # in settings that add the loss
OFF = {"", "0", "0.0", "false", "none", "null"}
LOSS_TOLERANCE = 0.1  # a loss may count the first label of a row, or not
ADDED_UP = 1.5  # the second step's gradient over the first's: 2 if it was not cleared, about 1 if it was


def check(snapshot: Snapshot) -> Problems:
    experiments = snapshot.measurements
    for measurement in experiments.gradients:
        fault = _describe_fault(experiments, measurement)
        if not fault or not _may_happen(snapshot, experiments, measurement):
            continue
        is_shared = _is_wrong_in_transformers(experiments, measurement)
        if is_shared and measurement.trainer != "transformers" and not isinstance(snapshot.job, Known):
            continue  # reported of transformers itself
        is_short = measurement.division == SHORT_STEP
        yield Problem(
            message=f"{measurement.trainer if is_short else measurement.name}'s {fault}",
            evidence=tuple(_iter_evidence(experiments, measurement)),
            fixes=tuple(_iter_fixes(snapshot, measurement, is_shared)),
            subject=_name_package(snapshot, measurement.trainer),
            predicted=measurement.division != UNDIVIDED or bool(measurement.variant),
        )
    job = snapshot.job.value if isinstance(snapshot.job, Known) else None
    model_type = snapshot.model.value.model_type if isinstance(snapshot.model, Known) else ""
    for router in experiments.routers:
        is_concerned = job is None or (router.model_type == model_type and _adds_balancing_loss(job))
        if router.are_probabilities and is_concerned:
            yield Problem(
                message=f"the balancing loss of {router.model_type} is wrong: its router logits are probabilities",
                evidence=(
                    "measured: those of each token add up to 1, and the loss takes their softmax again",
                    router.place,
                ),
                fixes=(Fix("leave the balancing loss out", "setting", "router_aux_loss_coef: 0"),),
                subject=router.model_type,
                predicted=job is None,
            )
    for item in experiments.twins:
        if item.lacks_import and (job is None or is_of_job(item, job)):
            yield Problem(
                message=f"{item.name} cannot be started: {item.error}",
                evidence=("measured: the installed trainer, made as a launch makes it",),
                fixes=(Fix("install the module, or releases that do not import it", "manual", item.error),),
                subject=_name_package(snapshot, item.trainer),
                predicted=job is None,
            )


def _iter_evidence(experiments: Experiments, measurement: GradientMeasurement) -> Iterator[str]:
    baseline = experiments.baseline(measurement.trainer, measurement.variant)
    if not measurement.moved:
        yield "measured: no parameter of the adapter that the model already has requires a gradient"
    elif measurement.error:
        yield "measured: the same step without gradient checkpointing works"
    elif measurement.division == SHORT_STEP:
        yield f"measured: one micro-batch, after a step of two equal ones: {measurement.later:.4f} of their gradient"
    elif measurement.variant in COMPARED:
        yield f"measured: the first loss is {measurement.loss:.4f}; with the adapter as the reference it is log 2"
    else:
        undivided = f", {baseline.ratio:.4f} undivided" if baseline is not None else ""
        yield f"measured: norm {measurement.ratio:.4f} of the right one{undivided}"
        yield f"the trainer logs a norm of {measurement.logged:.4f} of the right one"


def _describe_fault(experiments: Experiments, measurement: GradientMeasurement) -> str:
    """Return what is wrong with a measurement, "" if nothing is or its undivided batch is unknown."""
    if not measurement.moved:
        return "trainer freezes every parameter that it should train"
    if measurement.variant == CHECKPOINTED and measurement.error and experiments.baseline(measurement.trainer, GIVEN):
        return f"first step stops: {measurement.error}"
    baseline = experiments.baseline(measurement.trainer, measurement.variant)
    if measurement.error or baseline is None:
        return ""
    if measurement.division == SHORT_STEP:
        is_wrong = 0 < measurement.later < 1 / ADDED_UP
        factor = f"{measurement.later:.1g} times the gradient"
        return f"last step of an epoch, with fewer micro-batches, has {factor}" if is_wrong else ""
    if measurement.variant in COMPARED and measurement.loss and abs(measurement.loss - math.log(2)) > TOLERANCE:
        return "reference is the base model, not the adapter that it is given"
    against = measurement.ratio / baseline.ratio
    if measurement.points_elsewhere or abs(against - 1) > TOLERANCE:
        direction = f" and point elsewhere (cosine {measurement.cosine:.2f})" if measurement.points_elsewhere else ""
        divided = f"with {measurement.division} are {against:.3g} times those of one batch"
        whole = f"are {against:.3g} times the right ones"
        return f"gradients {whole if measurement.division == UNDIVIDED else divided}{direction}"
    if measurement.logged and abs(measurement.logged / measurement.ratio - 1) > TOLERANCE:
        return f"log has {measurement.logged / measurement.ratio:.3g} times the norm of the gradients"
    reference = 0.0 if measurement.variant.endswith(CAPPED) else baseline.loss  # a capped model has another loss
    if measurement.loss and reference and abs(measurement.loss / reference - 1) > LOSS_TOLERANCE:
        return f"log has {measurement.loss / reference:.3g} times the loss with {measurement.division}"
    if measurement.later > ADDED_UP:
        return f"gradients are not cleared after a step: the second step's are {measurement.later:.3g} times as large"
    if measurement.moved < 1:
        return f"optimiser leaves {1 - measurement.moved:.0%} of the parameters unchanged"
    return ""


def _is_wrong_in_transformers(experiments: Experiments, measurement: GradientMeasurement) -> bool:
    """Return whether transformers' own Trainer has a fault with the same division."""
    return any(
        (other.trainer, other.variant, other.division) == ("transformers", "", measurement.division)
        and _describe_fault(experiments, other)
        for other in experiments.gradients
    )


def _may_happen(snapshot: Snapshot, experiments: Experiments, measurement: GradientMeasurement) -> bool:
    """Return whether no other rule reports it, and the launch, if there is one, may divide its batch like this."""
    package = snapshot.package("transformers")
    is_known = isinstance(package, Known) and package.value.faults.get(DIVIDES_TWICE, False)
    if is_known and measurement.division == "two micro-batches" and not measurement.points_elsewhere:
        return False
    if not isinstance(snapshot.job, Known):
        return measurement.variant != BALANCING
    job = snapshot.job.value
    if measurement.division == SHORT_STEP:
        return False  # one step of an epoch: a matter of the environment
    has_own = job.framework == "trl" or experiments.baseline(job.framework) is not None
    if job.framework not in TRAINER_FRAMEWORKS or measurement.trainer != (job.framework if has_own else "transformers"):
        return False
    variants = {"liger": job.plan.liger, "tensor parallel": job.tensor_parallel > 1}
    variants[BALANCING] = _adds_balancing_loss(job)
    is_adapted = any(item.name == MODEL for item in job.settings)
    variants[CHECKPOINTED] = is_adapted and job.plan.gradient_checkpointing
    adapters = {GIVEN: is_adapted, EXPERTS: any(EXPERTS in item.name for item in job.settings)}
    is_dpo = job.trainer == "dpo" and measurement.moved > 0
    variants |= {f"dpo {name}": is_dpo and is_given for name, is_given in adapters.items()}
    variants[f"{job.trainer} {CAPPED}"] = job.plan.liger and CAPPING.search(job.model or "") is not None
    if not variants.get(measurement.variant, measurement.variant in ("", job.trainer)):
        return False
    if not measurement.variant and job.trainer in {item.variant for item in experiments.gradients}:
        return False  # this objective was measured itself
    if measurement.division == "two replicas":
        return job.world_size == Known(1) and len(snapshot.visible_devices()) > 1
    if measurement.division == "two ranks":
        return isinstance(job.world_size, Known) and job.world_size.value > 1
    return measurement.division == UNDIVIDED or job.plan.accumulation > 1


def _adds_balancing_loss(job: Job) -> bool:
    """Return whether a setting of the launch adds the balancing loss of a mixture of experts."""
    return any(
        BALANCED.search(item.value) or (BALANCED.search(item.name) and item.value.lower() not in OFF)
        for item in job.settings
    )


def _iter_fixes(snapshot: Snapshot, measurement: GradientMeasurement, is_shared: bool) -> Iterator[Fix]:
    if measurement.division in SETTINGS:
        yield Fix("do not divide the batch this way", "setting", SETTINGS[measurement.division])
    if measurement.variant == BALANCING:
        count = "RANKS" if measurement.division == "two ranks" else "STEPS"
        yield Fix("divide its coefficient", "setting", f"router_aux_loss_coef: COEF / {count}")
    for variant, setting in VARIANT_SETTINGS.items():
        if measurement.variant.endswith(variant):
            yield Fix(f"train without {variant.split()[0]}", "setting", setting)
    if measurement.variant in COMPARED:
        yield Fix("merge the adapter first", "edit", "model = model.merge_and_unload()  # and a new peft_config")
    if measurement.variant == CHECKPOINTED:
        yield Fix("checkpoint without reentry", "setting", "gradient_checkpointing_kwargs: {use_reentrant: false}")
    if not measurement.moved:
        yield Fix("let the trainer add the adapter to a plain model", "setting", "peft_config=LoraConfig(...)")
    if is_shared or measurement.division == SHORT_STEP:
        yield install_packages(snapshot, "transformers>=5.5.4")


def _name_package(snapshot: Snapshot, name: str) -> str:
    version = snapshot.version(name)
    return f"{name} {version.value}" if isinstance(version, Known) else name


RULE = Rule("ATN459", "error", check)
