"""transformers' Trainer divides gradients by the accumulation steps twice.

What it checks: the installed transformers/trainer.py, or for a --target the table of releases (5.2.0 to 5.5.3): does
it pass `gradient_accumulation_steps` to accelerate and also divide the loss itself? With a launch: whether it
accumulates more than one micro-batch with transformers' Trainer. Without a launch this is unknown, and the finding is
a warning; so it is if the launch's framework excludes the transformers that is named for the target.

Why it matters: the error is silent. accelerate's `backward` divides the loss by the steps after the Trainer already
did, so gradients are 1/steps of the right ones. The logged loss is right. The logged gradient norm is too small,
max_grad_norm clips less, and an optimiser that depends on scale, such as SGD, takes smaller steps.

Not affected: launches without accumulation; DeepSpeed, for which accelerate does not divide; ms-swift since 4.0.2,
which sets accelerate's steps back to 1; TRL's online DPO, Nash-MD, XPO and PPO, which have their own training step; its
GKD and GOLD before 1.7, whose loss nothing else divides; a trainer that `doctor --deep` measured right.

What to do: install a release without the fault: 5.5.4 or newer, or 5.1.0 or older. If the framework pins a faulty
one, use another release of the framework, or do not accumulate: use more rows or ranks, and
`gradient_accumulation_steps: 1`.

Source: transformers 5.1.0, 5.2.0, 5.3.0, 5.4.0, 5.5.0 to 5.5.4 and 5.24.0, trainer.py (`grad_acc_kwargs["num_steps"]`
in create_accelerator_and_postprocess, `loss / self.current_gradient_accumulation_steps` in training_step); accelerate
0.34.2 to 1.15.0, accelerator.py (`backward`); ms_swift 4.0.1 and 4.0.2, swift/trainers/mixin.py; trl 0.28.0 and 1.0.0,
experimental/online_dpo/online_dpo_trainer.py (`training_step`) and experimental/ppo/ppo_trainer.py;
huggingface/transformers#43919. Gradients were measured under 5.1.0 to 5.17.0 (benchmarks/RESULTS.md).
"""

from collections.abc import Iterator
from dataclasses import replace

from packaging.version import InvalidVersion, Version

from attncheck.core.experiments import HALVES
from attncheck.doctor.fixes.model import change_transformers
from attncheck.doctor.knowledge.faulty_releases import list_faults
from attncheck.doctor.knowledge.frameworks import TRAINER_FRAMEWORKS
from attncheck.doctor.queries.launch import describe_job, locate_settings
from attncheck.doctor.queries.requirements import may_not_run
from attncheck.doctor.rules import Fix, Job, Known, Problem, Problems, Rule, Snapshot, need

CODE = "ATN457"
OWN_STEP = ("ppo", "online_dpo", "nash_md", "xpo", "loop")  # trainers that divide nothing, or accumulate on their own
UNDIVIDED, TRL_DIVIDES = ("gkd", "gold"), "1.7"  # before, transformers leaves the division to them, and they forget it
MS_SWIFT_SETS_BACK = "4.0.2"
SOUND_RELEASES = (">=5.5.4,<5.6", ">=4.57,<5.2")  # the nearest ones
ALSO_SOUND = ("transformers>=5.5.4",)  # used if another fix needs a newer release


def check(snapshot: Snapshot) -> Problems:
    if isinstance(snapshot.job, Known):
        yield from _check_job(snapshot, snapshot.job.value)
    elif _may_train(snapshot) and (evidence := _find_evidence(snapshot)):
        version = need(snapshot.version("transformers"), "transformers' version")
        yield Problem(
            message=f"transformers {version} divides gradients by gradient_accumulation_steps twice",
            evidence=(evidence, "only with gradient_accumulation_steps above 1, and not under DeepSpeed"),
            fixes=tuple(_iter_fixes(snapshot)),
            subject=f"transformers {version}",
            predicted=True,
        )


def _check_job(snapshot: Snapshot, job: Job) -> Problems:
    steps = job.plan.accumulation
    is_trainers = job.framework in TRAINER_FRAMEWORKS and job.trainer not in OWN_STEP and not _is_set_back(job)
    if not is_trainers or steps < 2 or job.deepspeed == Known(True) or _is_measured_right(snapshot, job):
        return
    version = need(snapshot.version("transformers"), "transformers' version")
    if evidence := _find_evidence(snapshot):
        yield Problem(
            message=f"transformers {version} divides gradients by the {steps} accumulation steps twice: "
            f"they are {steps} times too small",
            evidence=(evidence, "the logged loss is correct; the logged gradient norm and the clipping are not"),
            fixes=tuple(_iter_fixes(snapshot)),
            subject=describe_job(job),
            predicted=not isinstance(job.deepspeed, Known) or may_not_run(snapshot, job),
            locations=locate_settings(job, "global_batch"),
        )


def _is_measured_right(snapshot: Snapshot, job: Job) -> bool:
    """Return whether `doctor --deep` measured right gradients with this trainer, which may divide nothing itself."""
    wanted = (job.framework, job.trainer, "", HALVES, "", "")
    return any(
        (item.trainer, item.variant, item.setting, item.change, item.part, item.error) == wanted
        for item in snapshot.measurements.twins
    )


def _is_set_back(job: Job) -> bool:
    """Return whether accelerate's division is the only one, or the framework turns it off."""
    try:
        version = Version(job.version)
        is_undivided = job.framework == "trl" and job.trainer in UNDIVIDED and version < Version(TRL_DIVIDES)
        return is_undivided or (job.framework == "ms-swift" and version >= Version(MS_SWIFT_SETS_BACK))
    except InvalidVersion:
        return False


def _may_train(snapshot: Snapshot) -> bool:
    """Return whether a Trainer may run here: it needs accelerate, while OpenRLHF and verl have their own loops."""
    has_own_loop = snapshot.lists("openrlhf", "verl") and not snapshot.lists(*TRAINER_FRAMEWORKS - {"transformers"})
    return snapshot.lists("accelerate") and not has_own_loop


def _find_evidence(snapshot: Snapshot) -> str:
    """Return the evidence of the fault in transformers, from its own file or else the table of releases; "" if none."""
    package, version = snapshot.package("transformers"), snapshot.version("transformers")
    faults = package.value.faults if isinstance(package, Known) else {}
    if CODE in faults:
        return "static lane: both trainer.py and accelerate divide" if faults[CODE] else ""
    is_listed = isinstance(version, Known) and CODE in list_faults("transformers", version.value)
    return "known for transformers 5.2.0 to 5.5.3" if is_listed else ""


def _iter_fixes(snapshot: Snapshot) -> Iterator[Fix]:
    """Yield the nearest release without the fault that all constraints allow, else the batch without accumulation."""
    for specifier in SOUND_RELEASES:
        if fixes := change_transformers(snapshot, specifier):
            yield from (replace(fix, allows=ALSO_SOUND) if specifier == SOUND_RELEASES[0] else fix for fix in fixes)
            return
    text = "gradient_accumulation_steps: 1, with more rows or ranks instead"
    yield Fix("do not accumulate: an installed package pins a transformers with this bug", "manual", text)


RULE = Rule(CODE, "error", check)
