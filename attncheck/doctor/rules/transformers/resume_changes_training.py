"""Training that resumes from a checkpoint does not continue as if it had not been interrupted.

What it checks: `doctor --deep` trains a tiny model for two epochs with the installed Trainer, and with the trainers
that TRL, LLaMA-Factory and ms-swift make. It then resumes from a checkpoint inside the second epoch. The remaining
steps must get the same documents, and the weights must end where they end without an interruption.

Why it matters: the error is silent. Documents that the epoch has had already are trained again, and others are left
out.

What to do: use a release that resumes right, or resume only from checkpoints at the end of an epoch, which the faulty
releases continue right.

Source: the measurement (attncheck/doctor/experiments/worker/resume.py). Measured wrong: transformers 4.56.1 and 4.57.6
with accelerate 1.10.1, ms-swift 4.4.2. Measured right: transformers 5.5.4 and 5.17.0, ms-swift 4.5.3. Faults of this
kind: huggingface/transformers#40690, modelscope/ms-swift#10050.
"""

from attncheck.core.experiments import ResumeMeasurement
from attncheck.core.launch import SourceLocation
from attncheck.doctor.fixes.install import install_packages
from attncheck.doctor.queries.launch import name_settings
from attncheck.doctor.rules import Fix, Known, Problem, Problems, Rule, Snapshot

SETTING = "resume_from_checkpoint"
RIGHT_SINCE = {"transformers": "5.5.4", "ms-swift": "4.5.3"}  # the first release that was measured right
ONE_EPOCH = {"1", "1.0"}
OFF = {"", "false", "none", "null", "no"}


def check(snapshot: Snapshot) -> Problems:
    measured = {item.trainer: item for item in snapshot.measurements.resumes}
    wrong = {name: item for name, item in measured.items() if item.differs}
    locations: tuple[SourceLocation, ...] = ()
    if wrong and isinstance(snapshot.job, Known):
        job = snapshot.job.value
        stated = name_settings(job)
        resumes = SETTING in stated and stated[SETTING].value.lower() not in OFF
        if not resumes or ("num_train_epochs" in stated and stated["num_train_epochs"].value in ONE_EPOCH):
            return
        locations = (stated[SETTING].location,)
        wrong = {name: item for name, item in wrong.items() if name == job.framework}
    elif "transformers" in wrong:  # the others use its data loader
        wrong = {name: item for name, item in wrong.items() if name in RIGHT_SINCE}
    for name, item in wrong.items():
        yield _describe(snapshot, item, name if name in RIGHT_SINCE else "transformers", locations)


def _describe(
    snapshot: Snapshot, item: ResumeMeasurement, package: str, locations: tuple[SourceLocation, ...]
) -> Problem:
    """Return the problem of one trainer."""
    change = f"gets other documents at {1 - item.same:.0%} of its steps" if item.same < 1 else "ends with other weights"
    return Problem(
        message=f"{item.trainer}: training that resumes inside the second epoch {change}",
        evidence=(f"measured: the final weights differ by {item.drift:.0%} of what the resumed steps change",),
        fixes=(
            install_packages(snapshot, f"{package}>={RIGHT_SINCE[package]}"),
            Fix("resume only from checkpoints at the end of an epoch", "setting", "save_strategy: epoch"),
        ),
        subject=item.trainer,
        locations=locations,
    )


RULE = Rule("ATN465", "warning", check)
