"""The installed trainer's gradients depend on how a batch is divided.

What it checks: `doctor --deep` trains one step on two documents of unequal length with the installed Trainer, and with
the trainers that TRL, LLaMA-Factory and ms-swift make: as one batch, as two micro-batches, and (the first two) as two
imitated replicas of nn.DataParallel. Norm and direction of the gradient before the optimiser are compared with the
gradient of the same loss over the same tokens.

Why it matters: the error is silent. The logged loss is right, but the gradients are off by a factor, or belong to a
different objective. Clipping, weight decay and optimisers that depend on scale then behave differently.

What to do: use a release of transformers, accelerate or the framework in which the ratio is 1, or do not divide the
batch that way: one process per GPU, no accumulation.

Source: the measurement (attncheck/doctor/experiments/worker/). Faults of this kind: huggingface/transformers
#40709, #37474, #43919; huggingface/accelerate#3533.
"""

from collections.abc import Iterator

from attncheck.core.experiments import TOLERANCE, Experiments, GradientMeasurement
from attncheck.doctor.fixes.install import install_packages
from attncheck.doctor.knowledge.frameworks import TRAINER_FRAMEWORKS
from attncheck.doctor.rules import Fix, Known, Problem, Problems, Rule, Snapshot

DIVIDES_TWICE = "ATN457"  # reports gradients that are divided by the accumulation steps twice, with its releases
SETTINGS = {"two micro-batches": "gradient_accumulation_steps: 1", "two replicas": "torchrun --nproc-per-node N"}


def check(snapshot: Snapshot) -> Problems:
    experiments = snapshot.measurements
    for measurement in experiments.gradients:
        if not _is_wrong(experiments, measurement) or not _may_happen(snapshot, experiments, measurement):
            continue
        is_shared = _is_wrong_in_transformers(experiments, measurement)
        if is_shared and measurement.trainer != "transformers" and not isinstance(snapshot.job, Known):
            continue  # reported of transformers itself
        baseline = experiments.baseline(measurement.trainer)
        against = measurement.ratio / baseline.ratio if baseline is not None else measurement.ratio
        direction = f" and point elsewhere (cosine {measurement.cosine:.2f})" if measurement.points_elsewhere else ""
        yield Problem(
            message=(
                f"{measurement.trainer}'s gradients with {measurement.division} are {against:.3g} times "
                f"those of one batch{direction}"
            ),
            evidence=(
                f"measured: norm {measurement.ratio:.4f} of the right one, {baseline.ratio:.4f} undivided"
                if baseline is not None
                else f"measured: norm {measurement.ratio:.4f} of the right one",
                f"the trainer logs a norm of {measurement.logged:.4f} of the right one",
            ),
            fixes=tuple(_iter_fixes(snapshot, measurement, is_shared)),
            subject=_name_package(snapshot, measurement.trainer),
            predicted=measurement.division != "one batch",
        )


def _is_wrong(experiments: Experiments, measurement: GradientMeasurement) -> bool:
    baseline = experiments.baseline(measurement.trainer)
    if measurement.error or baseline is None:
        return False
    is_scaled = abs(measurement.ratio / baseline.ratio - 1) > TOLERANCE
    return measurement.points_elsewhere or is_scaled


def _is_wrong_in_transformers(experiments: Experiments, measurement: GradientMeasurement) -> bool:
    """Return whether transformers' own Trainer has a fault with the same division."""
    return any(
        other.trainer == "transformers" and other.division == measurement.division and _is_wrong(experiments, other)
        for other in experiments.gradients
    )


def _may_happen(snapshot: Snapshot, experiments: Experiments, measurement: GradientMeasurement) -> bool:
    """Return whether no other rule reports it, and the launch, if there is one, may divide its batch like this."""
    package = snapshot.package("transformers")
    is_known = isinstance(package, Known) and package.value.faults.get(DIVIDES_TWICE, False)
    if is_known and measurement.division == "two micro-batches" and not measurement.points_elsewhere:
        return False
    if not isinstance(snapshot.job, Known):
        return True
    job = snapshot.job.value
    has_own = job.framework == "trl" or experiments.baseline(job.framework) is not None
    if job.framework not in TRAINER_FRAMEWORKS or measurement.trainer != (job.framework if has_own else "transformers"):
        return False
    if measurement.division == "two replicas":
        return job.world_size == Known(1) and len(snapshot.visible_devices()) > 1
    return measurement.division == "one batch" or job.plan.accumulation > 1


def _iter_fixes(snapshot: Snapshot, measurement: GradientMeasurement, is_shared: bool) -> Iterator[Fix]:
    if measurement.division in SETTINGS:
        yield Fix("do not divide the batch this way", "setting", SETTINGS[measurement.division])
    if is_shared:
        yield install_packages(snapshot, "transformers>=5.5.4")


def _name_package(snapshot: Snapshot, name: str) -> str:
    version = snapshot.version(name)
    return f"{name} {version.value}" if isinstance(version, Known) else name


RULE = Rule("ATN459", "error", check)
